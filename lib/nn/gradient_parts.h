// --reduction tree: the sum of gradients over the parts of a step's samples, in a balanced binary
// tree. Each part is summed in the gradients themselves, one chain over its rows; a binary counter
// holds the sums of what came before: log2(parts) buffers of each gradient besides itself.
#pragma once

#include <vector>

#include "tensor/tensor.h"

namespace mt {

class GradientParts {
 public:
  // Nothing to sum.
  GradientParts() = default;
  // gradients f32; parts: a power of two, 1: close() does nothing. Takes its memory here.
  GradientParts(std::vector<Tensor> gradients, int parts);

  // To be called when a part's last row was added. The gradients are zero then; but with the last
  // part of a step they are the sum over all of its parts, and the next step begins.
  void close();

 private:
  std::vector<Tensor> gradients_;
  int parts_ = 1, closed_ = 0;
  // By level, as gradients_: the sum over the 2^level parts before those that a set bit of closed_
  // stands for.
  std::vector<std::vector<Tensor>> levels_;
};

}  // namespace mt
