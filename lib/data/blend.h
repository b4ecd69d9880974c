// Which of several data sets the next sample comes from, so that every prefix of a run has the
// asked proportions within one sample. Nothing is precomputed: the state is a count a source.
//
// The rule is Tijdeman's ("The chairman assignment problem", Discrete Mathematics 32, 1980): of the
// sources whose share is due, the one that would be late first. It keeps
// |taken - weight * samples| <= 1 - 1 / (2 k - 2) for k sources, which taking the largest remainder
// does not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/gpt_batches.h"

namespace mt {

// A sample of a blend: sample `index` of source `source`.
struct SamplePlace {
  std::int64_t source = 0, index = 0;
  friend bool operator==(const SamplePlace&, const SamplePlace&) = default;
};

// How far a run has read in a blend.
struct BlendPosition {
  std::vector<std::int64_t> consumed;  // samples of each source since the run began
  std::vector<std::int64_t> since;     // of them, since the weights are what they are
};

class Blend {
 public:
  // weights: finite, above 0, in any unit. Throws UsageError for others, and for none at all.
  explicit Blend(const std::vector<double>& weights);
  [[nodiscard]] std::int64_t sources() const { return static_cast<std::int64_t>(shares_.size()); }
  // Of all samples; they sum to 1.
  [[nodiscard]] double share(std::int64_t source) const {
    return shares_[static_cast<std::size_t>(source)];
  }
  [[nodiscard]] BlendPosition start() const;
  // The next sample, which is counted in `position`. Time is linear in the number of sources.
  [[nodiscard]] SamplePlace next(BlendPosition& position) const;

 private:
  std::vector<double> shares_;
};

// Several data sets as one.
class BlendedData {
 public:
  struct Source {
    GptDataset data;
    double weight = 1;
    std::string name;  // "FILE"
  };
  explicit BlendedData(std::vector<Source> sources);

  [[nodiscard]] const Blend& blend() const { return blend_; }
  [[nodiscard]] const std::vector<Source>& sources() const { return sources_; }
  void sample(const SamplePlace& place, std::int32_t* tokens) const;
  // All windows of all sources in stored order (GptDataset::ordered_sample), one source after the
  // other.
  [[nodiscard]] std::int64_t ordered_samples() const;
  void ordered_sample(std::int64_t i, std::int32_t* tokens) const;
  // Sample i of the blend's own order from its start, for calls with i = 0, 1, 2, ... (another i
  // goes through the order from the start again).
  class Reader {
   public:
    explicit Reader(const BlendedData& data) : data_(&data), position_(data.blend().start()) {}
    void sample(std::int64_t i, std::int32_t* tokens);

   private:
    const BlendedData* data_;
    BlendPosition position_;
    std::int64_t next_ = 0;
  };

 private:
  std::vector<Source> sources_;
  Blend blend_;
};

// What --data-path and its like may hold: one path, or weights and paths in turn ("0.3 a 0.7 b"),
// or several paths without weights, which then weigh the same. Throws UsageError naming the option.
struct WeightedPath {
  double weight = 1;
  std::string path;
};
[[nodiscard]] std::vector<WeightedPath> parse_blend(const std::vector<std::string>& words,
                                                    const std::string& option);

}  // namespace mt
