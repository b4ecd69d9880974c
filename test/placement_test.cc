#include "comm/placement.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace mt {
namespace {

std::vector<RankHost> nodes(const std::vector<int>& ranks_of) {
  std::vector<RankHost> hosts;
  for (std::size_t node = 0; node < ranks_of.size(); ++node) {
    for (int i = 0; i < ranks_of[node]; ++i) {
      hosts.push_back({.node = static_cast<int>(node), .name = cat("host-", node)});
    }
  }
  return hosts;
}

GridShape grid(int tensor, int pipeline, int data) {
  return {.tensor = tensor, .pipeline = pipeline, .data = data};
}

TEST(placement, tensor_groups_inside_nodes_are_fine) {
  EXPECT_EQ(tensor_groups_across_nodes(grid(1, 1, 1), nodes({1})), "");
  EXPECT_EQ(tensor_groups_across_nodes(grid(4, 2, 1), nodes({4, 4})), "");
  EXPECT_EQ(tensor_groups_across_nodes(grid(2, 1, 4), nodes({2, 6})), "");
  EXPECT_EQ(tensor_groups_across_nodes(grid(1, 4, 2), nodes({3, 3, 2})), "");  // pipelines may
}

TEST(placement, a_tensor_group_across_nodes_is_told_with_its_hosts) {
  EXPECT_EQ(tensor_groups_across_nodes(grid(4, 1, 2), nodes({2, 4, 2})),
            "--tensor-model-parallel-size 4: 2 of 2 tensor groups stand on several nodes (the "
            "first: ranks 0 to 3 on host-0, host-1), whose network every layer would wait for; "
            "expected a multiple of 4 ranks on each node, found 2 on the smallest of 3");
  // Node 0 has a multiple, and the group in the middle crosses all the same.
  EXPECT_NE(tensor_groups_across_nodes(grid(2, 1, 3), nodes({3, 3})), "");
}

TEST(placement, strict_refuses_on_every_rank) {
  check_placement(grid(2, 1, 1), nodes({1, 1}), 1, false);
  check_placement(grid(2, 1, 1), nodes({2}), 1, true);
  for (const int rank : {0, 1}) {
    EXPECT_THROW(check_placement(grid(2, 1, 1), nodes({1, 1}), rank, true), UsageError);
  }
}

}  // namespace
}  // namespace mt
