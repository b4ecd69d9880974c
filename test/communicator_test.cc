// Communicators with threads as ranks; test/grid runs the same cases with processes.
#include <gtest/gtest.h>

#include <atomic>

#include "base/error.h"
#include "communicator_cases.h"

namespace mt {
namespace {

TEST(Communicator, of_one) {
  check_communicator(*make_single_communicator());
}

TEST(Communicator, of_threads) {
  for (const int size : {1, 2, 3, 4, 5, 7, 8}) {
    SCOPED_TRACE(size);
    run_local_ranks(size, [](const Communicator& world) { check_communicator(world); });
  }
}

TEST(Communicator, a_rank_that_fails_ends_the_others) {
  std::atomic<int> ended{0};
  try {
    run_local_ranks(4, [&](const Communicator& world) {
      const auto half = world.split(world.rank() % 2, 0, "half");
      if (world.rank() == 2) throw DataError("rank 2 found damage");
      try {
        for (;;) half->barrier();
      } catch (const Error& error) {
        EXPECT_EQ(error.status(), ExitStatus::kPeer);
        ++ended;
        if (world.rank() == 0) throw;
      }
      try {
        world.barrier();
      } catch (const Error& error) {
        ++ended;
      }
    });
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 2 found damage");
  }
}

}  // namespace
}  // namespace mt
