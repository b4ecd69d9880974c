// Learning rate as a pure function of the step: linear warm-up, then cosine, linear or constant to
// min_lr (Megatron-LM's rule: step k of 0, 1, 2, ... uses lr * k / warmup while k <= warmup, so
// step 0 does not move; from `decay` on, min_lr).
#pragma once

#include <cstdint>
#include <string>

#include "base/options.h"

namespace mt {

// What a run counts its length and its schedule in.
enum class RunUnit : std::uint8_t { kIterations, kSamples, kTokens };
// "iters", "samples", "tokens": the last word of the options that count in it.
[[nodiscard]] const char* unit_name(RunUnit unit);

struct LrScheduleOptions {
  // A length in each unit, of which a run uses one.
  struct Span {
    std::int64_t iters = 0, samples = 0, tokens = 0;
    [[nodiscard]] std::int64_t in(RunUnit unit) const;
    [[nodiscard]] std::int64_t& in(RunUnit unit);
    friend bool operator==(const Span&, const Span&) = default;
  };
  double lr = 0;
  double min_lr = 0;
  std::string lr_decay_style = "linear";  // constant, linear, cosine
  Span warmup;
  double lr_warmup_fraction = 0;        // of the decay; not together with a warm-up
  Span decay;                           // 0: the length of the run
  RunUnit unit = RunUnit::kIterations;  // set by check()

  void add_to(Options& options);
  // Resolves the decay and the fraction for a run of `length` in `unit`. Throws UsageError, also
  // for a span in another unit.
  void check(std::int64_t length, RunUnit unit = RunUnit::kIterations);
};

// step: iterations, samples or tokens before the iteration whose rate is asked for.
[[nodiscard]] double learning_rate(const LrScheduleOptions& schedule, std::int64_t step);

}  // namespace mt
