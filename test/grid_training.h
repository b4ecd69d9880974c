// Whole training runs on grids of ranks, with threads as ranks.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "testing.h"
#include "training_job.h"

namespace mt::testing {

struct Trained {
  std::vector<Json> lines;                            // of --metrics
  std::map<std::string, std::vector<float>> weights;  // whole tensors, by name
};

// Puts this rank's part of the model where it belongs.
inline void take_weights(TrainingRun& run, std::map<std::string, std::vector<float>>& weights) {
  for (const Parameter* parameter : run.parameters()) {
    for (const Segment& segment : parameter->segments) {
      const std::vector<float> part = values_of(segment_rows(parameter->value, segment));
      const bool matrix = segment.global_shape.size() == 2;
      const auto columns = static_cast<std::size_t>(segment.global_shape.back());
      const auto rows = static_cast<std::size_t>(matrix ? segment.global_shape[0] : 1);
      const auto part_columns = static_cast<std::size_t>(segment.extent.back());
      const auto part_rows = static_cast<std::size_t>(matrix ? segment.extent[0] : 1);
      const auto first_row = static_cast<std::size_t>(matrix ? segment.offset[0] : 0);
      const auto first_column = static_cast<std::size_t>(segment.offset.back());
      std::vector<float>& whole = weights[segment.name];
      whole.resize(rows * columns);
      for (std::size_t i = 0; i < part_rows; ++i) {
        std::copy_n(
            part.begin() + static_cast<std::ptrdiff_t>(i * part_columns), part_columns,
            whole.begin() + static_cast<std::ptrdiff_t>((first_row + i) * columns + first_column));
      }
    }
  }
}

class GridTraining : public Training {
 protected:
  // 8 layers of width 24 with 8 heads, 257 tokens (an odd number), samples of 16 positions; 3 steps
  // of 16 samples, with dropout.
  [[nodiscard]] Words model() const {
    return base() + Words{"--num-layers",       "8",  "--hidden-size",         "24",
                          "--ffn-hidden-size",  "40", "--num-attention-heads", "8",
                          "--train-iters",      "3",  "--global-batch-size",   "16",
                          "--micro-batch-size", "1"};
  }
  Trained train(int ranks, const Words& words, int threads = 1) {
    Trained trained;
    std::mutex mutex;
    const std::string file = scratch_ / cat("metrics", ++runs_, ".jsonl");
    run_local_ranks(ranks, [&](const Communicator& world) {
      Job job(model() + words + Words{"--metrics", file}, threads);
      const int status = job.run_on(world, [&](TrainingRun& run) {
        const std::lock_guard<std::mutex> lock(mutex);
        take_weights(run, trained.weights);
      });
      EXPECT_EQ(status, 0);
    });
    trained.lines = read_metrics(file);
    return trained;
  }

  int runs_ = 0;
};

}  // namespace mt::testing
