// Learning rate as a pure function of the step: linear warm-up, then cosine, linear or constant to
// min_lr (Megatron-LM's rule: step k of 0, 1, 2, ... uses lr * k / warmup while k <= warmup, so
// step 0 does not move; from `decay` on, min_lr).
#pragma once

#include <cstdint>
#include <string>

#include "base/options.h"

namespace mt {

struct LrScheduleOptions {
  double lr = 0;
  double min_lr = 0;
  std::string lr_decay_style = "linear";  // constant, linear, cosine
  std::int64_t lr_warmup_iters = 0;
  double lr_warmup_fraction = 0;    // of lr_decay_iters; not together with lr_warmup_iters
  std::int64_t lr_decay_iters = 0;  // 0: train_iters

  void add_to(Options& options);
  // Resolves lr_decay_iters and the fraction. Throws UsageError.
  void check(std::int64_t train_iters);
};

[[nodiscard]] double learning_rate(const LrScheduleOptions& schedule, std::int64_t step);

}  // namespace mt
