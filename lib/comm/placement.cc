#include "comm/placement.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/log.h"

namespace mt {

std::string tensor_groups_across_nodes(const GridShape& shape, const std::vector<RankHost>& hosts) {
  const auto groups = static_cast<int>(hosts.size()) / shape.tensor;
  int across = 0;
  std::string first;
  for (int group = 0; group < groups; ++group) {
    std::map<int, std::string> nodes;  // of the group, with a host name each
    for (int i = 0; i < shape.tensor; ++i) {
      const RankHost& host = hosts.at(static_cast<std::size_t>(group * shape.tensor + i));
      nodes.emplace(host.node, host.name);
    }
    if (nodes.size() < 2 || across++ > 0) continue;
    first = cat("ranks ", group * shape.tensor, " to ", (group + 1) * shape.tensor - 1, " on ");
    for (auto node = nodes.begin(); node != nodes.end(); ++node) {
      first += cat(node == nodes.begin() ? "" : ", ", node->second);
    }
  }
  if (across == 0) return "";
  std::map<int, int> ranks_of;  // by node
  for (const RankHost& host : hosts) ++ranks_of[host.node];
  int fewest = static_cast<int>(hosts.size());
  for (const auto& [node, ranks] : ranks_of) fewest = std::min(fewest, ranks);
  return cat("--tensor-model-parallel-size ", shape.tensor, ": ", across, " of ", groups,
             " tensor groups stand on several nodes (the first: ", first,
             "), whose network every layer would wait for; expected a multiple of ", shape.tensor,
             " ranks on each node, found ", fewest, " on the smallest of ", ranks_of.size());
}

void check_placement(const GridShape& shape, const std::vector<RankHost>& hosts, int rank,
                     bool strict) {
  const std::string problem = tensor_groups_across_nodes(shape, hosts);
  if (problem.empty()) return;
  if (strict) throw UsageError(cat(problem, " (--strict-placement)"));
  if (rank == 0) log_warning(problem);
}

}  // namespace mt
