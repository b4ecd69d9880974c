// A model cut over tensor ranks with and without sequence parallelism, against one rank; pipeline
// stages that exchange slices; inference; refusals.
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "comm/grid.h"
#include "tensor_ranks.h"
#include "train/pipeline.h"

namespace mt {
namespace {

// Each sum over ranks is taken in another order than one rank's chain: differences of some units of
// f32's 6e-8, of the largest term, through two layers and back.
constexpr double kRounding = 3e-6;

struct Case {
  int ranks;
  std::int64_t hidden, heads, inner, sequence, batch;
};
// Slices that begin at every remainder of 4 in the numbers of dropout.
constexpr Case kCases[] = {{2, 6, 2, 10, 6, 3},
                           {2, 10, 2, 14, 2, 1},
                           {3, 9, 3, 15, 9, 2},
                           {4, 12, 4, 20, 8, 3},
                           {4, 20, 4, 12, 4, 1}};

std::string name_of(const Case& c) {
  return cat(c.ranks, " ranks, b ", c.batch, ", s ", c.sequence, ", h ", c.hidden);
}

ModelConfig config_of(const Case& c, bool untied, int layers = 2) {
  ModelConfig config;
  config.num_layers = layers;
  config.hidden_size = c.hidden;
  config.num_attention_heads = c.heads;
  config.ffn_hidden_size = c.inner;
  config.max_position_embeddings = c.sequence;
  config.vocab_size = 29;
  config.untie_embeddings_and_output_weights = untied;
  config.init_method_std = 0.3;
  config.hidden_dropout = 0.2;
  config.attention_dropout = 0.1;
  config.check();
  return config;
}

// Micro-batches of random tokens.
struct Data {
  explicit Data(const Case& c, int count = 2)
      : tokens(random_ids(count * c.batch * c.sequence, 29, 1)),
        labels(random_ids(count * c.batch * c.sequence, 29, 2)),
        samples(static_cast<std::size_t>(count * c.batch)) {
    std::iota(samples.begin(), samples.end(), 50);
    for (std::int64_t m = 0; m < count; ++m) {
      inputs.push_back({.batch = c.batch,
                        .sequence = c.sequence,
                        .tokens = tokens.data() + m * c.batch * c.sequence,
                        .labels = labels.data() + m * c.batch * c.sequence,
                        .samples = samples.data() + m * c.batch});
    }
  }
  std::vector<std::int32_t> tokens, labels;
  std::vector<std::int64_t> samples;
  std::vector<GptInput> inputs;
};

struct Outcome {
  double loss = 0;
  Gradients gradients;
};

Outcome train(const Case& c, int ranks, bool untied, const LayerLayout& layout) {
  const Data data(c);
  const ModelConfig config = config_of(c, untied);
  Outcome outcome;
  std::mutex mutex;
  run_local_ranks(ranks, [&](const Communicator& tp) {
    Pool pool(cpu_device("", 1));
    GptStage stage(config, {.first_layer = 0, .last_layer = config.num_layers}, tp, pool,
                   Use::kTraining, DType::kF32, layout);
    stage.initialize(4);
    randomise_vectors(stage.parameters());
    double loss = 0;
    for (const GptInput& input : data.inputs) {
      const auto saved = stage.make_saved();
      loss += stage.forward(input, {}, 6, 1.0 / 64, *saved).loss_sum;
      (void)stage.backward(input, {}, *saved);
    }
    stage.finish_gradients();
    put_gradients(stage.parameters(), tp, mutex, outcome.gradients);
    const std::lock_guard<std::mutex> lock(mutex);
    EXPECT_TRUE(outcome.loss == 0 || outcome.loss == loss) << "ranks disagree on the loss";
    outcome.loss = loss;
  });
  return outcome;
}

TEST(SequenceParallel, any_number_of_ranks_has_the_loss_and_gradients_of_one) {
  for (const Case& c : kCases) {
    for (const bool untied : {false, true}) {
      const Outcome one = train(c, 1, untied, {});
      for (const bool slices : {false, true}) {
        const std::string what = name_of(c) + (slices ? ", slices" : ", whole");
        const Outcome cut = train(c, c.ranks, untied, {.sequence_parallel = slices});
        EXPECT_NEAR(cut.loss, one.loss, kRounding * one.loss) << what;
        expect_near_gradients(cut.gradients, one.gradients, kRounding, what);
      }
    }
  }
}

TEST(SequenceParallel, one_rank_does_what_it_does_without) {
  const Outcome plain = train(kCases[0], 1, false, {});
  const Outcome sliced = train(kCases[0], 1, false, {.sequence_parallel = true});
  EXPECT_EQ(plain.loss, sliced.loss);
  expect_same_gradients(sliced.gradients, plain.gradients, "one rank");
}

TEST(SequenceParallel, recomputation_changes_no_bit) {
  for (const Case& c : kCases) {
    for (const int ranks : {1, c.ranks}) {
      for (const bool slices : {false, true}) {
        if (ranks == 1 && slices) continue;
        LayerLayout layout{.sequence_parallel = slices};
        const Outcome kept = train(c, ranks, false, layout);
        for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
          layout.recompute = recompute;
          const Outcome again = train(c, ranks, false, layout);
          EXPECT_EQ(again.loss, kept.loss);
          expect_same_gradients(again.gradients, kept.gradients,
                                cat(name_of(c), ": ", ranks, " ranks, slices ", slices,
                                    ", recompute ", static_cast<int>(recompute)));
        }
      }
    }
  }
}

// 2 tensor ranks x `stages`, through the pipeline.
Outcome train_stages(int stages, ScheduleKind kind, const LayerLayout& layout) {
  const Case c = kCases[0];
  const int micro_batches = 4, layers = 4;
  const Data data(c, micro_batches);
  const ModelConfig config = config_of(c, true, layers);
  Outcome outcome;
  std::mutex mutex;
  run_local_ranks(2 * stages, [&](const Communicator& world) {
    const ProcessGrid grid(world, {.tensor = 2, .pipeline = stages});
    const auto forth = grid.pipeline().split(0, grid.place().pipeline, "forth");
    const auto back = grid.pipeline().split(0, grid.place().pipeline, "back");
    Pool pool(cpu_device("", 1));
    const ScheduleShape shape{.kind = kind, .stages = stages, .micro_batches = micro_batches};
    GptStage stage(config, chunk_range(layers, shape, grid.place().pipeline, 0), grid.tensor(),
                   pool, Use::kTraining, DType::kF32, layout);
    stage.initialize(4);
    randomise_vectors(stage.parameters());
    Pipeline pipeline({&stage}, shape, *forth, *back, pool);
    const double loss = pipeline.run(data.inputs, 6, 1.0 / 64);
    stage.finish_gradients();
    put_gradients(stage.parameters(), grid.tensor(), mutex, outcome.gradients);
    const std::lock_guard<std::mutex> lock(mutex);
    outcome.loss += loss / 2;  // of both tensor ranks of the last stage
  });
  return outcome;
}

TEST(SequenceParallel, stages_exchange_slices) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    const LayerLayout layout{.sequence_parallel = true, .recompute = recompute};
    const Outcome whole = train_stages(1, ScheduleKind::k1f1b, layout);
    for (const ScheduleKind kind : {ScheduleKind::kGpipe, ScheduleKind::k1f1b}) {
      const Outcome cut = train_stages(2, kind, layout);
      EXPECT_EQ(cut.loss, whole.loss);
      expect_same_gradients(cut.gradients, whole.gradients, "two stages");
    }
  }
}

