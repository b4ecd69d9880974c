#include "infer/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/philox.h"

namespace mt {
namespace {

constexpr double kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kSmallest = -700;  // e^x below is 0: no sum of probabilities sees it

double power_of_two(int n) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(n + 1023) << 52);
}

// By falling score, equal ones by rising id.
class Before {
 public:
  explicit Before(const std::vector<float>& scores) : scores_(scores) {}
  bool operator()(std::int32_t a, std::int32_t b) const {
    const float x = scores_[static_cast<std::size_t>(a)], y = scores_[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  }

 private:
  const std::vector<float>& scores_;
};

}  // namespace

double exp_of(double x) {
  if (x < kSmallest) return 0;
  // x = n ln 2 + r; the Taylor series of e^r for |r| <= ln 2 / 2.
  constexpr double kRound = 0x1.8p52;
  const double n = (x * 0x1.71547652b82fep0 + kRound) - kRound;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double y = 1.0 / 6227020800;  // 1 / 13!
  constexpr std::array<double, 13> kFactorials{
      479001600, 39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2, 1, 1};
  for (const double factorial : kFactorials) y = y * r + 1 / factorial;
  return y * power_of_two(static_cast<int>(n));
}

double log_of(double x) {
  // x = 2^n m with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh(s), s = (m - 1) / (m + 1).
  const auto bits = std::bit_cast<std::uint64_t>(x);
  int n = static_cast<int>(bits >> 52) - 1023;
  double m =
      std::bit_cast<double>((bits & ((std::uint64_t{1} << 52) - 1)) | (std::uint64_t{1023} << 52));
  if (m > 1.4142135623730951) {
    m /= 2;
    ++n;
  }
  const double s = (m - 1) / (m + 1), s2 = s * s;
  double y = 0;
  for (int k = 23; k >= 3; k -= 2) y = (y + 1.0 / k) * s2;
  return n * kLn2High + (n * kLn2Low + 2 * (s + s * y));
}

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
      throw UsageError(cat("--", name, " ", value, ": expected a number greater than 0"));
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

// Leaves in kept_ the ids that are not below the k-th largest score.
void Sampler::keep_top_k(std::int64_t k) {
  const auto more = std::greater<>();  // the heap's front is its smallest
  heap_.assign(scores_.begin(), scores_.begin() + k);
  std::make_heap(heap_.begin(), heap_.end(), more);
  for (auto score = scores_.begin() + k; score != scores_.end(); ++score) {
    if (*score <= heap_.front()) continue;
    std::pop_heap(heap_.begin(), heap_.end(), more);
    heap_.back() = *score;
    std::push_heap(heap_.begin(), heap_.end(), more);
  }
  kept_.clear();
  for (std::size_t id = 0; id < scores_.size(); ++id) {
    if (scores_[id] >= heap_.front()) kept_.push_back(static_cast<std::int32_t>(id));
  }
}

// kept_ are all that may come; leaves the most likely ones, in order.
void Sampler::keep_top_p(double p) {
  const Before before(scores_);
  const auto after = [&](std::int32_t a, std::int32_t b) { return before(b, a); };
  float largest = -std::numeric_limits<float>::infinity();
  for (const std::int32_t id : kept_) {
    largest = std::max(largest, scores_[static_cast<std::size_t>(id)]);
  }
  const auto weight = [&](std::int32_t id) {
    return exp_of(static_cast<double>(scores_[static_cast<std::size_t>(id)]) -
                  static_cast<double>(largest));
  };
  double total = 0;
  for (const std::int32_t id : kept_) total += weight(id);
  std::make_heap(kept_.begin(), kept_.end(), after);
  double sum = 0;
  auto end = kept_.end();
  while (end != kept_.begin() && sum < p * total) {
    std::pop_heap(kept_.begin(), end, after);
    --end;
    sum += weight(*end);
  }
  kept_.erase(kept_.begin(), end);
  std::reverse(kept_.begin(), kept_.end());
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
    for (float& score : scores_) score /= temperature;
  }
  // A temperature near 0 may leave the range of a float: the largest are infinite then, and equal.
  for (float& score : scores_) {
    score =
        std::clamp(score, std::numeric_limits<float>::lowest(), std::numeric_limits<float>::max());
  }
  const bool few = options.top_k > 0 && options.top_k < n;
  if (few) {
    keep_top_k(options.top_k);
  } else {
    kept_.resize(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < kept_.size(); ++i) kept_[i] = static_cast<std::int32_t>(i);
  }
  if (options.top_p > 0 && options.top_p < 1) {
    keep_top_p(options.top_p);
  } else if (few) {
    std::sort(kept_.begin(), kept_.end(), Before(scores_));
  }
  float largest = -std::numeric_limits<float>::infinity();
  for (const std::int32_t id : kept_) {
    largest = std::max(largest, scores_[static_cast<std::size_t>(id)]);
  }
  weights_.clear();
  double total = 0;
  for (const std::int32_t id : kept_) {
    weights_.push_back(exp_of(static_cast<double>(scores_[static_cast<std::size_t>(id)]) -
                              static_cast<double>(largest)));
    total += weights_.back();
  }
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    candidates_.push_back({kept_[i], weights_[i] / total});
  }
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
  const auto largest = static_cast<double>(*std::max_element(logits, logits + n));
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += exp_of(static_cast<double>(logits[i]) - largest);
  return static_cast<double>(logits[token]) - largest - log_of(sum);
}

}  // namespace mt
