// AdamW on f32 weights, with clipping by the global norm.
#pragma once

#include <cstdint>
#include <vector>

#include "base/options.h"
#include "comm/communicator.h"
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
  // The parameters and tp must outlive it. Moments start at zero.
  Adam(const AdamOptions& options, std::vector<Parameter*> parameters, const Communicator& tp,
       Pool& pool);

  // The norm of all gradients: per-segment sums of squares in double, added in the order of the
  // parameters. Throws NumericError naming the first tensor whose gradient is not finite.
  // Collective over tp.
  [[nodiscard]] double gradient_norm() const;
  // lr: of this step. Clips (factor clip / (norm + 1e-6) when norm > clip), updates, sets gradients
  // to zero.
  void step(double lr, double gradient_norm);
  [[nodiscard]] std::int64_t steps() const;
  void set_steps(std::int64_t steps);

  // Moments of parameter i, of its shape: what a checkpoint stores as NAME.exp_avg and
  // NAME.exp_avg_sq for each segment.
  [[nodiscard]] const Tensor& exp_avg(std::size_t i) const;
  [[nodiscard]] const Tensor& exp_avg_sq(std::size_t i) const;

 private:
  AdamOptions options_;
  std::vector<Parameter*> parameters_;
  const Communicator* tp_;
  std::vector<Tensor> exp_avg_, exp_avg_sq_;
  Tensor scalars_;  // u8, one AdamScalars on the device
  std::int64_t steps_ = 0;
};

}  // namespace mt
