// A small GPT on a grid of threads whose gradients are made up: functions of the tensor's name, the
// global place of an element, and the rank of the data axis. So what a grid makes of them can be
// told without a model's arithmetic.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "comm/grid.h"
#include "optim/adam.h"
#include "tensor/ops.h"
#include "testing.h"
#include "train/gradient_sync.h"
#include "train/pipeline.h"

namespace mt::testing {

inline ModelConfig grid_config() {
  ModelConfig config;
  config.num_layers = 4;
  config.hidden_size = 12;
  config.num_attention_heads = 6;
  config.ffn_hidden_size = 30;
  config.max_position_embeddings = 7;
  config.vocab_size = 29;  // divided by nothing
  config.init_method_std = 0.3;
  config.check();
  return config;
}

// This rank's part of the model.
struct GridRank {
  GridRank(const Communicator& world, const GridShape& shape, const ModelConfig& config,
           int chunks = 1)
      : grid(world, shape) {
    const ScheduleShape schedule{.stages = grid.shape().pipeline, .chunks = chunks};
    for (int chunk = 0; chunk < chunks; ++chunk) {
      stages.push_back(std::make_unique<GptStage>(
          config, chunk_range(config.num_layers, schedule, grid.place().pipeline, chunk),
          grid.tensor(), pool, Use::kTraining));
      stages.back()->initialize(4);
      pointers.push_back(stages.back().get());
    }
  }

  Pool pool{cpu_device("", 1)};
  ProcessGrid grid;
  std::vector<std::unique_ptr<GptStage>> stages;
  std::vector<GptStage*> pointers;
};

// A number for an element. As whole numbers their sums are exact, so that grids of any shape agree;
// as fractions the order of a sum shows.
enum class Numbers { kWhole, kFractions };
inline float made_up(Numbers numbers, const std::string& name, std::int64_t element, int part) {
  const std::string key = cat(name, ' ', element, ' ', part);
  const std::uint64_t bits = xxh3_128(key.data(), key.size()).low;
  const auto whole = static_cast<float>(static_cast<int>(bits % 17) - 8);
  return numbers == Numbers::kWhole ? whole : whole / 7 + static_cast<float>(bits >> 40) * 1e-6F;
}

// f(index in the parameter, segment, index in the global tensor) for each element.
template <typename F>
void for_each_element(const Parameter& parameter, const F& f) {
  for (const Segment& segment : parameter.segments) {
    const bool matrix = segment.extent.size() == 2;
    const std::int64_t columns = matrix ? segment.extent[1] : 1;
    const std::int64_t width = matrix ? segment.global_shape[1] : 1;
    const std::int64_t from = matrix ? segment.offset[1] : 0;
    for (std::int64_t i = 0; i < segment.extent[0] * columns; ++i) {
      f(segment.row * columns + i, segment,
        (segment.offset[0] + i / columns) * width + from + i % columns);
    }
  }
}

// What a whole model has, by name: of every element, from whichever ranks put it here; those who
// put the same element must agree in every bit.
class Gathered {
 public:
  void put(const Parameter& parameter, const Tensor& values) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::vector<float> numbers = values_of(values);
    for_each_element(parameter, [&](std::int64_t i, const Segment& segment, std::int64_t element) {
      auto& whole = tensors_[segment.name];
      whole.resize(static_cast<std::size_t>(element_count(segment.global_shape)), kAbsent);
      float& here = whole[static_cast<std::size_t>(element)];
      const float found = numbers[static_cast<std::size_t>(i)];
      if (here != kAbsent && here != found) {
        ADD_FAILURE() << segment.name << ", element " << element << ": " << here << " and "
                      << found;
      }
      here = found;
    });
  }
  [[nodiscard]] const std::map<std::string, std::vector<float>>& tensors() const {
    return tensors_;
  }

 private:
  static constexpr float kAbsent = -12345.678F;
  std::mutex mutex_;
  std::map<std::string, std::vector<float>> tensors_;
};

inline void expect_same(const Gathered& a, const Gathered& b, const std::string& what) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size()) << what;
  for (const auto& [name, values] : a.tensors()) {
    ASSERT_TRUE(b.tensors().contains(name)) << what << ": " << name;
    expect_same_bits(values, b.tensors().at(name), what + ": " + name);
  }
}

}  // namespace mt::testing
