#include "data/blend.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"

namespace mt {
namespace {

std::optional<double> number(const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range && after == end) return 0;  // such as 1e-999
  if (error != std::errc() || after != end) return std::nullopt;
  return value;
}

std::vector<double> weights_of(const std::vector<BlendedData::Source>& sources) {
  std::vector<double> weights;
  for (const auto& source : sources) weights.push_back(source.weight);
  return weights;
}

}  // namespace

Blend::Blend(const std::vector<double>& weights) : shares_(weights) {
  if (weights.empty()) throw UsageError("a blend of no data");
  double sum = 0;
  for (const double weight : weights) {
    if (!(weight > 0) || !std::isfinite(weight)) {
      throw UsageError(cat("a weight of ", weight, " in a blend: expected a number above 0"));
    }
    sum += weight;
  }
  if (!std::isfinite(sum)) throw UsageError("the weights of a blend have no finite sum");
  for (double& share : shares_) {
    share /= sum;
    if (!(share > 0)) {
      throw UsageError("a weight of a blend is nothing beside the others");
    }
  }
}

BlendPosition Blend::start() const {
  return {.consumed = std::vector<std::int64_t>(shares_.size(), 0),
          .since = std::vector<std::int64_t>(shares_.size(), 0)};
}

SamplePlace Blend::next(BlendPosition& position) const {
  MT_ASSERT(position.consumed.size() == shares_.size() && position.since.size() == shares_.size());
  std::size_t chosen = 0;
  if (shares_.size() > 1) {
    const std::int64_t before =
        std::accumulate(position.since.begin(), position.since.end(), std::int64_t{0});
    const auto n = static_cast<double>(before + 1);
    const double slack = 1.0 / (2.0 * static_cast<double>(shares_.size()) - 2.0);
    double earliest = std::numeric_limits<double>::infinity();
    double largest = -std::numeric_limits<double>::infinity();
    std::size_t most = 0;
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      const double due = shares_[i] * n - static_cast<double>(position.since[i]);
      if (due > largest) {
        largest = due;
        most = i;
      }
      if (due < slack) continue;
      const double late = (1 - slack - due) / shares_[i];
      if (late < earliest) {
        earliest = late;
        chosen = i;
      }
    }
    // Rounding alone could leave nobody due.
    if (std::isinf(earliest)) chosen = most;
  }
  ++position.since[chosen];
  return {.source = static_cast<std::int64_t>(chosen), .index = position.consumed[chosen]++};
}

BlendedData::BlendedData(std::vector<Source> sources)
    : sources_(std::move(sources)), blend_(weights_of(sources_)) {}

void BlendedData::sample(const SamplePlace& place, std::int32_t* tokens) const {
  sources_.at(static_cast<std::size_t>(place.source)).data.sample(place.index, tokens);
}

std::int64_t BlendedData::ordered_samples() const {
  std::int64_t sum = 0;
  for (const Source& source : sources_) sum += source.data.ordered_samples();
  return sum;
}

void BlendedData::ordered_sample(std::int64_t i, std::int32_t* tokens) const {
  for (const Source& source : sources_) {
    const std::int64_t here = source.data.ordered_samples();
    if (i < here) return source.data.ordered_sample(i, tokens);
    i -= here;
  }
  MT_ASSERT(!"beyond the last window");
}

void BlendedData::Reader::sample(std::int64_t i, std::int32_t* tokens) {
  if (i != next_) {
    position_ = data_->blend().start();
    for (next_ = 0; next_ < i; ++next_) static_cast<void>(data_->blend().next(position_));
  }
  data_->sample(data_->blend().next(position_), tokens);
  ++next_;
}

std::vector<WeightedPath> parse_blend(const std::vector<std::string>& words,
                                      const std::string& option) {
  std::vector<WeightedPath> parts;
  const bool weighted = words.size() > 1 && number(words.front()).has_value();
  if (!weighted) {
    for (const std::string& word : words) parts.push_back({.weight = 1, .path = word});
    return parts;
  }
  if (words.size() % 2 != 0) {
    throw UsageError(cat("--", option, ": begins with a weight, but ", words.size(),
                         " words are no pairs of a weight and a token shard"));
  }
  for (std::size_t i = 0; i < words.size(); i += 2) {
    const std::optional<double> weight = number(words[i]);
    if (!weight || !(*weight > 0) || !std::isfinite(*weight)) {
      throw UsageError(cat("--", option, ": expected a weight above 0 before ", words[i + 1],
                           ", found ", words[i]));
    }
    parts.push_back({.weight = *weight, .path = words[i + 1]});
  }
  return parts;
}

}  // namespace mt
