// AdamW on f32 weights, or on a slice of the rows of each, with clipping by the global norm.
#pragma once

#include <cstdint>
#include <vector>

#include "base/options.h"
#include "tensor/parameter.h"

namespace mt {

struct AdamOptions {
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_eps = 1e-8, weight_decay = 0.01;
  double clip_grad = 1.0;  // 0: no clipping

  void add_to(Options& options);
  void check() const;
};

class Adam {
 public:
  // slices: the rows of each parameter that are updated here (optim/zero1.h). The parameters must
  // outlive it. Moments exist for the slices alone and start at zero.
  Adam(const AdamOptions& options, std::vector<Parameter*> parameters, std::vector<RowRange> slices,
       Pool& pool);

  // lr: of this step. gradient_norm: of all gradients of the model (optim/gradient_norm.h). Clips
  // (factor clip / (norm + 1e-6) when norm > clip), updates the slices, sets all rows of the
  // gradients to zero or, where products write them, marks them as stale.
  void step(double lr, double gradient_norm);
  [[nodiscard]] std::int64_t steps() const;
  void set_steps(std::int64_t steps);

  [[nodiscard]] const std::vector<RowRange>& slices() const { return slices_; }
  // Moments of the slice of parameter i, of its shape: what a checkpoint stores as NAME.exp_avg and
  // NAME.exp_avg_sq for each of its segments_of_rows().
  [[nodiscard]] const Tensor& exp_avg(std::size_t i) const;
  [[nodiscard]] const Tensor& exp_avg_sq(std::size_t i) const;

 private:
  AdamOptions options_;
  std::vector<Parameter*> parameters_;
  std::vector<RowRange> slices_;
  std::vector<Tensor> exp_avg_, exp_avg_sq_;
  Tensor scalars_;  // u8, one AdamScalars on the device
  std::int64_t steps_ = 0;
};

}  // namespace mt
