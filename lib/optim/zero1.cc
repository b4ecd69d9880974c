#include "optim/zero1.h"

#include "base/error.h"

namespace mt {

RowRange zero1_rows(const Shape& shape, int ranks, int rank) {
  MT_ASSERT(!shape.empty() && 0 <= rank && rank < ranks);
  const std::int64_t rows = shape[0], part = rows / ranks;
  if (shape.size() < 2 || part == 0) return {.begin = 0, .end = rows};
  return {.begin = part * rank, .end = rank + 1 == ranks ? rows : part * (rank + 1)};
}

std::vector<RowRange> zero1_slices(const std::vector<Parameter*>& parameters,
                                   const Communicator& data) {
  std::vector<RowRange> slices;
  for (const Parameter* parameter : parameters) {
    slices.push_back(zero1_rows(parameter->value.shape(), data.size(), data.rank()));
  }
  return slices;
}

std::vector<RowRange> all_rows(const std::vector<Parameter*>& parameters) {
  std::vector<RowRange> slices;
  for (const Parameter* parameter : parameters) {
    slices.push_back({.begin = 0, .end = parameter->value.dim(0)});
  }
  return slices;
}

bool is_cut(const Parameter& parameter, RowRange slice) {
  return slice.size() != parameter.value.dim(0);
}

}  // namespace mt
