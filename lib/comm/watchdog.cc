#include "comm/watchdog.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/threads.h"

namespace mt {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// "all_reduce 42 of world", "receive 7 of pipeline from 1".
std::string wait_text(const RankState& rank) {
  std::string text = wait_name(rank.wait);
  if (rank.number > 0) text += cat(" ", rank.number);
  text += cat(" of ", rank.group);
  if (rank.peer >= 0) text += cat(rank.wait == Wait::kReceive ? " from " : " to ", rank.peer);
  return text;
}

std::string place_text(const RankState& rank) {
  return rank.activity.empty() ? "" : cat(" (", rank.activity, ", step ", rank.step, ")");
}

// "rank 2", "ranks 0, 1, 3".
std::string ranks_text(const std::vector<const RankState*>& ranks) {
  constexpr std::size_t kNamed = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) {
    text += cat(i == 0 ? "" : ", ", ranks[i]->rank);
  }
  if (ranks.size() > kNamed) text += cat(" and ", ranks.size() - kNamed, " more");
  return text;
}

using Waiters = std::vector<std::vector<const RankState*>>;

// Ranks that wait, those of one operation together, the smallest crowd first.
Waiters crowds_of(const std::vector<RankState>& ranks) {
  std::map<std::tuple<Wait, std::string, std::uint64_t, int>, std::vector<const RankState*>> by;
  for (const RankState& rank : ranks) {
    if (rank.alive && rank.wait != Wait::kComputing) {
      by[{rank.wait, rank.group, rank.number, rank.peer}].push_back(&rank);
    }
  }
  Waiters crowds;
  for (auto& [operation, crowd] : by) crowds.push_back(std::move(crowd));
  std::stable_sort(crowds.begin(), crowds.end(),
                   [](const auto& a, const auto& b) { return a.size() < b.size(); });
  return crowds;
}

std::string crowd_text(const std::vector<const RankState*>& crowd) {
  return cat(ranks_text(crowd), crowd.size() == 1 ? " is in " : " are in ",
             wait_text(*crowd.front()));
}

// What the crowds from the `first` on wait in.
std::string rest_text(const Waiters& crowds, std::size_t first) {
  constexpr std::size_t kNamed = 4;
  std::string text;
  for (std::size_t i = first; i < std::min(crowds.size(), first + kNamed); ++i) {
    text += cat(text.empty() ? "" : ", ", crowd_text(crowds[i]));
  }
  if (crowds.size() > first + kNamed) text += ", ...";
  return text;
}

}  // namespace

HangReport describe_hang(const std::vector<RankState>& ranks, int world, const std::string& host,
                         double seconds) {
  const Waiters crowds = crowds_of(ranks);
  if (crowds.empty()) return {};
  std::vector<const RankState*> stopped, computing;
  for (const RankState& rank : ranks) {
    if (!rank.alive) {
      stopped.push_back(&rank);
    } else if (rank.wait == Wait::kComputing) {
      computing.push_back(&rank);
    }
  }
  const auto whole = static_cast<std::int64_t>(seconds);
  const std::string limit = cat("no progress for ", whole, " s (--hang-timeout): ");
  const auto& blamed = !stopped.empty() ? stopped : computing;
  if (!blamed.empty()) {
    const RankState& one = *blamed.front();
    std::string what = one.wait == Wait::kComputing ? cat("in no operation", place_text(one))
                                                    : cat("in ", wait_text(one), place_text(one));
    if (!stopped.empty()) what = cat("stopped, ", what);
    return {.text = cat(limit, ranks_text(blamed), " on ", host,
                        blamed.size() == 1 ? " is " : " are ", what, "; ", rest_text(crowds, 0)),
            .elsewhere = false};
  }
  const std::string place = place_text(*crowds.front().front());
  const bool elsewhere = static_cast<int>(ranks.size()) < world;
  if (crowds.size() == 1 || elsewhere) {
    const std::string missing =
        elsewhere ? "; what they wait for is on another node, whose ranks are not seen from here"
                  : "; no rank is left that could end it";
    return {
        .text = cat(limit, "all ranks on ", host, " wait: ", rest_text(crowds, 0), place, missing),
        .elsewhere = elsewhere};
  }
  return {.text = cat(limit, ranks_text(crowds[0]), " on ", host,
                      crowds[0].size() == 1 ? " is in " : " are in ", wait_text(*crowds[0][0]),
                      place, "; ", rest_text(crowds, 1)),
          .elsewhere = false};
}

Watchdog::Watchdog(const RankBoard& board, int world, std::string host, double seconds,
                   std::function<void(const std::string&)> on_hang)
    : board_(board),
      world_(world),
      host_(std::move(host)),
      seconds_(seconds),
      on_hang_(std::move(on_hang)),
      thread_(start_thread([this] { watch(); })) {
  MT_ASSERT(seconds > 0);
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    end_ = true;
  }
  ending_.notify_all();
  thread_.join();
}

bool Watchdog::pause(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  return !ending_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return end_; });
}

void Watchdog::watch() {
  const std::size_t count = board_.ranks().size();
  const double interval = std::clamp(seconds_ / 20, 0.01, 1.0);
  struct Seen {
    std::uint64_t beat = 0, alive = 0;
    Clock::time_point alive_at;
  };
  std::vector<Seen> seen(count);
  for (Seen& rank : seen) rank.alive_at = Clock::now();
  auto progress_at = Clock::now(), last = progress_at;
  while (pause(interval)) {
    board_.slot(board_.me()).alive.fetch_add(1, std::memory_order_relaxed);
    // A process that did not run cannot say that others did not.
    const bool slept = seconds_since(last) > interval + seconds_ / 2;
    last = Clock::now();
    std::vector<RankState> ranks;
    for (std::size_t i = 0; i < count; ++i) {
      const RankSlot& slot = board_.slot(i);
      const std::uint64_t beat = slot.beat.load(std::memory_order_acquire);
      const std::uint64_t alive = slot.alive.load(std::memory_order_relaxed);
      if (slept || beat != seen[i].beat) progress_at = last;
      if (slept || alive != seen[i].alive) seen[i].alive_at = last;
      seen[i].beat = beat;
      seen[i].alive = alive;
      const auto text = [](const std::array<std::atomic<std::uint64_t>, 2>& words) {
        return to_string({words[0].load(), words[1].load()});
      };
      ranks.push_back({.rank = board_.ranks()[i],
                       .alive = seconds_since(seen[i].alive_at) < std::max(seconds_ / 2, 0.2),
                       .step = slot.step.load(),
                       .activity = text(slot.activity),
                       .wait = static_cast<Wait>(slot.wait.load()),
                       .group = text(slot.group),
                       .number = slot.number.load(),
                       .peer = slot.peer.load()});
    }
    const double still = seconds_since(progress_at);
    if (still < seconds_) continue;
    const HangReport report = describe_hang(ranks, world_, host_, still);
    // Of several nodes in the dark, that of rank 0 speaks first.
    const double turn = board_.ranks().front() == 0 ? 0.0 : 1.0;
    const double more = report.elsewhere ? std::max(2.0, seconds_ / 2) + turn : 0.0;
    if (report.text.empty() || still < seconds_ + more) continue;
    if (board_.take_voice()) on_hang_(report.text);
    return;
  }
}

}  // namespace mt
