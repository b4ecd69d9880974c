#include "infer/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/philox.h"

namespace mt {
namespace {

float largest_of(const float* scores, std::size_t n) {
  // Several at a time: comparisons one after the other would wait for each other.
  constexpr std::size_t kLanes = 16;
  float most[kLanes];
  std::fill(most, most + kLanes, scores[0]);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) {
      most[j] = scores[i + j] > most[j] ? scores[i + j] : most[j];
    }
  }
  for (; i < n; ++i) most[0] = std::max(most[0], scores[i]);
  return *std::max_element(most, most + kLanes);
}

// Added one after the other, as the definition of a probability has it.
double sum_of(const std::vector<double>& weights) {
  double sum = 0;
  for (const double weight : weights) sum += weight;
  return sum;
}

// A word that rises as a score falls; equal scores, the zeros of both signs among them, have equal
// words.
std::uint32_t falling(float score) {
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0F);
  return bits >> 31 != 0 ? bits : ~bits & 0x7FFFFFFFU;
}

}  // namespace

void SamplingOptions::add_to(Options& options) {
  options.add("greedy", &greedy, "take the most likely token each time, the lowest id of equals");
  options.add("temperature", &temperature, "F", "divide the logits by F, greater than 0");
  options.add("top-k", &top_k, "N", "draw from the N most likely tokens; 0 from all");
  options.add(
      "top-p", &top_p, "F",
      "draw from the fewest most likely tokens that have probability F together; 0 from all");
  options.add("repetition-penalty", &repetition_penalty, "F",
              "make what the text holds less likely: positive logits are divided by F, others "
              "multiplied; 1 changes nothing");
  options.add(
      "seed", &seed, "N",
      "key of the random numbers; a text depends on it, its prompt and its number among the "
      "samples of the prompt");
  options.add_alias("random-seed", "seed");
}

void SamplingOptions::take(const Json& object, const std::string& where) {
  const auto has = [&](const char* key) { return object.contains(key); };
  if (has("greedy")) greedy = json_bool(object, "greedy", where);
  if (has("temperature")) temperature = json_number(object, "temperature", where);
  if (has("top_k")) top_k = json_int(object, "top_k", where);
  if (has("top_p")) top_p = json_number(object, "top_p", where);
  if (has("repetition_penalty")) {
    repetition_penalty = json_number(object, "repetition_penalty", where);
  }
  if (has("seed")) seed = json_int(object, "seed", where);
}

void SamplingOptions::check() const {
  const auto positive = [](const char* name, double value) {
    const auto narrow = static_cast<float>(value);
    if (!(narrow > 0) || !std::isfinite(narrow)) {
      throw UsageError(
          cat("--", name, " ", value, ": expected a number greater than 0 in a float's range"));
    }
  };
  positive("temperature", temperature);
  positive("repetition-penalty", repetition_penalty);
  if (top_k < 0) throw UsageError(cat("--top-k ", top_k, ": expected 0 or more"));
  if (!(top_p >= 0 && top_p <= 1)) {
    throw UsageError(cat("--top-p ", top_p, ": expected 0 to 1"));
  }
  if (seed < 0 || seed > std::numeric_limits<std::uint32_t>::max()) {
    throw UsageError(cat("--seed ", seed, ": expected 0 to 4294967295"));
  }
}

void Sampler::penalise(std::int64_t n, const std::vector<std::int32_t>& history, float penalty) {
  if (penalty == 1) return;
  kept_.assign(history.begin(), history.end());
  std::sort(kept_.begin(), kept_.end());
  kept_.erase(std::unique(kept_.begin(), kept_.end()), kept_.end());
  for (const std::int32_t id : kept_) {
    if (id < 0 || id >= n) continue;
    float& score = scores_[static_cast<std::size_t>(id)];
    score = score < 0 ? score * penalty : score / penalty;
  }
}

void Sampler::divide(float temperature) {
  const auto [least, most] = std::minmax_element(scores_.begin(), scores_.end());
  const float low = *least / temperature, high = *most / temperature;
  // Near 0 the quotients leave the range of a float, and what was unequal would become equal: the
  // distances from the largest are divided then.
  const float base = std::isfinite(low) && std::isfinite(high) ? 0.0F : *most;
  for (float& score : scores_) score = (score - base) / temperature;
}

