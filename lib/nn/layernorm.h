// Layer normalisation over the last dimension with gain and bias (Ba et al., arXiv:1607.06450).
// Every rank of a tensor-parallel group holds it whole and computes the same; under sequence
// parallelism each works on its own slice of the positions, whose gradients it has.
#pragma once

#include <string>
#include <vector>

#include "nn/linear.h"

namespace mt {

class LayerNorm {
 public:
  struct Saved {
    Tensor x, mean, rstd;  // [b, s, h], [b * s], [b * s]
  };

  // Parameters NAME.weight (the gain, starts at 1) and NAME.bias.
  LayerNorm(const std::string& name, std::int64_t hidden, double epsilon, const LayerSetup& setup);

  // [.., h] -> [.., h]. Local. saved null: inference.
  [[nodiscard]] Tensor forward(const Tensor& x, Saved* saved) const;
  // The bits of forward's result again.
  [[nodiscard]] Tensor repeat(const Saved& saved) const;
  // Returns dx + residual. residual is the gradient that goes past the norm: its buffer is taken
  // for the result; undefined: none. Adds into the gradients.
  [[nodiscard]] Tensor backward(const Tensor& dy, const Tensor& residual, const Saved& saved);

  void collect(std::vector<Parameter*>& out);

 private:
  float epsilon_;
  Parameter gain_, bias_;
};

}  // namespace mt
