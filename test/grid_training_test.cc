// Whole training runs on grids of ranks, with threads as ranks: the losses, the gradient norm and
// the weights at the end are those of one rank, bit for bit with --reduction tree.
#include <gtest/gtest.h>

#include <cmath>

#include "grid_training.h"

namespace mt {
namespace {

using testing::GridTraining;
using testing::Trained;
using testing::Words;

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
  ASSERT_EQ(one.lines.size(), 3U);
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

// One bit of one rank's copy: found at the interval and at the save, named with tensor and rank.
TEST_F(GridTraining, replicas_that_differ_end_the_run) {
  const Grid grid{.tensor = 2, .data = 2};
  const auto message = [&](const Words& more) -> std::string {
    try {
      run_local_ranks(grid.ranks(), [&](const Communicator& world) {
        testing::Job job(model() + grid.words() + more, 1);
        (void)job.run_on(
            world, [](TrainingRun&) {},
            [&](TrainingRun& run) {
              if (world.rank() != 2) return;
              for (Parameter* parameter : run.parameters()) {
                if (parameter->segments[0].name == "layers.3.mlp.dense_h_to_4h.weight") {
                  parameter->value.as<float>()[7] += 0.5F;
                }
              }
            });
      });
    } catch (const NumericError& error) {
      return error.what();
    }
    return "";
  };
  for (const Words& more : {Words{"--check-replicas-interval", "2"}, saving("spoiled")}) {
    const std::string found = message(more);
    EXPECT_NE(found.find("layers.3.mlp.dense_h_to_4h.weight"), std::string::npos) << found;
    EXPECT_NE(found.find("rank"), std::string::npos) << found;
    EXPECT_NE(found.find(more[0] == "--save" ? "iteration 3: " : "iteration 2: "),
              std::string::npos)
        << found;
  }
  EXPECT_FALSE(std::filesystem::exists(last("spoiled", 3)));
  EXPECT_EQ(message({}), "");  // without a save or an interval nobody looks
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
