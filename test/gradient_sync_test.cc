// Gradients over grids of threads: sums, ZeRO-1 against the whole update, the norm, and what goes
// over the wire.
#include "train/gradient_sync.h"

#include <cmath>
#include <limits>

#include "grid_gradients.h"
#include "optim/gradient_norm.h"
#include "optim/zero1.h"

namespace mt {
namespace {

using testing::expect_same;
using testing::for_each_element;
using testing::Gathered;
using testing::grid_config;
using testing::GridRank;
using testing::made_up;
using testing::Numbers;

constexpr const char* kWords = "embedding.word_embeddings.weight";

// Fills what a backward pass would leave. A tied weight has a part of the embedding (part 0) and
// one of the head (part 1), at whichever stages those are; everything else has part 0 alone.
void fill_gradients(GridRank& rank, Numbers numbers, int step = 0) {
  const int d = rank.grid.place().data;
  for (GptStage* stage : rank.pointers) {
    for (Parameter* parameter : stage->parameters()) {
      auto* const gradient = parameter->grad.as<float>();
      const bool words = parameter->segments[0].name == kWords;
      const bool one_stage = rank.grid.shape().pipeline == 1;
      for_each_element(*parameter, [&](std::int64_t i, const Segment& segment, std::int64_t at) {
        const auto part = [&](int p) {
          return made_up(numbers, segment.name, at, step * 100 + d * 2 + p);
        };
        gradient[i] = words && one_stage ? part(1) + part(0) : part(parameter->copy ? 1 : 0);
      });
    }
  }
}

// ((0 + 1) + (2 + 3)) + ...
float tree(std::vector<float> parts) {
  for (std::size_t step = 1; step < parts.size(); step *= 2) {
    for (std::size_t i = 0; i + step < parts.size(); i += 2 * step) parts[i] += parts[i + step];
  }
  return parts[0];
}

struct Outcome {
  Gathered values;
  std::vector<double> norms;  // a step, of rank 0
};

struct Plan {
  GridShape shape;
  bool zero1 = false;
  std::int64_t bucket_bytes = 4096;
  int chunks = 1;
  Numbers numbers = Numbers::kFractions;
  int steps = 3;
};

// Trains with made-up gradients.
void train(const Plan& plan, Outcome& outcome) {
  const int ranks = plan.shape.tensor * plan.shape.pipeline * plan.shape.data;
  run_local_ranks(ranks, [&](const Communicator& world) {
    GridRank rank(world, plan.shape, grid_config(), plan.chunks);
    GradientSync sync(rank.grid, rank.pointers,
                      {.distributed_optimizer = plan.zero1, .bucket_bytes = plan.bucket_bytes},
                      rank.pool);
    Adam adam({}, sync.parameters(), sync.slices(), rank.pool);
    for (int step = 0; step < plan.steps; ++step) {
      fill_gradients(rank, plan.numbers, step);
      sync.finish();
      const double norm = sync.norm();
      adam.step(1e-2, norm);
      sync.publish();
      if (world.rank() == 0) outcome.norms.push_back(norm);
      for (const Parameter* parameter : sync.parameters()) {
        EXPECT_EQ(parameter->stale, parameter->written_by_products);
        if (parameter->stale) continue;
        for (const float g : values_of(parameter->grad)) EXPECT_EQ(g, 0.0F);
      }
    }
    for (const Parameter* parameter : sync.parameters()) {
      outcome.values.put(*parameter, parameter->value);
    }
  });
}

std::string text_of(const Plan& plan) {
  return cat("tensor ", plan.shape.tensor, ", pipeline ", plan.shape.pipeline, ", data ",
             plan.shape.data, ", ZeRO-1 ", plan.zero1, ", buckets of ", plan.bucket_bytes);
}

TEST(GradientSync, slices_become_trees_over_the_data_axis) {
  for (const int data : {1, 2, 3, 4}) {
    for (const bool zero1 : {false, true}) {
      for (const std::int64_t bucket : {64, 2000, 1 << 20}) {
        run_local_ranks(data, [&](const Communicator& world) {
          GridRank rank(world, {.data = data}, grid_config());
          GradientSync sync(rank.grid, rank.pointers,
                            {.distributed_optimizer = zero1, .bucket_bytes = bucket}, rank.pool);
          fill_gradients(rank, Numbers::kFractions);
          sync.finish();
          for (std::size_t p = 0; p < sync.parameters().size(); ++p) {
            const Parameter& parameter = *sync.parameters()[p];
            const auto [begin, end] = sync.slices()[p];
            EXPECT_EQ(is_cut(parameter, sync.slices()[p]), zero1 && data > 1 && parameter.decay);
            const std::int64_t width = parameter.grad.size() / parameter.grad.dim(0);
            for_each_element(parameter, [&](std::int64_t i, const Segment& segment,
                                            std::int64_t at) {
              if (i < begin * width || i >= end * width) return;
              std::vector<float> parts;
              for (int d = 0; d < data; ++d) {
                const auto part = [&](int k) {
                  return made_up(Numbers::kFractions, segment.name, at, d * 2 + k);
                };
                parts.push_back(segment.name == kWords ? part(1) + part(0) : part(0));
              }
              ASSERT_EQ(parameter.grad.as<float>()[i], tree(parts)) << segment.name << ' ' << at;
            });
          }
        });
      }
    }
  }
}

TEST(GradientSync, zero1_has_the_bits_of_the_whole_update) {
  for (const GridShape& shape :
       {GridShape{.data = 2}, GridShape{.data = 3}, GridShape{.data = 4},
        GridShape{.tensor = 2, .pipeline = 2, .data = 2}, GridShape{.pipeline = 2, .data = 3}}) {
    Outcome whole;
    train({.shape = shape}, whole);
    for (const std::int64_t bucket : {64, 4096, 1 << 20}) {
      const Plan plan{.shape = shape, .zero1 = true, .bucket_bytes = bucket};
      Outcome cut;
      train(plan, cut);
      expect_same(whole.values, cut.values, text_of(plan));
      EXPECT_EQ(whole.norms, cut.norms) << text_of(plan);
    }
  }
}

// Whole numbers: all sums of gradients are exact, and so is the norm, whatever the grid.
TEST(GradientSync, every_grid_has_the_norm_and_the_update_of_one_rank) {
  std::map<int, Outcome> one;  // by the ranks of the data axis, whose samples are others
  for (const int data : {1, 2, 3}) {
    for (const auto& [tensor, pipeline, chunks] :
         {std::tuple{1, 1, 1}, {2, 1, 1}, {3, 1, 1}, {1, 2, 1}, {1, 4, 1}, {2, 2, 1}, {1, 2, 2}}) {
      for (const bool zero1 : {false, true}) {
        const Plan plan{.shape = {.tensor = tensor, .pipeline = pipeline, .data = data},
                        .zero1 = zero1,
                        .chunks = chunks,
                        .numbers = Numbers::kWhole};
        if (!one.contains(data)) {
          train(plan, one[data]);
          continue;
        }
        Outcome outcome;
        train(plan, outcome);
        EXPECT_EQ(outcome.norms, one[data].norms) << text_of(plan);
        expect_same(one[data].values, outcome.values, text_of(plan));
      }
    }
  }
}

TEST(GradientSync, the_norm_is_that_of_the_formula) {
  double squares = 0;
  run_local_ranks(1, [&](const Communicator& world) {
    GridRank rank(world, {.data = 1}, grid_config());
    for (const Parameter* parameter : rank.pointers[0]->parameters()) {
      for_each_element(*parameter, [&](std::int64_t, const Segment& segment, std::int64_t at) {
        double sum = made_up(Numbers::kWhole, segment.name, at, 0);
        if (segment.name == kWords) sum += made_up(Numbers::kWhole, segment.name, at, 1);
        squares += sum * sum;
      });
    }
  });
  Outcome outcome;
  train({.shape = {.tensor = 2, .pipeline = 2, .data = 1}, .numbers = Numbers::kWhole, .steps = 1},
        outcome);
  EXPECT_EQ(outcome.norms[0], std::sqrt(squares));
}

TEST(GradientSync, parts_that_wait_for_the_sum_over_ranks_are_added_after_it) {
  for (const bool zero1 : {false, true}) {
    run_local_ranks(4, [&](const Communicator& world) {
      GridRank rank(world, {.tensor = 2, .data = 2}, grid_config());
      Parameter& words = *rank.pointers[0]->parameters()[0];
      Parameter& gain = *rank.pointers[0]->parameters()[2];
      MT_ASSERT(words.segments[0].name == kWords && gain.value.shape() == Shape{12});
      words.grad_apart =
          Tensor::zero(rank.pool, words.value.shape(), DType::kF32, MemoryKind::kGradients);
      gain.grad_shards = Tensor::zero(rank.pool, {4, 12}, DType::kF32, MemoryKind::kGradients);
      gain.sum_over_tensor = true;
      GradientSync sync(rank.grid, rank.pointers, {.distributed_optimizer = zero1}, rank.pool);
      const GridPlace& place = rank.grid.place();
      const auto number = [](const char* what, std::int64_t i, int d, int t = 0) {
        return made_up(Numbers::kFractions, what, i, 10 * d + t);
      };
      for (int round = 0; round < 2; ++round) {  // the second must not see the first
        zero_gradients(sync.parameters());
        for (std::int64_t i = 0; i < words.grad.size(); ++i) {
          words.grad.as<float>()[i] = number("head", i, place.data);
          words.grad_apart.as<float>()[i] = number("words", i, place.data);
        }
        for (std::int64_t i = 0; i < 48; ++i) {
          gain.grad_shards.as<float>()[i] = number("shards", i, place.data, place.tensor);
        }
        sync.finish();
        const auto [begin, end] = sync.slices()[0];
        EXPECT_EQ(end - begin == words.value.dim(0), !zero1);
        for (std::int64_t i = begin * 12; i < end * 12; ++i) {
          EXPECT_EQ(words.grad.as<float>()[i], (number("head", i, 0) + number("head", i, 1)) +
                                                   (number("words", i, 0) + number("words", i, 1)));
        }
        for (std::int64_t i = 0; i < 12; ++i) {
          std::vector<float> over_tensor;
          for (int t = 0; t < 2; ++t) {
            std::vector<float> shards;
            for (std::int64_t s = 0; s < 4; ++s) {
              shards.push_back(number("shards", s * 12 + i, 0, t) +
                               number("shards", s * 12 + i, 1, t));
            }
            over_tensor.push_back(tree(shards));
          }
          EXPECT_EQ(gain.grad.as<float>()[i], tree(over_tensor)) << i;
        }
        EXPECT_EQ(values_of(words.grad_apart),
                  std::vector<float>(static_cast<std::size_t>(words.grad.size())));
        EXPECT_EQ(values_of(gain.grad_shards), std::vector<float>(48));
      }
    });
  }
}

TEST(GradientSync, what_is_not_finite_is_named_on_every_rank) {
  for (const bool zero1 : {false, true}) {
    std::mutex mutex;
    std::vector<std::string> messages;
    run_local_ranks(8, [&](const Communicator& world) {
      GridRank rank(world, {.tensor = 2, .pipeline = 2, .data = 2}, grid_config());
      GradientSync sync(rank.grid, rank.pointers, {.distributed_optimizer = zero1}, rank.pool);
      fill_gradients(rank, Numbers::kWhole);
      // The last stage's second tensor rank: 5 and 7 of the world.
      if (rank.grid.place().pipeline == 1 && rank.grid.place().tensor == 1) {
        for (const Parameter* parameter : sync.parameters()) {
          if (parameter->segments[0].name != "layers.3.mlp.dense_h_to_4h.weight") continue;
          parameter->grad.as<float>()[12 * 14 + 3] = std::numeric_limits<float>::quiet_NaN();
        }
      }
      sync.finish();
      try {
        (void)sync.norm();
        ADD_FAILURE() << "accepted";
      } catch (const NumericError& error) {
        const std::lock_guard<std::mutex> lock(mutex);
        messages.emplace_back(error.what());
      }
    });
    ASSERT_EQ(messages.size(), 8U);
    for (const std::string& message : messages) {
      EXPECT_EQ(message, zero1 ? "the gradient of layers.3.mlp.dense_h_to_4h.weight is not finite "
                                 "(element 87 of [8, "
                                 "12]) on rank 7"
                               : "the gradient of layers.3.mlp.dense_h_to_4h.weight is not finite "
                                 "(element 171 of [15, "
                                 "12]) on rank 5");
    }
  }
}

}  // namespace
}  // namespace mt
