#include "comm/grid.h"

#include <cstdint>

#include "base/error.h"

namespace mt {

void GridShape::check(int ranks) {
  for (const auto& [name, size] : {std::pair{"--tensor-model-parallel-size", tensor},
                                   {"--pipeline-model-parallel-size", pipeline}}) {
    if (size < 1) throw UsageError(cat(name, " ", size, ": expected 1 or more"));
  }
  const std::int64_t replica = std::int64_t{tensor} * pipeline;
  const std::string sizes = cat("tensor ", tensor, " x pipeline ", pipeline);
  if (data == 0) {
    if (ranks % replica != 0) {
      throw UsageError(cat(ranks, " ranks: not a multiple of ", sizes, " = ", replica));
    }
    data = static_cast<int>(ranks / replica);
  }
  if (data < 1 || replica * data != ranks) {
    throw UsageError(cat(ranks, " ranks: ", sizes, " x data ", data, " makes ", replica * data));
  }
}

GridPlace place_of(const GridShape& shape, int rank) {
  return {.tensor = rank % shape.tensor,
          .pipeline = rank / shape.tensor / shape.data,
          .data = rank / shape.tensor % shape.data};
}

int rank_at(const GridShape& shape, const GridPlace& place) {
  return (place.pipeline * shape.data + place.data) * shape.tensor + place.tensor;
}

ProcessGrid::ProcessGrid(const Communicator& world, GridShape shape)
    : world_(world), shape_(shape) {
  shape_.check(world.size());
  place_ = place_of(shape_, world.rank());
  const int rank = world.rank();
  // The color of a group is what its ranks have in common.
  const auto along = [&](GridPlace common, const char* name) {
    return world.split(rank_at(shape_, common), rank, name);
  };
  tensor_ = along({.pipeline = place_.pipeline, .data = place_.data}, "tensor");
  data_ = along({.tensor = place_.tensor, .pipeline = place_.pipeline}, "data");
  pipeline_ = along({.tensor = place_.tensor, .data = place_.data}, "pipeline");
  model_ = along({.data = place_.data}, "model");
  const bool end = place_.pipeline == 0 || place_.pipeline == shape_.pipeline - 1;
  embedding_ = end ? along({.tensor = place_.tensor, .data = place_.data}, "embedding")
                   : along(place_, "embedding");
}

}  // namespace mt