// Leaves in kept_ the ids that are not below the k-th largest score, rising.
void Sampler::keep_top_k(std::int64_t k) {
  constexpr std::int64_t kFew = 500;
  const auto more = std::greater<>();  // the heap's front is its smallest
  if (k > kFew) {
    heap_ = scores_;
    std::nth_element(heap_.begin(), heap_.begin() + (k - 1), heap_.end(), more);
    return keep_from(heap_[static_cast<std::size_t>(k - 1)]);
  }
  heap_.assign(scores_.begin(), scores_.begin() + k);
  std::make_heap(heap_.begin(), heap_.end(), more);
  for (auto score = scores_.begin() + k; score != scores_.end(); ++score) {
    if (*score <= heap_.front()) continue;
    std::pop_heap(heap_.begin(), heap_.end(), more);
    heap_.back() = *score;
    std::push_heap(heap_.begin(), heap_.end(), more);
  }
  keep_from(heap_.front());
}

void Sampler::keep_from(float smallest) {
  kept_.clear();
  for (std::size_t id = 0; id < scores_.size(); ++id) {
    if (scores_[id] >= smallest) kept_.push_back(static_cast<std::int32_t>(id));
  }
}

// Orders kept_, which rise, by falling score and equal ones by rising id: digits from the lowest to
// the highest, each in the order of the one before.
void Sampler::sort_kept() {
  in_order_ = false;
  constexpr int kDigit = 11;
  constexpr std::size_t kValues = std::size_t{1} << kDigit;
  keys_.resize(kept_.size());
  other_keys_.resize(kept_.size());
  std::array<std::array<std::uint32_t, kValues>, 3> place{};
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    const std::uint32_t word = falling(scores_[static_cast<std::size_t>(kept_[i])]);
    keys_[i] = std::uint64_t{word} << 32 | static_cast<std::uint32_t>(kept_[i]);
    for (std::size_t d = 0; d < place.size(); ++d) ++place[d][word >> (kDigit * d) & (kValues - 1)];
  }
  for (std::size_t d = 0; d < place.size(); ++d) {
    std::uint32_t before = 0;
    for (std::uint32_t& count : place[d]) before += std::exchange(count, before);
    std::uint32_t* const next = place[d].data();
    std::uint64_t* const sorted = other_keys_.data();
    for (const std::uint64_t key : keys_) {
      sorted[next[key >> (32 + kDigit * d) & (kValues - 1)]++] = key;
    }
    keys_.swap(other_keys_);
  }
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    kept_[i] = static_cast<std::int32_t>(keys_[i] & 0xFFFFFFFFU);
  }
}

// weights_ become those of kept_, whose largest score is `largest`.
void Sampler::weigh_kept(float largest) {
  weights_.resize(kept_.size());
  const float* of = scores_.data();
  if (kept_.size() < scores_.size() || !in_order_) {
    kept_scores_.resize(kept_.size());
    std::transform(kept_.begin(), kept_.end(), kept_scores_.begin(),
                   [of](std::int32_t id) { return of[id]; });
    of = kept_scores_.data();
  }
  exps_below(of, kept_.size(), static_cast<double>(largest), weights_.data());
}

// kept_ are all that may come, with their weights_; leaves the most likely ones, in order, that
// have p of `total` together.
void Sampler::keep_top_p(double p, double total, float largest) {
  // By sixteenths below the largest: what lies beyond more than enough needs no order. A sum in
  // another order differs by far less than the margin.
  constexpr double kMargin = 1e-9;
  std::array<double, 512> part{};
  const auto part_of = [&, scores = scores_.data()](std::int32_t id) {
    const float below = (largest - scores[id]) * 16;
    return below < static_cast<float>(part.size() - 1) ? static_cast<std::size_t>(below)
                                                       : part.size() - 1;
  };
  const double* weight = weights_.data();
  for (const std::int32_t id : kept_) part[part_of(id)] += *weight++;
  std::size_t parts = 0;
  for (double sum = 0; parts < part.size() && sum < p * total * (1 + kMargin); ++parts) {
    sum += part[parts];
  }
  std::erase_if(kept_, [&](std::int32_t id) { return part_of(id) >= parts; });
  sort_kept();
  weigh_kept(largest);
  std::size_t count = 0;
  for (double sum = 0; count < kept_.size() && sum < p * total; ++count) sum += weights_[count];
  kept_.resize(count);
  weights_.resize(count);
}

