// Which rank runs on which node, and whether the grid fits that: a tensor group belongs inside one
// node, pipeline and data groups go between nodes (Narayanan et al., arXiv:2104.04473, section 3).
#pragma once

#include <string>
#include <vector>

#include "comm/grid.h"

namespace mt {

struct RankHost {
  int node = 0;      // nodes count from 0 in the order of their lowest ranks
  std::string name;  // of the host
};

// One sentence on the tensor groups whose ranks stand on several nodes, with the host names and
// what would help; empty if there are none. hosts: of all ranks of the grid. shape: checked.
[[nodiscard]] std::string tensor_groups_across_nodes(const GridShape& shape,
                                                     const std::vector<RankHost>& hosts);

// Warns of such groups on rank 0, or throws UsageError on every rank if `strict`
// (--strict-placement). Not collective.
void check_placement(const GridShape& shape, const std::vector<RankHost>& hosts, int rank,
                     bool strict);

}  // namespace mt