TEST(SequenceParallel, evaluation_in_training_gives_the_loss_of_one_rank) {
  for (const Case& c : kCases) {
    const Data data(c, 1);
    const ModelConfig config = config_of(c, false);
    const auto tokens = static_cast<std::size_t>(c.batch * c.sequence);
    const auto nll_on = [&](int ranks, const LayerLayout& layout) {
      std::vector<float> result(tokens);
      run_local_ranks(ranks, [&](const Communicator& tp) {
        Pool pool(cpu_device("", 1));
        GptStage stage(config, {.first_layer = 0, .last_layer = 2}, tp, pool, Use::kTraining,
                       DType::kF32, layout);
        stage.initialize(4);
        std::vector<float> nll(tokens);
        stage.token_nll(data.inputs[0], nll.data());
        if (tp.rank() == 0) result = nll;
      });
      return result;
    };
    const std::vector<float> one = nll_on(1, {});
    expect_near(nll_on(c.ranks, {.sequence_parallel = true}), {one.begin(), one.end()}, 1e-5,
                name_of(c));
  }
}

TEST(SequenceParallel, stages_for_inference_hold_whole_positions) {
  const Case c = kCases[0];
  const Data data(c, 1);
  const ModelConfig config = config_of(c, false);
  const auto decode = [&](const LayerLayout& layout) {
    std::vector<float> result;
    run_local_ranks(2, [&](const Communicator& tp) {
      Pool pool(cpu_device("", 1));
      GptStage stage(config, {.first_layer = 0, .last_layer = 2}, tp, pool, Use::kInference,
                     DType::kF32, layout);
      stage.initialize(4);
      const auto cache = stage.make_cache(1, c.sequence);
      // The first three tokens, then the fourth.
      (void)stage.next_logits({.batch = 1, .sequence = 3, .tokens = data.tokens.data()}, *cache);
      const Tensor logits =
          stage.next_logits({.batch = 1, .sequence = 1, .tokens = data.tokens.data() + 3}, *cache);
      if (tp.rank() == 0) result = values_of(logits);
    });
    return result;
  };
  expect_same_bits(decode({.sequence_parallel = true}), decode({}), "logits");
}

TEST(SequenceParallel, a_sequence_that_does_not_divide_is_refused_with_the_arithmetic) {
  Case c = kCases[0];
  c.sequence = 7;
  try {
    (void)train(c, 2, false, {.sequence_parallel = true});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "--sequence-parallel: a sequence of 7 tokens is not divisible by "
                 "--tensor-model-parallel-size 2");
  }
}

}  // namespace
}  // namespace mt
