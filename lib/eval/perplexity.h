// Perplexity of a stream of tokens in overlapping windows, by the rule of Megatron-LM's zero-shot
// evaluation (Shoeybi et al., arXiv:1909.08053, appendix E; --overlapping-eval): windows of s
// targets advance by a stride; the first counts all its targets, a later one only its last
// `stride`, so that each token but the first is counted once, with as much context as the window
// gives.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "eval/token_source.h"
#include "model/inference_model.h"

namespace mt {

struct EvalSettings {
  std::int64_t seq_length = 0;        // targets a window; 0: the model's positions
  std::int64_t overlapping_eval = 0;  // the stride in tokens; 0: seq_length, no overlap
  std::int64_t micro_batch_size = 8;  // windows at once; no influence on the numbers

  // Resolves the zeros. Throws UsageError: sizes out of range, a window of more than `positions`.
  void check(std::int64_t positions);
};

// A window of the stream: inputs [start, start + length), targets one further, of which the last
// `counted` count.
struct EvalWindow {
  std::int64_t start = 0, length = 0, counted = 0;
};
// Window i of a stream of `tokens` tokens. counted is 0 when there is none.
[[nodiscard]] EvalWindow eval_window(std::int64_t i, std::int64_t tokens,
                                     const EvalSettings& settings);

struct Perplexity {
  std::int64_t windows = 0;
  std::int64_t targets = 0;  // tokens counted: all but the first
  double nll = 0;            // nats, their sum
  TokenSource::Counts counts;
  // exp(nll / units); infinite where that is beyond double, not a number without units.
  [[nodiscard]] double per_token() const;
  [[nodiscard]] double per_word() const;
  [[nodiscard]] double per_byte() const;
  [[nodiscard]] double bits_per_byte() const;
};

// Called for each counted token in order: its position in the stream, its id, its negative
// log-likelihood in nats.
using TokenSink = std::function<void(std::int64_t, std::int32_t, float)>;

// Settings must have been checked. Throws DataError for a stream of fewer than two tokens and
// NumericError for a likelihood that is not finite, naming the position.
[[nodiscard]] Perplexity evaluate_perplexity(InferenceModel& model, TokenSource& source,
                                             const EvalSettings& settings, const TokenSink& sink);

}  // namespace mt
