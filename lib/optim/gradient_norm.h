// The norm of the gradients of a model that is cut over ranks: each element counts once, and no cut
// and no order changes a bit (tensor/square_sum.h).
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "tensor/parameter.h"
#include "tensor/square_sum.h"

namespace mt {

// What a rank counts of the parameters that it holds, so that all ranks of `group`, the whole grid,
// together have each element of the model once.
struct NormShare {
  const Communicator& group;
  // Of the tensor, of the data axis: counts what each rank of that axis has whole.
  bool first_of_tensor = true, first_of_data = true;
  std::string place = {};  // "rank 3": for messages; empty: not said
};

// One tensor's part that counts here.
struct CountedGradient {
  const Segment* segment;  // of the parameter: the whole of what the rank of the tensor axis has
  Tensor values;           // of its gradient, the rows of the slice
  Tensor weights;          // the same rows of the parameter
};
// slices: the rows of each parameter that were summed over the data axis here. Copies
// (Parameter::copy) do not count.
[[nodiscard]] std::vector<CountedGradient> counted_gradients(
    const std::vector<Parameter*>& parameters, const std::vector<RowRange>& slices,
    const NormShare& share);

// The same on every rank. Throws NumericError that names the first tensor whose gradient is not
// finite, the element and the rank, the same on every rank. Collective over share.group.
[[nodiscard]] double gradient_norm(const std::vector<Parameter*>& parameters,
                                   const std::vector<RowRange>& slices, const NormShare& share);
// Of a whole model on one rank.
[[nodiscard]] double gradient_norm(const std::vector<Parameter*>& parameters);

// sum over the ranks of group. Collective.
void sum_over(const Communicator& group, SquareSum& sum);

}  // namespace mt
