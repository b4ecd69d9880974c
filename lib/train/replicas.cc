#include "train/replicas.h"

#include <algorithm>
#include <functional>
#include <string>

#include "base/error.h"
#include "base/hash.h"
#include "base/threads.h"
#include "comm/texts.h"

namespace mt {
namespace {

struct Weight {
  const Segment* segment;
  Tensor values;
  Digest128 digest;
};

std::vector<Weight> weights_of(const Parameter& parameter) {
  std::vector<Weight> weights;
  for (const Segment& segment : parameter.segments) {
    weights.push_back({&segment, segment_rows(parameter.value, segment), {}});
  }
  return weights;
}

void append(std::vector<Weight>& to, const std::vector<Weight>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += cat(i == 0 ? " " : ", ", ranks[i]);
  return text;
}

// By place in the group: what the ranks have of one weight. "" if they agree. world_rank: of a
// place in the group.
std::string compare(const std::vector<Digest128>& found, const std::string& name,
                    const std::function<int(int)>& world_rank) {
  const auto most = std::max_element(found.begin(), found.end(), [&](const auto& a, const auto& b) {
    return std::count(found.begin(), found.end(), a) < std::count(found.begin(), found.end(), b);
  });
  if (std::count(found.begin(), found.end(), *most) == std::ssize(found)) return "";
  std::string text =
      cat("replicas of weight ", name, " differ: expected ", to_hex(*most), " as on ");
  std::vector<int> same;
  std::string others;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const int rank = world_rank(static_cast<int>(i));
    if (found[i] == *most) {
      same.push_back(rank);
    } else {
      others += cat(", found ", to_hex(found[i]), " on rank ", rank);
    }
  }
  return text + ranks_text(same) + others;
}

// The first weight in which the ranks of a group differ, or "". The weights are the same ones in
// the same order on every rank. Collective.
std::string compare_over(const Communicator& group, const std::vector<Weight>& weights,
                         const std::function<int(int)>& world_rank) {
  if (group.size() == 1 || weights.empty()) return "";
  std::vector<Digest128> own;
  for (const Weight& weight : weights) own.push_back(weight.digest);
  std::vector<Digest128> all(own.size() * static_cast<std::size_t>(group.size()));
  group.all_gather(own.data(), static_cast<std::int64_t>(own.size() * sizeof(Digest128)),
                   all.data());
  for (std::size_t w = 0; w < weights.size(); ++w) {
    std::vector<Digest128> found;
    for (std::size_t at = w; at < all.size(); at += own.size()) found.push_back(all[at]);
    const std::string text = compare(found, weights[w].segment->name, world_rank);
    if (!text.empty()) return text;
  }
  return "";
}

}  // namespace

void check_replicas(const ProcessGrid& grid, const std::vector<GptStage*>& stages) {
  if (grid.world().size() == 1) return;
  std::vector<Weight> all, tied;
  for (GptStage* stage : stages) {
    for (const Parameter* parameter : stage->parameters()) append(all, weights_of(*parameter));
  }
  run_parts_or_throw(std::ssize(all), threads(), [&](std::int64_t i) {
    Weight& weight = all[static_cast<std::size_t>(i)];
    weight.digest = xxh3_128(weight.values.data(), static_cast<std::size_t>(weight.values.bytes()));
  });
  std::vector<Weight> whole;  // that each rank of the tensor axis has
  for (const Weight& weight : all) {
    if (weight.segment->extent == weight.segment->global_shape) whole.push_back(weight);
    for (const GptStage* stage : stages) {
      const Parameter* const words = stage->tied_weight();
      if (words != nullptr && weight.segment == words->segments.data()) tied.push_back(weight);
    }
  }
  // A rank of the grid that differs from this one along one axis.
  const auto along = [&](int GridPlace::*axis, int step) {
    return [&grid, axis, step](int at) {
      GridPlace place = grid.place();
      place.*axis = at * step;
      return rank_at(grid.shape(), place);
    };
  };
  std::string text = compare_over(grid.data(), all, along(&GridPlace::data, 1));
  const std::string over_tensor = compare_over(grid.tensor(), whole, along(&GridPlace::tensor, 1));
  const std::string over_stages =
      compare_over(grid.embedding(), tied, along(&GridPlace::pipeline, grid.shape().pipeline - 1));
  if (text.empty()) text = over_tensor.empty() ? over_stages : over_tensor;
  for (const std::string& said : gather_texts(grid.world(), text)) {
    if (!said.empty()) throw NumericError(said);
  }
}

}  // namespace mt
