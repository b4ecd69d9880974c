// The process grid, with threads as ranks.
#include "comm/grid.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace mt {
namespace {

TEST(Grid, places_are_in_megatrons_order) {
  GridShape shape{.tensor = 2, .pipeline = 3};
  shape.check(24);
  EXPECT_EQ(shape.data, 4);
  for (int rank = 0; rank < 24; ++rank) {
    const GridPlace place = place_of(shape, rank);
    EXPECT_EQ(rank, (place.pipeline * 4 + place.data) * 2 + place.tensor);
    EXPECT_EQ(rank, rank_at(shape, place));
  }
}

TEST(Grid, groups_run_along_their_axes) {
  run_local_ranks(12, [](const Communicator& world) {
    const ProcessGrid grid(world, {.tensor = 2, .pipeline = 3});
    const GridPlace place = grid.place();
    EXPECT_EQ(grid.tensor().rank(), place.tensor);
    EXPECT_EQ(grid.data().rank(), place.data);
    EXPECT_EQ(grid.pipeline().rank(), place.pipeline);
    EXPECT_EQ(grid.model().size(), 6);
    EXPECT_EQ(grid.embedding().size(), place.pipeline == 1 ? 1 : 2);
    // Each group adds up its own ranks and no others.
    const auto sum = [&](const Communicator& group) {
      double x = world.rank();
      group.all_reduce(&x, 1, ReduceOp::kSum);
      return x;
    };
    const auto expected = [&](auto same) {
      double x = 0;
      for (int r = 0; r < 12; ++r) {
        if (same(place_of(grid.shape(), r))) x += r;
      }
      return x;
    };
    EXPECT_EQ(sum(grid.tensor()), expected([&](const GridPlace& p) {
                return p.pipeline == place.pipeline && p.data == place.data;
              }));
    EXPECT_EQ(sum(grid.data()), expected([&](const GridPlace& p) {
                return p.pipeline == place.pipeline && p.tensor == place.tensor;
              }));
    EXPECT_EQ(sum(grid.pipeline()), expected([&](const GridPlace& p) {
                return p.tensor == place.tensor && p.data == place.data;
              }));
    EXPECT_EQ(sum(grid.model()),
              expected([&](const GridPlace& p) { return p.data == place.data; }));
    if (place.pipeline != 1) {
      EXPECT_EQ(sum(grid.embedding()), expected([&](const GridPlace& p) {
                  return p.tensor == place.tensor && p.data == place.data && p.pipeline != 1;
                }));
    }
  });
}

TEST(Grid, refuses_sizes_that_do_not_multiply_to_the_ranks) {
  const auto refused = [](GridShape shape, int ranks, const char* part) {
    try {
      shape.check(ranks);
      ADD_FAILURE() << "accepted " << ranks << " ranks";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refused({.tensor = 2, .pipeline = 2}, 5, "tensor 2 x pipeline 2 = 4");  // L09
  refused({.tensor = 2, .pipeline = 2, .data = 2}, 4, "makes 8");
  refused({.tensor = 0}, 4, "--tensor-model-parallel-size 0");
  refused({.pipeline = -1}, 4, "--pipeline-model-parallel-size -1");
  refused({.tensor = 65536, .pipeline = 65536}, 4, "= 4294967296");
}

}  // namespace
}  // namespace mt
