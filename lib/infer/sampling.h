// From logits to the next token: a pure function of the logits, the tokens so far, the settings and
// a key. Every number is computed here in one fixed sequence of operations, so that a text is the
// same on every machine.
//
// In this order, as in Hugging Face's generation: repetition penalty (Keskar et al.,
// arXiv:1909.05858, section 4.1), temperature, top-k (Fan et al., arXiv:1805.04833, section 5.1),
// top-p (Holtzman et al., arXiv:1904.09751, section 3.1), softmax. Scores are f32 until the
// softmax, which is double.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "base/options.h"
#include "infer/exp_log.h"

namespace mt {

struct SamplingOptions {
  bool greedy = false;            // the most likely token, the lowest id of equals
  double temperature = 1;         // scores are divided by it
  std::int64_t top_k = 0;         // the k largest scores and what equals the k-th; 0: all
  double top_p = 0;               // the fewest most likely tokens that have p together; 0: all
  double repetition_penalty = 1;  // what came before: positive scores are divided by it, others
                                  // multiplied
  std::int64_t seed = 1234;

  void add_to(Options& options);
  // Takes the members that the JSON object has, by the names of the options with underscores.
  void take(const Json& object, const std::string& where);
  // Throws UsageError naming the option, its value and the range.
  void check() const;
};

struct Candidate {
  std::int32_t token = 0;
  double probability = 0;  // they sum to 1 but for rounding
};

class Sampler {
 public:
  // The tokens that may come next, in the order in which draw() goes through them: by falling
  // probability and rising id with top-k or top-p, else by id. logits [n] are finite. history: ids
  // that the penalty touches, each once however often it is there; ids of n and more are passed
  // over. Greedy settings leave one. The result is the sampler's until the next call.
  const std::vector<Candidate>& candidates(const float* logits, std::int64_t n,
                                           const std::vector<std::int32_t>& history,
                                           const SamplingOptions& options);
  // The token for sample number `sample` of a prompt at position `position`: candidates() and the
  // Philox number of (seed, sample, position).
  std::int32_t next(const float* logits, std::int64_t n, const std::vector<std::int32_t>& history,
                    const SamplingOptions& options, std::uint64_t sample, std::uint64_t position);

 private:
  void penalise(std::int64_t n, const std::vector<std::int32_t>& history, float penalty);
  void divide(float temperature);
  void keep_top_k(std::int64_t k);
  void keep_from(float smallest);
  void sort_kept();
  void weigh_kept(float largest);
  void keep_top_p(double p, double total, float largest);

  std::vector<float> scores_;
  std::vector<std::int32_t> kept_;  // ids
  bool in_order_ = false;           // whether they rise
  std::vector<float> heap_, kept_scores_;
  std::vector<std::uint64_t> keys_, other_keys_;
  std::vector<double> weights_;
  std::vector<Candidate> candidates_;
};

// The first candidate at which the sum of probabilities exceeds u of [0, 1).
[[nodiscard]] std::int32_t draw(const std::vector<Candidate>& candidates, double u);
// A number of [0, 1) with 53 bits.
[[nodiscard]] double sampling_number(std::int64_t seed, std::uint64_t sample,
                                     std::uint64_t position);

// log softmax(logits)[token], without any of the settings.
[[nodiscard]] double log_probability(const float* logits, std::int64_t n, std::int32_t token);

}  // namespace mt
