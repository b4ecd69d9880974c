// A model cut into stages, with threads as ranks: the loss and every gradient have the bits of the
// whole model on one rank, under every schedule.
#include "train/pipeline.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>
#include <numeric>

#include "base/error.h"
#include "testing.h"

namespace mt {
namespace {

constexpr int kLayers = 8, kMicroBatches = 8;
constexpr std::int64_t kBatch = 2, kSequence = 7;

ModelConfig small_config() {
  ModelConfig config;
  config.num_layers = kLayers;
  config.hidden_size = 12;
  config.num_attention_heads = 3;
  config.ffn_hidden_size = 20;
  config.max_position_embeddings = kSequence;
  config.vocab_size = 29;
  config.untie_embeddings_and_output_weights = true;
  config.init_method_std = 0.3;
  config.hidden_dropout = config.attention_dropout = 0.1;
  config.check();
  return config;
}

struct Data {
  Data()
      : tokens(random_ids(kMicroBatches * kBatch * kSequence, 29, 1)),
        labels(random_ids(kMicroBatches * kBatch * kSequence, 29, 2)),
        samples(kMicroBatches * kBatch) {
    std::iota(samples.begin(), samples.end(), 50);
  }
  [[nodiscard]] std::vector<GptInput> inputs() const {
    std::vector<GptInput> all;
    for (std::int64_t m = 0; m < kMicroBatches; ++m) {
      all.push_back({.batch = kBatch,
                     .sequence = kSequence,
                     .tokens = tokens.data() + m * kBatch * kSequence,
                     .labels = labels.data() + m * kBatch * kSequence,
                     .samples = samples.data() + m * kBatch});
    }
    return all;
  }
  std::vector<std::int32_t> tokens, labels;
  std::vector<std::int64_t> samples;
};

struct Outcome {
  double loss = 0;
  std::map<std::string, std::vector<float>>
      gradients;  // by the name of a parameter's first segment
};

Outcome run(const ScheduleShape& shape) {
  const Data data;
  Outcome outcome;
  std::mutex mutex;
  run_local_ranks(shape.stages, [&](const Communicator& world) {
    Pool pool(cpu_device("", 1));
    const auto single = make_single_communicator();
    const auto forth = world.split(0, world.rank(), "forth");
    const auto back = world.split(0, world.rank(), "back");
    std::vector<std::unique_ptr<GptStage>> chunks;
    std::vector<GptStage*> pointers;
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      chunks.push_back(std::make_unique<GptStage>(small_config(),
                                                  chunk_range(kLayers, shape, world.rank(), chunk),
                                                  *single, pool, Use::kTraining));
      chunks.back()->initialize(4);
      pointers.push_back(chunks.back().get());
    }
    Pipeline pipeline(pointers, shape, *forth, *back, pool);
    // Twice: what the first step leaves behind must not show in the second.
    double loss = 0;
    for (int step = 0; step < 2; ++step) {
      for (GptStage* chunk : pointers) zero_gradients(chunk->parameters());
      loss = pipeline.run(data.inputs(), 6 + static_cast<std::uint32_t>(step), 1.0 / 64);
      for (GptStage* chunk : pointers) chunk->finish_gradients();
    }
    const std::lock_guard<std::mutex> lock(mutex);
    outcome.loss += loss;  // 0 but on one stage
    for (GptStage* chunk : pointers) {
      for (const Parameter* parameter : chunk->parameters()) {
        outcome.gradients[parameter->segments[0].name] = values_of(parameter->grad);
      }
    }
  });
  return outcome;
}

TEST(Pipeline, any_cut_and_schedule_gives_the_bits_of_one_stage) {
  const Outcome whole =
      run({.kind = ScheduleKind::kGpipe, .stages = 1, .micro_batches = kMicroBatches});
  EXPECT_GT(whole.loss, 0);
  for (const int stages : {1, 2, 4, 8}) {
    for (const auto& [kind, chunks] : {std::pair{ScheduleKind::kGpipe, 1},
                                       {ScheduleKind::k1f1b, 1},
                                       {ScheduleKind::kInterleaved, 2},
                                       {ScheduleKind::kInterleaved, 4}}) {
      if (kLayers % (stages * chunks) != 0 || (stages == 1 && chunks > 1)) continue;
      const Outcome cut =
          run({.kind = kind, .stages = stages, .micro_batches = kMicroBatches, .chunks = chunks});
      const std::string what =
          cat(stages, " stages, schedule ", static_cast<int>(kind), ", ", chunks, " chunks");
      EXPECT_EQ(whole.loss, cut.loss) << what;
      ASSERT_EQ(whole.gradients.size(), cut.gradients.size()) << what;
      for (const auto& [name, gradient] : whole.gradients) {
        expect_same_bits(gradient, cut.gradients.at(name), cat(what, ", ", name));
      }
    }
  }
}

TEST(Pipeline, layers_that_do_not_divide_are_refused_with_the_arithmetic) {
  try {
    static_cast<void>(chunk_range(
        12, {.kind = ScheduleKind::kInterleaved, .stages = 4, .micro_batches = 4, .chunks = 2}, 0,
        0));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "--num-layers 12: not divisible by 4 pipeline stages x 2 chunks = 8");
  }
}

}  // namespace
}  // namespace mt
