// The pool: every part once, thread numbers that do not meet, work inside work, and no waiting for
// who is late.
#include "base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <vector>

namespace mt {
namespace {

struct Count {
  std::vector<std::atomic<int>> parts;
  std::vector<std::atomic<int>> inside;
  std::atomic<int> clashes{0};
  std::atomic<int> largest{0};
  Count(std::size_t n, std::size_t most) : parts(n), inside(most) {}
};

void count_part(const void* context, std::int64_t part, int thread) {
  Count& c = *static_cast<Count*>(const_cast<void*>(context));
  if (c.inside.at(static_cast<std::size_t>(thread)).fetch_add(1) != 0) ++c.clashes;
  ++c.parts.at(static_cast<std::size_t>(part));
  int seen = c.largest;
  while (seen < thread && !c.largest.compare_exchange_weak(seen, thread)) {
  }
  c.inside.at(static_cast<std::size_t>(thread)).fetch_sub(1);
}

TEST(Threads, do_every_part_once_whatever_the_counts) {
  for (const int n : {1, 2, 3, 8}) {
    set_threads(n);
    ASSERT_EQ(threads(), n);
    for (const int parts : {0, 1, 2, 3, 17, 1000}) {
      for (int repeat = 0; repeat < 50; ++repeat) {
        Count c(static_cast<std::size_t>(parts), static_cast<std::size_t>(n));
        run_parts(parts, n, count_part, &c);
        for (const auto& times : c.parts) ASSERT_EQ(times, 1);
        ASSERT_EQ(c.clashes, 0);
        ASSERT_LT(c.largest, n);
      }
    }
  }
  set_threads(1);
}

TEST(Threads, keep_to_the_most_that_was_asked_for) {
  set_threads(8);
  for (int repeat = 0; repeat < 200; ++repeat) {
    Count c(64, 2);
    run_parts(64, 2, count_part, &c);
    ASSERT_LT(c.largest, 2);
    ASSERT_EQ(c.clashes, 0);
  }
  set_threads(1);
}

TEST(Threads, run_nested_work_and_that_of_other_threads_alone) {
  set_threads(3);
  std::atomic<int> total{0};
  const auto outer = [](const void* context, std::int64_t, int) {
    run_parts(
        10, 3,
        [](const void* inner, std::int64_t, int thread) {
          if (thread == 0) ++*static_cast<std::atomic<int>*>(const_cast<void*>(inner));
        },
        context);
  };
  std::vector<std::thread> starters;
  for (int i = 0; i < 4; ++i) {
    starters.emplace_back([&] {
      for (int repeat = 0; repeat < 100; ++repeat) run_parts(5, 3, outer, &total);
    });
  }
  for (std::thread& t : starters) t.join();
  EXPECT_EQ(total, 4 * 100 * 5 * 10);
  set_threads(1);
}

// The starter does the parts itself and leaves when they are done, even while the others sleep.
TEST(Threads, work_is_started_after_the_others_slept) {
  set_threads(4);
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    Count c(100, 4);
    run_parts(100, 4, count_part, &c);
    for (const auto& times : c.parts) ASSERT_EQ(times, 1);
  }
  set_threads(1);
}

// Whoever meets it, the starter gets what a body throws, and the pool works on.
TEST(Threads, what_a_body_throws_reaches_the_starter) {
  set_threads(4);
  for (std::int64_t bad = 0; bad < 40; ++bad) {
    const auto body = [](const void* which, std::int64_t part, int) {
      if (part == *static_cast<const std::int64_t*>(which)) throw std::bad_alloc();
    };
    EXPECT_THROW(run_parts(40, 4, body, &bad), std::bad_alloc) << bad;
    Count c(100, 4);
    run_parts(100, 4, count_part, &c);
    for (const auto& times : c.parts) ASSERT_EQ(times, 1);
  }
  set_threads(1);
}

}  // namespace
}  // namespace mt
