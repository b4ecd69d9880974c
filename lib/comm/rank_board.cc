#include "comm/rank_board.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/hash.h"

namespace mt {

struct alignas(128) RankBoard::Head {
  std::atomic<std::int32_t> voice{0};  // taken by 1 + index
};

RankBoard::RankBoard(std::byte* memory, std::vector<int> ranks, std::size_t me)
    : memory_(memory), ranks_(std::move(ranks)), me_(me) {
  MT_ASSERT(me_ < ranks_.size());
}

std::int64_t RankBoard::bytes(std::size_t ranks) {
  return static_cast<std::int64_t>(sizeof(Head) + ranks * sizeof(RankSlot));
}

// The bits of zeroed memory are those of fresh words.
RankBoard::Head& RankBoard::head() const {
  return *reinterpret_cast<Head*>(memory_);
}

RankSlot& RankBoard::slot(std::size_t i) const {
  return *reinterpret_cast<RankSlot*>(memory_ + sizeof(Head) + i * sizeof(RankSlot));
}

void RankBoard::note_cores() const {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof(cores), &cores) != 0) return;  // more than such a set can hold
  slot(me_).cores.store(xxh3_128(&cores, sizeof(cores)).low);
}

int RankBoard::share_of_cores() const {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof(cores), &cores) != 0) return 0;
  int ranks = 0;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    ranks += slot(i).cores.load() == slot(me_).cores.load() ? 1 : 0;
  }
  return std::max(1, CPU_COUNT(&cores) / ranks);
}

bool RankBoard::take_voice() const {
  std::int32_t nobody = 0;
  return head().voice.compare_exchange_strong(nobody, static_cast<std::int32_t>(me_) + 1);
}

RankBoard::Voice RankBoard::ask_for_voice(int status, const std::string& text) const {
  using std::chrono::milliseconds;
  using Clock = std::chrono::steady_clock;
  constexpr milliseconds kAlike{300};  // between the errors that ranks make of one bad option
  constexpr milliseconds kOtherNode{700}, kLostPeer{2000}, kPoll{2};
  RankSlot& own = slot(me_);
  own.failure.store(xxh3_128(text.data(), text.size()).low);
  own.status.store(status + 1);
  const milliseconds turn = (ranks_.front() == 0 ? milliseconds(0) : kOtherNode) +
                            (status == static_cast<int>(ExitStatus::kPeer) ? kLostPeer : kAlike);
  const milliseconds turn_of_all = ranks_.front() == 0 ? milliseconds(0) : kOtherNode;
  const auto begin = Clock::now();
  for (;;) {
    if (head().voice.load() != 0) return Voice::kSilent;
    std::size_t alike = 0;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const RankSlot& other = slot(i);
      alike += other.status.load() == status + 1 && other.failure.load() == own.failure.load();
    }
    const auto waited = Clock::now() - begin;
    if (alike == ranks_.size() && waited >= turn_of_all) {
      return me_ == 0 && take_voice() ? Voice::kForAll : Voice::kSilent;
    }
    if (waited >= turn) return take_voice() ? Voice::kForItself : Voice::kSilent;
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace mt
