// Whole training runs on grids of ranks, with threads as ranks: the losses, the gradient norm and
// the weights at the end are those of one rank, bit for bit with --reduction tree.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "base/error.h"
#include "testing.h"
#include "training_job.h"

namespace mt {
namespace {

using testing::Job;
using testing::Training;
using testing::Words;

struct Trained {
  std::vector<Json> lines;                            // of --metrics
  std::map<std::string, std::vector<float>> weights;  // whole tensors, by name
};

// Puts this rank's part of the model where it belongs.
void take_weights(TrainingRun& run, std::map<std::string, std::vector<float>>& weights) {
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
  // 4 layers of width 24 and 4 heads, an inner width that 8 does not divide, 257 tokens.
  [[nodiscard]] Words model() const {
    return base() + Words{"--num-layers",       "4",  "--hidden-size",         "24",
                          "--ffn-hidden-size",  "44", "--num-attention-heads", "4",
                          "--train-iters",      "4",  "--global-batch-size",   "16",
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
    trained.lines = testing::read_metrics(file);
    return trained;
  }

  int runs_ = 0;
};

struct Grid {
  int tensor = 1, pipeline = 1, data = 1;
  Words more = {};
  [[nodiscard]] int ranks() const { return tensor * pipeline * data; }
  [[nodiscard]] Words words() const {
    return Words{"--tensor-model-parallel-size", std::to_string(tensor),
                 "--pipeline-model-parallel-size", std::to_string(pipeline)} +
           more;
  }
  [[nodiscard]] std::string name() const {
    std::string text = cat("tensor ", tensor, ", pipeline ", pipeline, ", data ", data);
    for (const std::string& word : more) text += " " + word;
    return text;
  }
};

// Each axis alone, then together.
std::vector<Grid> fast_grids() {
  return {{.tensor = 2},
          {.tensor = 4},
          {.pipeline = 2},
          {.pipeline = 2, .more = {"--pipeline-schedule", "gpipe"}},
          {.pipeline = 2, .more = {"--num-layers-per-virtual-pipeline-stage", "1"}},
          {.data = 2},
          {.data = 4, .more = {"--use-distributed-optimizer"}},
          {.tensor = 2, .pipeline = 2, .data = 2},
          {.tensor = 2, .pipeline = 2, .data = 2, .more = {"--use-distributed-optimizer"}}};
}

TEST_F(GridTraining, every_grid_trains_the_same_model) {
  const Trained one = train(1, {});
  ASSERT_EQ(one.lines.size(), 4U);
  for (const Grid& grid : fast_grids()) {
    const Trained cut = train(grid.ranks(), grid.words());
    ASSERT_EQ(cut.lines.size(), one.lines.size()) << grid.name();
    for (std::size_t i = 0; i < one.lines.size(); ++i) {
      // Sums of floats in another order.
      for (const char* key : {"loss", "grad_norm"}) {
        const double wanted = one.lines[i][key].get<double>();
        EXPECT_NEAR(cut.lines[i][key].get<double>(), wanted, 1e-5 * wanted)
            << grid.name() << ", " << key << " of step " << i + 1;
      }
    }
    ASSERT_EQ(cut.weights.size(), one.weights.size()) << grid.name();
    for (const auto& [name, wanted] : one.weights) {
      const std::vector<float>& found = cut.weights.at(name);
      ASSERT_EQ(found.size(), wanted.size()) << grid.name() << ", " << name;
      // AdamW turns a gradient near 0 into a step of either sign: a share of lr = 1e-2 a step.
      std::size_t far = 0;
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        if (std::abs(found[i] - wanted[i]) > 1e-4) ++far;
      }
      EXPECT_LE(far, wanted.size() / 100) << grid.name() << ", " << name;
    }
  }
}

// A pipeline alone cuts no sum: it changes no bit in either mode.
TEST_F(GridTraining, stages_change_no_bit) {
  const Trained one = train(1, {});
  for (const Grid& grid : fast_grids()) {
    if (grid.tensor * grid.data > 1) continue;
    const Trained cut = train(grid.ranks(), grid.words());
    for (std::size_t i = 0; i < one.lines.size(); ++i) {
      EXPECT_EQ(cut.lines[i]["loss"], one.lines[i]["loss"]) << grid.name();
      EXPECT_EQ(cut.lines[i]["grad_norm"], one.lines[i]["grad_norm"]) << grid.name();
    }
    for (const auto& [name, wanted] : one.weights) {
      expect_same_bits(wanted, cut.weights.at(name), cat(grid.name(), ", ", name));
    }
  }
}

}  // namespace
}  // namespace mt
