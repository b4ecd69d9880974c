#include "comm/watchdog.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "comm/communicator.h"

namespace mt {
namespace {

RankState waits(int rank, Wait wait, std::uint64_t number, int peer = -1) {
  return {.rank = rank,
          .step = 17,
          .activity = "training",
          .wait = wait,
          .group = "tensor",
          .number = number,
          .peer = peer};
}
RankState computes(int rank) {
  return {.rank = rank, .step = 17, .activity = "training"};
}

std::string text(const std::vector<RankState>& ranks, int world = 0) {
  return describe_hang(ranks, world == 0 ? static_cast<int>(ranks.size()) : world, "node-a", 5)
      .text;
}
const std::string kLimit = "no progress for 5 s (--hang-timeout): ";

TEST(watchdog, nobody_is_blamed_while_nobody_waits) {
  EXPECT_EQ(text({computes(0), computes(1)}), "");
}

TEST(watchdog, the_rank_that_computes_holds_the_others_up) {
  EXPECT_EQ(text({waits(0, Wait::kAllReduce, 4), computes(1), waits(2, Wait::kAllReduce, 4)}),
            kLimit +
                "rank 1 on node-a is in no operation (training, step 17); ranks 0, 2 are in "
                "all_reduce 4 of tensor");
}

TEST(watchdog, a_stopped_rank_is_blamed_wherever_it_is) {
  RankState stopped = waits(2, Wait::kAllReduce, 4);
  stopped.alive = false;
  EXPECT_EQ(text({waits(0, Wait::kAllReduce, 4), computes(1), stopped}),
            kLimit +
                "rank 2 on node-a is stopped, in all_reduce 4 of tensor (training, step 17); "
                "rank 0 is in all_reduce 4 of tensor");
}

TEST(watchdog, the_odd_one_out_is_blamed_if_all_wait) {
  EXPECT_EQ(text({waits(0, Wait::kAllReduce, 4), waits(1, Wait::kReceive, 2, 0),
                  waits(2, Wait::kAllReduce, 4)}),
            kLimit +
                "rank 1 on node-a is in receive 2 of tensor from 0 (training, step 17); ranks "
                "0, 2 are in all_reduce 4 of tensor");
  EXPECT_NE(
      text({waits(0, Wait::kBarrier, 4), waits(1, Wait::kBarrier, 4)}).find("no rank is left"),
      std::string::npos);
}

TEST(watchdog, what_is_on_another_node_is_not_known_here) {
  const std::vector<RankState> ranks{waits(0, Wait::kAllReduce, 4), waits(1, Wait::kAllReduce, 4)};
  const HangReport report = describe_hang(ranks, 4, "node-a", 5);
  EXPECT_TRUE(report.elsewhere);
  EXPECT_NE(report.text.find("on another node"), std::string::npos);
  EXPECT_FALSE(describe_hang({ranks[0], computes(1)}, 4, "node-a", 5).elsewhere);
}

// A board of two ranks in this process's memory.
struct Board {
  std::unique_ptr<std::byte[]> memory;
  std::unique_ptr<RankBoard> ranks[2];

  Board() {
    constexpr std::size_t kAlign = 128;
    std::size_t bytes = static_cast<std::size_t>(RankBoard::bytes(2)) + kAlign;
    memory = std::make_unique<std::byte[]>(bytes);
    void* start = memory.get();
    std::align(kAlign, bytes - kAlign, start, bytes);
    for (std::size_t i = 0; i < 2; ++i) {
      ranks[i] =
          std::make_unique<RankBoard>(static_cast<std::byte*>(start), std::vector<int>{0, 1}, i);
    }
  }
};

void pause(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

TEST(watchdog, steps_published_in_time_are_no_hang_and_silence_is) {
  Board board;
  std::atomic<int> alarms = 0;
  const auto count = [&](const std::string&) { ++alarms; };
  const Watchdog first(*board.ranks[0], 2, "h", 0.5, count),
      second(*board.ranks[1], 2, "h", 0.5, count);
  board.ranks[0]->pulse().enter(Wait::kAllReduce, short_text("world"), 1, -1);
  for (int step = 0; step < 20; ++step) {  // twice the limit
    board.ranks[1]->pulse().progress(step, "saving");
    pause(50);
  }
  EXPECT_EQ(alarms, 0);
  for (int i = 0; i < 100 && alarms == 0; ++i) pause(50);
  pause(100);
  EXPECT_EQ(alarms, 1);  // one voice
}

TEST(watchdog, computing_without_a_word_is_no_hang_while_nobody_waits) {
  Board board;
  std::atomic<int> alarms = 0;
  const auto count = [&](const std::string&) { ++alarms; };
  const Watchdog first(*board.ranks[0], 2, "h", 0.2, count),
      second(*board.ranks[1], 2, "h", 0.2, count);
  pause(600);
  EXPECT_EQ(alarms, 0);
}

TEST(watchdog, one_rank_has_the_voice) {
  Board board;
  EXPECT_TRUE(board.ranks[1]->take_voice());
  EXPECT_FALSE(board.ranks[0]->take_voice());
  EXPECT_FALSE(board.ranks[1]->take_voice());
}

TEST(watchdog, texts_are_kept_up_to_fifteen_bytes) {
  EXPECT_EQ(to_string(short_text("embedding")), "embedding");
  EXPECT_EQ(to_string(short_text("a name that is too long")), "a name that is ");
}

}  // namespace
}  // namespace mt
