// Where a rank is, published in memory that the ranks of its node share, so that a watchdog can
// name the rank that others wait for. Publishing is some plain stores, whatever happens.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mt {

// What a rank may be inside of. kComputing: of nothing that waits for other ranks.
enum class Wait : std::uint8_t {
  kComputing,
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kBarrier,
  kSend,
  kReceive,
  kFinishSends,
  kSplit,
  kEnd,  // of a communicator
};
// "all_reduce", ...
[[nodiscard]] const char* wait_name(Wait wait);

// Up to 15 bytes of text in words that can be stored one by one; the rest is cut off.
using ShortText = std::array<std::uint64_t, 2>;
[[nodiscard]] ShortText short_text(std::string_view text);
[[nodiscard]] std::string to_string(const ShortText& text);

// One rank's words; written by it alone, read by all, zero at first. They belong together only
// while `beat` stands still.
struct alignas(128) RankSlot {
  std::atomic<std::uint64_t> beat{0};   // changes with whatever the rank publishes
  std::atomic<std::uint64_t> alive{0};  // changes while the rank's watchdog runs
  std::atomic<std::int64_t> step{0};
  std::array<std::atomic<std::uint64_t>, 2> activity{};  // ShortText
  std::array<std::atomic<std::uint64_t>, 2> group{};     // ShortText: the communicator's name
  std::atomic<std::uint64_t> number{0};   // of the operation among its kind in the group, from 1
  std::atomic<std::int32_t> peer{-1};     // of a send or receive, in the group
  std::atomic<std::int32_t> wait{0};      // Wait
  std::atomic<std::uint64_t> cores{0};    // digest of the set of cores that the rank may run on
  std::atomic<std::uint64_t> failure{0};  // of the text of the error that ended the rank
  std::atomic<std::int32_t> status{0};    // 1 + the exit status it failed with
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// The writer of a slot; the slot must outlive it. Without one nothing is published.
class Pulse {
 public:
  Pulse() = default;
  explicit Pulse(RankSlot* slot) : slot_(slot) {}

  void enter(Wait wait, const ShortText& group, std::uint64_t number, int peer) const {
    if (slot_ == nullptr) return;
    put(slot_->group, group);
    slot_->number.store(number, std::memory_order_relaxed);
    slot_->peer.store(peer, std::memory_order_relaxed);
    slot_->wait.store(static_cast<std::int32_t>(wait), std::memory_order_relaxed);
    beat();
  }
  void leave() const {
    if (slot_ == nullptr) return;
    slot_->wait.store(static_cast<std::int32_t>(Wait::kComputing), std::memory_order_relaxed);
    beat();
  }
  // The rank goes on, and with what: "training", "saving", ...
  void progress(std::int64_t step, std::string_view activity) const {
    if (slot_ == nullptr) return;
    put(slot_->activity, short_text(activity));
    slot_->step.store(step, std::memory_order_relaxed);
    beat();
  }

 private:
  static void put(std::array<std::atomic<std::uint64_t>, 2>& to, const ShortText& text) {
    to[0].store(text[0], std::memory_order_relaxed);
    to[1].store(text[1], std::memory_order_relaxed);
  }
  void beat() const {  // one writer, so no atomic addition
    slot_->beat.store(slot_->beat.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  RankSlot* slot_ = nullptr;
};

}  // namespace mt
