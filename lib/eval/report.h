// Results of evaluations as text: JSON objects, a block of lines a result, and aligned lines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "eval/perplexity.h"
#include "eval/scores.h"

namespace mt {

// What a result was taken with.
struct ModelLabel {
  std::string directory;
  std::int64_t iteration = 0;
  std::string tokenizer;  // the digest, or "" if the model has none
  std::string precision;  // of the weights: "fp32", "bf16"
};

// One JSON object a result, without a newline. What has no finite value is null.
[[nodiscard]] std::string perplexity_json(const ModelLabel& model, const std::string& data,
                                          const EvalSettings& settings, const Perplexity& result);
[[nodiscard]] std::string totals_json(const ModelLabel& model, const std::string& data,
                                      const ScoreTotals& totals);
// The totals in words, for a log line.
[[nodiscard]] std::string totals_text(const ScoreTotals& totals);
// What a line of --scores gets as its answer.
[[nodiscard]] std::string score_json(const ScoreItem& item, const EncodedScore& encoded,
                                     const std::vector<OptionScore>& scores);

// A block of lines for people, each with a newline; "-" is what has no value.
[[nodiscard]] std::string perplexity_block(const ModelLabel& model, const std::string& data,
                                           const EvalSettings& settings, const Perplexity& result);

// Several results as aligned lines that can go out one by one: a heading, then a line a result.
class ResultLines {
 public:
  // All names that will come.
  ResultLines(const std::vector<std::string>& models, const std::vector<std::string>& data);
  [[nodiscard]] std::string heading() const;
  [[nodiscard]] std::string line(const std::string& model, std::int64_t iteration,
                                 const std::string& data, const Perplexity& result) const;

 private:
  std::size_t model_width_, data_width_;  // characters
};

}  // namespace mt