const std::vector<Candidate>& Sampler::candidates(const float* logits, std::int64_t n,
                                                  const std::vector<std::int32_t>& history,
                                                  const SamplingOptions& options) {
  MT_ASSERT(n > 0);
  scores_.assign(logits, logits + n);
  penalise(n, history, static_cast<float>(options.repetition_penalty));
  candidates_.clear();
  if (options.greedy) {
    const auto best = std::max_element(scores_.begin(), scores_.end());
    candidates_.push_back({static_cast<std::int32_t>(best - scores_.begin()), 1.0});
    return candidates_;
  }
  if (const auto temperature = static_cast<float>(options.temperature); temperature != 1) {
    divide(temperature);
  }
  // The penalty may leave the range of a float.
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (float& score : scores_) {
    const float at_most = score > kLargest ? kLargest : score;
    score = at_most < -kLargest ? -kLargest : at_most;
  }
  const bool few = options.top_k > 0 && options.top_k < n;
  if (few) {
    keep_top_k(options.top_k);
  } else {
    in_order_ = true;
    kept_.resize(static_cast<std::size_t>(n));
    std::iota(kept_.begin(), kept_.end(), 0);
  }
  const bool nucleus = options.top_p > 0 && options.top_p < 1;
  if (few && !nucleus) sort_kept();
  // No filter leaves out the largest.
  const float largest = largest_of(scores_.data(), scores_.size());
  weigh_kept(largest);
  if (nucleus) keep_top_p(options.top_p, sum_of(weights_), largest);
  const double total = sum_of(weights_);
  candidates_.resize(kept_.size());
  for (std::size_t i = 0; i < kept_.size(); ++i) candidates_[i] = {kept_[i], weights_[i] / total};
  return candidates_;
}

double sampling_number(std::int64_t seed, std::uint64_t sample, std::uint64_t position) {
  const PhiloxBlock block =
      philox4x32_10(philox_counter(sample, 0, 0, position), static_cast<std::uint32_t>(seed),
                    static_cast<std::uint32_t>(RandomStream::kSampling));
  const std::uint64_t bits = (std::uint64_t{block[0]} << 32) | block[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

std::int32_t draw(const std::vector<Candidate>& candidates, double u) {
  double sum = 0;
  std::int32_t last = candidates.front().token;
  for (const Candidate& candidate : candidates) {
    if (candidate.probability <= 0) continue;
    sum += candidate.probability;
    last = candidate.token;
    if (sum > u) break;
  }
  return last;  // rounding may leave the sum below 1
}

std::int32_t Sampler::next(const float* logits, std::int64_t n,
                           const std::vector<std::int32_t>& history, const SamplingOptions& options,
                           std::uint64_t sample, std::uint64_t position) {
  const std::vector<Candidate>& from = candidates(logits, n, history, options);
  if (options.greedy) return from.front().token;
  return draw(from, sampling_number(options.seed, sample, position));
}

double log_probability(const float* logits, std::int64_t n, std::int32_t token) {
  const auto count = static_cast<std::size_t>(n);
  const auto largest = static_cast<double>(largest_of(logits, count));
  std::array<double, 512> weights{};
  double sum = 0;
  for (std::size_t begin = 0; begin < count; begin += weights.size()) {
    const std::size_t some = std::min(weights.size(), count - begin);
    exps_below(logits + begin, some, largest, weights.data());
    for (std::size_t i = 0; i < some; ++i) sum += weights[i];
  }
  return static_cast<double>(logits[token]) - largest - log_of(sum);
}

}  // namespace mt
