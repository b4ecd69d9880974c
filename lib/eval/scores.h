// Likelihoods of continuations after contexts: the loop over a file of such lines
// (eval/score_lines.h). What a question's options share is computed once, and lines are computed
// together, packed without padding: a score is the same bits in any company.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "eval/score_lines.h"
#include "model/inference_model.h"

namespace mt {

struct ScoreSettings {
  std::int64_t rows = 8192;  // positions computed at once, or one line if it has more
  // A question of more positions is computed in parts, with the shared prefix in each.
  std::int64_t most_rows = std::int64_t{1} << 15;
  LongContext long_context = LongContext::kCut;
};

struct OptionScore {
  double logprob = 0;       // nats, the sum over the continuation's tokens
  std::int64_t tokens = 0;  // scored
  std::int64_t bytes = 0, characters = 0;
  bool is_greedy = true;  // each of its tokens is the most likely one
};

// By what a likelihood is divided before options are compared.
enum class Normalisation { kNone, kToken, kByte, kCharacter };
constexpr std::size_t kNormalisations = 4;
[[nodiscard]] double normalised(const OptionScore& score, Normalisation by);
// The best option, the first of equals.
[[nodiscard]] std::int64_t best_option(const std::vector<OptionScore>& options, Normalisation by);

struct ScoreTotals {
  std::int64_t pairs = 0, questions = 0;
  std::int64_t options = 0;  // scores given: pairs, and the options of all questions
  std::int64_t greedy = 0;   // of them
  std::int64_t tokens_scored = 0;
  double logprob = 0;                             // of all scores, in order
  std::int64_t contexts_cut = 0, tokens_cut = 0;  // lines, and tokens off their left
  std::int64_t empty_contexts = 0;                // lines that began with end-of-text
  std::int64_t answered = 0;                      // questions with an answer
  std::array<std::int64_t, kNormalisations> correct{};
  // Positions that went through the model; those of each line's context once (but for its last
  // token) and of its continuations; those that every option for itself would take.
  std::int64_t tokens_computed = 0, tokens_needed = 0, tokens_unshared = 0;
};

// Called for each line in order, once.
using ScoreSink =
    std::function<void(const ScoreItem&, const EncodedScore&, const std::vector<OptionScore>&)>;

// Streams the file, "-" for stdin, plain, zstd or gzip: memory does not grow with its length.
// Throws DataError naming file and line for a bad line, after the lines before it have gone to the
// sink, EnvironmentError, NumericError for a likelihood that is not finite.
[[nodiscard]] ScoreTotals evaluate_scores(InferenceModel& model, Tokenizer& tokenizer,
                                          const std::string& path, const ScoreSettings& settings,
                                          const ScoreSink& sink);

}  // namespace mt
