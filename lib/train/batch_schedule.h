// How many samples an iteration takes and when a run ends, as pure functions of what was consumed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optim/lr_schedule.h"

namespace mt {

// Megatron-LM's --rampup-batch-size START INCREMENT SAMPLES: the global batch grows from START by
// INCREMENT, in equal shares of the first SAMPLES samples (Smith et al., arXiv:2201.11990, section
// 3.1). No ramp: start is 0.
struct BatchRamp {
  std::int64_t start = 0, increment = 0, samples = 0;
  friend bool operator==(const BatchRamp&, const BatchRamp&) = default;

  // Throws UsageError for words that are no ramp to `global` in multiples of `micro`, with the
  // arithmetic. No words: no ramp.
  [[nodiscard]] static BatchRamp parse(const std::vector<std::string>& words, std::int64_t global,
                                       std::int64_t micro);
};

// The batch after `consumed` samples.
[[nodiscard]] std::int64_t batch_size_at(const BatchRamp& ramp, std::int64_t global,
                                         std::int64_t consumed);

// --train-iters, --train-samples or --train-tokens: exactly one is above 0 once it is checked. A
// run by samples or tokens ends with the last whole batch.
struct RunLength {
  std::int64_t iters = 0, samples = 0, tokens = 0;
  friend bool operator==(const RunLength&, const RunLength&) = default;

  [[nodiscard]] RunUnit unit() const;
  [[nodiscard]] std::int64_t in_unit() const;
  // Throws UsageError for none, several, negative ones, or less than one batch of `first` samples
  // of `sequence` tokens.
  void check(std::int64_t first, std::int64_t sequence) const;
  // True if no iteration of `batch` samples follows.
  [[nodiscard]] bool finished(std::int64_t iteration, std::int64_t consumed, std::int64_t batch,
                              std::int64_t sequence) const;
  // What learning_rate() takes.
  [[nodiscard]] std::int64_t step(std::int64_t iteration, std::int64_t consumed,
                                  std::int64_t sequence) const;
};

}  // namespace mt
