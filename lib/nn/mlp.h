// The feed-forward part of a block: h -> f -> h with GELU between (tanh form), its inner features
// cut over tp (Shoeybi et al., arXiv:1909.08053, section 3).
#pragma once

#include <string>
#include <vector>

#include "nn/linear.h"

namespace mt {

class Mlp {
 public:
  struct Saved {
    ColumnParallelLinear::Saved in;
    Tensor before_gelu;            // [b, s, f/t]
    RowParallelLinear::Saved out;  // GELU's result
  };

  // Parameters NAME.dense_h_to_4h.* and NAME.dense_4h_to_h.*; output_std: initial weights of the
  // latter.
  Mlp(const std::string& name, std::int64_t hidden, std::int64_t inner, double output_std,
      const LayerSetup& setup);

  // [b, s, h] -> [b, s, h], residual (may be undefined) added at the end; under sequence
  // parallelism slices [b, s/t, h]. Collective over tp (one all-reduce, or an all-gather and a
  // reduce-scatter).
  [[nodiscard]] Tensor forward(const Tensor& x, const Tensor& residual, Saved* saved) const;
  // dy -> dx, [b, s, h]. Adds into the gradients; releases what was saved. Collective over tp (one
  // all-reduce, or two all-gathers and a reduce-scatter).
  [[nodiscard]] Tensor backward(const Tensor& dy, Saved& saved);

  void collect(std::vector<Parameter*>& out);

 private:
  ColumnParallelLinear in_;
  RowParallelLinear out_;
};

}  // namespace mt
