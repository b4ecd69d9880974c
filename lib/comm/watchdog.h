// Finds a job that hangs: no rank of the node has published anything (pulse.h) for a while, and at
// least one of them waits for others. A computation, a save or a validation that takes long and
// publishes nothing counts as a hang once it is longer than the limit and others wait for it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/rank_board.h"

namespace mt {

// One rank of the node, as a watchdog reads it.
struct RankState {
  int rank = 0;       // of the world
  bool alive = true;  // its watchdog has run of late
  std::int64_t step = 0;
  std::string activity;  // what it said last that it does
  Wait wait = Wait::kComputing;
  std::string group{};  // of the operation it waits in
  std::uint64_t number = 0;
  int peer = -1;
};

struct HangReport {
  std::string text;
  // The rank that holds the others up may stand on another node: all of this one wait.
  bool elsewhere = false;
};
// Who holds the job up, after `seconds` without any sign of progress on node `host`: a process that
// is stopped; else the ranks that compute while others wait; else those that wait for something
// else than most do. world: ranks of the job. Empty text if nobody waits.
[[nodiscard]] HangReport describe_hang(const std::vector<RankState>& ranks, int world,
                                       const std::string& host, double seconds);

// A thread beside the rank's own. Every rank of a node has one; the first to find a hang takes the
// board's voice and reports.
class Watchdog {
 public:
  // seconds > 0: the limit. on_hang is called on the watchdog's thread, at most once on all ranks
  // of the node, with the report's text; it ends the job. board must outlive the watchdog. A job
  // that was stopped as a whole and goes on is given the whole time again. If all ranks of the node
  // wait, the report waits half the limit longer, at least 2 s: another node may know more.
  Watchdog(const RankBoard& board, int world, std::string host, double seconds,
           std::function<void(const std::string&)> on_hang);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch();
  [[nodiscard]] bool pause(double seconds);  // false: the end is asked for

  const RankBoard& board_;
  int world_;
  std::string host_;
  double seconds_;
  std::function<void(const std::string&)> on_hang_;
  std::mutex mutex_;
  std::condition_variable ending_;
  bool end_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace mt
