// The whole model: gradients, determinism, decoding, memory, refusals.
#include "model/gpt.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "optim/adam.h"
#include "optim/gradient_norm.h"
#include "optim/zero1.h"
#include "tensor/ops.h"
#include "testing.h"

namespace mt {
namespace {

ModelConfig small_config(double dropout = 0.0, bool untied = false) {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 15;
  config.num_attention_heads = 3;
  config.ffn_hidden_size = 22;
  config.max_position_embeddings = 11;
  config.vocab_size = 37;
  config.untie_embeddings_and_output_weights = untied;
  config.init_method_std = 0.3;
  config.hidden_dropout = dropout;
  config.attention_dropout = dropout;
  config.check();
  return config;
}

// A model on a device of its own with a batch of random tokens.
class Job {
 public:
  explicit Job(const ModelConfig& config, std::int64_t sequences = 5, const char* set = "",
               int threads = 1, Use use = Use::kTraining)
      : rig(set, threads),
        model(config, {.first_layer = 0, .last_layer = config.num_layers}, *rig.tp, rig.pool, use),
        batch(sequences),
        sequence(config.max_position_embeddings) {
    randomise(model.parameters(), 3);
    const auto vocabulary = static_cast<std::int32_t>(config.vocab_size);
    tokens = random_ids(batch * sequence, vocabulary, 1);
    labels = random_ids(batch * sequence, vocabulary, 2);
    samples.resize(static_cast<std::size_t>(batch));
    std::iota(samples.begin(), samples.end(), 100);
  }
  // Sequences [begin, end) of the batch.
  [[nodiscard]] GptInput input(std::int64_t begin, std::int64_t end) const {
    return {.batch = end - begin,
            .sequence = sequence,
            .tokens = tokens.data() + begin * sequence,
            .labels = labels.data() + begin * sequence,
            .samples = samples.data() + begin};
  }
  // Adds the gradients of the sum over positions of nll / 64; returns that sum.
  double train(std::int64_t begin, std::int64_t end) {
    const auto saved = model.make_saved();
    const double sum = model.forward(input(begin, end), {}, 5, 1.0 / 64, *saved).loss_sum;
    (void)model.backward(input(begin, end), {}, *saved);
    return sum / 64;
  }
  [[nodiscard]] std::vector<std::vector<float>> gradients() {
    std::vector<std::vector<float>> all;
    for (const Parameter* parameter : model.parameters()) all.push_back(values_of(parameter->grad));
    return all;
  }
  void expect_same_gradients(Job& other, const std::string& what) {
    const auto a = gradients(), b = other.gradients();
    for (std::size_t i = 0; i < a.size(); ++i) {
      expect_same_bits(a[i], b[i], what + ": " + model.parameters()[i]->segments.front().name);
    }
  }

  TestRig rig;
  GptStage model;
  std::int64_t batch, sequence;
  std::vector<std::int32_t> tokens, labels;
  std::vector<std::int64_t> samples;
};

TEST(model, gradients_match_finite_differences) {
  for (const bool untied : {false, true}) {
    for (const double dropout : {0.0, 0.25}) {
      SCOPED_TRACE(cat("untied ", untied, ", dropout ", dropout));
      Job job(small_config(dropout, untied), 2);
      (void)job.train(0, 2);
      job.model.finish_gradients();
      const auto expected = job.gradients();
      const auto loss = [&] {
        const auto saved = job.model.make_saved();
        return job.model.forward(job.input(0, 2), {}, 5, 1.0, *saved).loss_sum / 64;
      };
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const Parameter& parameter = *job.model.parameters()[i];
        const Tensor gradient = upload(job.rig.pool, expected[i].data(), parameter.value.shape(),
                                       DType::kF32, MemoryKind::kWorkspace);
        EXPECT_LT(gradient_error(parameter.value, gradient, loss, 12), 3e-3)
            << parameter.segments.front().name;
      }
    }
  }
}

TEST(model, micro_batches_give_the_bits_of_one_batch) {
  for (const bool untied : {false, true}) {
    Job whole(small_config(0.2, untied)), split(small_config(0.2, untied));
    const double loss = whole.train(0, 5);
    const double parts = split.train(0, 1) + split.train(1, 4) + split.train(4, 5);
    EXPECT_NEAR(loss, parts, 1e-12 * loss);
    whole.model.finish_gradients();
    split.model.finish_gradients();
    whole.expect_same_gradients(split, "whole against split");
  }
}

TEST(model, the_tied_gradient_is_the_sum_of_its_two_parts) {
  Job job(small_config());
  (void)job.train(0, 5);
  const auto head_part = job.gradients()[0];
  job.model.finish_gradients();
  const auto both = job.gradients()[0];
  job.model.finish_gradients();
  expect_same_bits(job.gradients()[0], both, "a second call");
  // The embedding's part is zero for tokens that do not occur; the head's is not.
  const std::set<std::int32_t> seen(job.tokens.begin(), job.tokens.end());
  for (std::int32_t token = 0; token < 37; ++token) {
    const std::size_t at = static_cast<std::size_t>(token) * 15;
    EXPECT_NE(head_part[at], 0.0F) << token;
    EXPECT_EQ(seen.count(token) != 0, head_part[at] != both[at]) << token;
  }
}

// Three whole steps: forward, backward, norm, clip, update.
void train_steps(Job& job) {
  Adam adam({}, job.model.parameters(), all_rows(job.model.parameters()), job.rig.pool);
  for (int step = 0; step < 3; ++step) {
    (void)job.train(0, 2);
    (void)job.train(2, 5);
    job.model.finish_gradients();
    adam.step(1e-2, gradient_norm(job.model.parameters()));
  }
}

TEST(model, threads_and_kernel_sets_change_no_bit_of_training) {
  const ModelConfig config = small_config(0.1);
  Job one(config, 5, "", 1), two(config, 5, "", 2), baseline(config, 5, "baseline", 1);
  for (Job* job : {&one, &two, &baseline}) train_steps(*job);
  for (std::size_t i = 0; i < one.model.parameters().size(); ++i) {
    const std::string name = one.model.parameters()[i]->segments.front().name;
    const auto values = values_of(one.model.parameters()[i]->value);
    expect_same_bits(values_of(two.model.parameters()[i]->value), values, "2 threads: " + name);
    expect_same_bits(values_of(baseline.model.parameters()[i]->value), values, "baseline: " + name);
  }
}

TEST(model, initial_weights_hang_on_seed_and_name_alone) {
  ModelConfig config = small_config();
  TestRig rig;
  const StageRange all{.first_layer = 0, .last_layer = 2};
  GptStage a(config, all, *rig.tp, rig.pool, Use::kTraining);
  GptStage b(config, all, *rig.tp, rig.pool, Use::kInference);
  a.initialize(7);
  b.initialize(7);
  std::set<float> firsts;
  for (std::size_t i = 0; i < a.parameters().size(); ++i) {
    const Parameter& parameter = *a.parameters()[i];
    const auto values = values_of(parameter.value);
    expect_same_bits(values, values_of(b.parameters()[i]->value), parameter.segments[0].name);
    double squares = 0;
    for (const float value : values) squares += static_cast<double>(value) * value;
    const double root = std::sqrt(squares / static_cast<double>(values.size()));
    if (parameter.init == Init::kNormal) {
      EXPECT_NEAR(root / parameter.init_std, 1.0, 0.2) << parameter.segments[0].name;
      for (const Segment& segment : parameter.segments) {
        firsts.insert(values[static_cast<std::size_t>(segment.row * 15)]);
      }
    } else {
      EXPECT_EQ(root, parameter.init == Init::kOne ? 1.0 : 0.0) << parameter.segments[0].name;
    }
  }
  EXPECT_EQ(firsts.size(), 2U + 2U * 6U);  // no two tensors draw the same numbers
  EXPECT_NEAR(a.parameters()[6]->init_std, 0.3 / 2, 1e-12) << "dense of two layers";
  b.initialize(8);
  EXPECT_NE(values_of(a.parameters()[0]->value), values_of(b.parameters()[0]->value));

  // A rank of two draws its part of the same numbers.
  config.hidden_size = 16;
  config.num_attention_heads = 2;
  GptStage whole(config, all, *rig.tp, rig.pool, Use::kInference);
  whole.initialize(7);
  for (int rank = 0; rank < 2; ++rank) {
    const LonelyRank tp(rank, 2);
    GptStage part(config, all, tp, rig.pool, Use::kInference);
    GptStage expected(config, all, tp, rig.pool, Use::kInference);
    part.initialize(7);
    copy_boxes(whole.parameters(), expected.parameters());
    for (std::size_t i = 0; i < part.parameters().size(); ++i) {
      expect_same_bits(values_of(part.parameters()[i]->value),
                       values_of(expected.parameters()[i]->value),
                       part.parameters()[i]->segments[0].name);
    }
  }
}

TEST(model, names_shapes_and_order_are_those_of_the_checkpoint) {
  Job job(small_config(0.0, true), 1, "", 1, Use::kInference);
  std::vector<std::string> names;
  std::int64_t count = 0;
  for (const Parameter* parameter : job.model.parameters()) {
    EXPECT_FALSE(parameter->grad.defined());
    count += parameter->value.size();
    for (const Segment& segment : parameter->segments) {
      names.push_back(segment.name + " " + shape_text(segment.global_shape));
      EXPECT_EQ(parameter->decay, segment.global_shape.size() == 2) << segment.name;
    }
  }
  EXPECT_EQ(count, job.model.config().parameter_count());
  std::vector<std::string> expected = {"embedding.word_embeddings.weight [37, 15]",
                                       "embedding.position_embeddings.weight [11, 15]"};
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    for (const char* rest :
         {"input_layernorm.weight [15]", "input_layernorm.bias [15]",
          "self_attention.query.weight [15, 15]", "self_attention.key.weight [15, 15]",
          "self_attention.value.weight [15, 15]", "self_attention.query.bias [15]",
          "self_attention.key.bias [15]", "self_attention.value.bias [15]",
          "self_attention.dense.weight [15, 15]", "self_attention.dense.bias [15]",
          "post_attention_layernorm.weight [15]", "post_attention_layernorm.bias [15]",
          "mlp.dense_h_to_4h.weight [22, 15]", "mlp.dense_h_to_4h.bias [22]",
          "mlp.dense_4h_to_h.weight [15, 22]", "mlp.dense_4h_to_h.bias [15]"}) {
      expected.push_back(layer + rest);
    }
  }
  expected.insert(expected.end(), {"final_layernorm.weight [15]", "final_layernorm.bias [15]",
                                   "output_layer.weight [37, 15]"});
  EXPECT_EQ(names, expected);
}

TEST(model, decoding_with_a_cache_gives_the_bits_of_the_whole) {
  Job job(small_config(0.1), 3, "", 2, Use::kInference);
  const auto whole = values_of(job.model.all_logits(job.input(0, 3)));
  const auto cache = job.model.make_cache(3, 11);
  std::int64_t held = 0;
  for (const std::int64_t step : {4, 1, 1, 3, 2}) {
    std::vector<std::int32_t> part;
    for (std::int64_t i = 0; i < 3; ++i) {
      const auto begin = job.tokens.begin() + i * 11 + held;
      part.insert(part.end(), begin, begin + step);
    }
    const GptInput next{.batch = 3, .sequence = step, .tokens = part.data()};
    const auto logits = values_of(job.model.next_logits(next, *cache));
    held += step;
    ASSERT_EQ(GptStage::cached(*cache), held);
    for (std::int64_t i = 0; i < 3; ++i) {
      const auto found = logits.begin() + i * 37,
                 expected = whole.begin() + (i * 11 + held - 1) * 37;
      expect_same_bits({found, found + 37}, {expected, expected + 37}, cat("position ", held - 1));
    }
    if (step == 3) {  // go back and take the same way again
      for (std::int64_t slot = 0; slot < 3; ++slot) GptStage::truncate(*cache, slot, held - 3);
      expect_same_bits(values_of(job.model.next_logits(next, *cache)), logits, "after going back");
    }
  }
  const GptInput more{.batch = 3, .sequence = 1, .tokens = job.tokens.data()};
  EXPECT_THROW((void)job.model.next_logits(more, *cache), UsageError);
}

// Slots of unequal lengths, filled and left at their own times, beginnings shared: every sequence
// gets the logits that it gets alone.
TEST(model, slots_of_a_cache_do_not_know_of_each_other) {
  Job job(small_config(), 4, "", 2, Use::kInference);
  const auto whole = values_of(job.model.all_logits(job.input(0, 4)));
  const auto cache = job.model.make_cache(5, 11);
  const auto tokens_at = [&](std::int64_t sequence, std::int64_t position) {
    return job.tokens[static_cast<std::size_t>(sequence * 11 + position)];
  };
  const auto expect_logits = [&](const Tensor& logits, std::int64_t row, std::int64_t sequence,
                                 std::int64_t position) {
    const auto found = values_of(logits.rows(row, row + 1));
    const auto expected = whole.begin() + (sequence * 11 + position) * 37;
    expect_same_bits(found, {expected, expected + 37},
                     cat("sequence ", sequence, ", position ", position));
  };
  // Prompts of 7, 1 and 4 tokens, each alone into its slot.
  const std::vector<std::int64_t> slots{4, 0, 2};
  std::vector<std::int64_t> lengths{7, 1, 4};
  for (std::int64_t i = 0; i < 3; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const GptInput prompt{
        .batch = 1, .sequence = lengths[at], .tokens = job.tokens.data() + i * 11};
    expect_logits(job.model.next_logits(prompt, *cache, {slots[at]}), 0, i, lengths[at] - 1);
  }
  for (int step = 0; step < 4; ++step) {
    std::vector<std::int32_t> next;
    for (std::int64_t i = 0; i < 3; ++i) {
      next.push_back(tokens_at(i, lengths[static_cast<std::size_t>(i)]));
    }
    const Tensor logits =
        job.model.next_logits({.batch = 3, .sequence = 1, .tokens = next.data()}, *cache, slots);
    for (std::int64_t i = 0; i < 3; ++i) {
      expect_logits(logits, i, i, lengths[static_cast<std::size_t>(i)]++);
    }
  }
  EXPECT_EQ(GptStage::cached(*cache, 4), 11);
  EXPECT_EQ(GptStage::cached(*cache, 0), 5);
  EXPECT_EQ(GptStage::cached(*cache, 3), 0);
  const std::int32_t token = 1;
  EXPECT_THROW(
      (void)job.model.next_logits({.batch = 1, .sequence = 1, .tokens = &token}, *cache, {4}),
      UsageError);
  // A copy of a beginning goes on as the original does, and its own slot is free for another.
  GptStage::fork(*cache, 0, 3, 4);
  EXPECT_EQ(GptStage::cached(*cache, 3), 4);
  GptStage::truncate(*cache, 0, 0);
  const GptInput other{.batch = 1, .sequence = 6, .tokens = job.tokens.data() + 3 * 11};
  expect_logits(job.model.next_logits(other, *cache, {0}), 0, 3, 5);
  const std::int32_t fifth = tokens_at(1, 4);
  expect_logits(job.model.next_logits({.batch = 1, .sequence = 1, .tokens = &fifth}, *cache, {3}),
                0, 1, 4);
}

TEST(model, decoding_takes_nothing_from_the_system_and_ragged_prompts_do_not_pile_up) {
  Job job(small_config(), 4, "", 2, Use::kInference);
  const auto cache = job.model.make_cache(4, 11);
  const auto step = [&](std::int64_t rows, std::int64_t sequence) {
    std::vector<std::int64_t> slots;
    for (std::int64_t slot = 0; slot < rows; ++slot) {
      GptStage::truncate(*cache, slot, 0);
      slots.push_back(slot);
    }
    static_cast<void>(job.model.next_logits(
        {.batch = rows, .sequence = sequence, .tokens = job.tokens.data()}, *cache, slots));
  };
  step(4, 1);
  const std::int64_t allocations = job.rig.pool.use().system_allocations;
  for (int i = 0; i < 20; ++i) step(4, 1);
  EXPECT_EQ(job.rig.pool.use().system_allocations, allocations);
  for (int i = 0; i < 200; ++i) step(1 + i % 4, 1 + i * 7 % 11);
  const MemoryUse use = job.rig.pool.use();
  EXPECT_LE(use.system_bytes, 4 * use.peak_total);
}

TEST(model, likelihoods_are_those_of_training_without_dropout) {
  Job job(small_config(0.3));
  std::vector<float> nll(55);
  job.model.token_nll(job.input(0, 5), nll.data());
  GptInput plain = job.input(0, 5);
  plain.samples = nullptr;
  std::vector<float> weight(55, 0.0F);
  weight[17] = 2.0F;
  weight[54] = 1.0F;
  plain.loss_weight = weight.data();
  const auto saved = job.model.make_saved();
  const double sum = job.model.forward(plain, {}, 0, 1.0, *saved).loss_sum;
  EXPECT_EQ(sum, 2.0 * nll[17] + nll[54]);
}

TEST(model, input_outside_the_tables_is_named) {
  Job job(small_config());
  const auto refused = [&](GptInput input, const std::string& named) {
    try {
      const auto saved = job.model.make_saved();
      (void)job.model.forward(input, {}, 0, 1.0, *saved);
      ADD_FAILURE() << "accepted: " << named;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
    }
  };
  for (const std::int32_t bad : {-1, 37, INT32_MAX, INT32_MIN}) {
    auto ids = job.tokens;
    ids[13] = bad;
    GptInput input = job.input(0, 5);
    input.tokens = ids.data();
    refused(input, cat("token id ", bad, " at token 2 of sequence 1: expected 0 to 36"));
    input = job.input(0, 5);
    input.labels = ids.data();
    refused(input, cat("label ", bad, " at token 2 of sequence 1: expected 0 to 36"));
  }
  std::vector<std::int32_t> positions(55, 0);
  positions[54] = 11;
  GptInput input = job.input(0, 5);
  input.position_ids = positions.data();
  refused(input, "position 11 at token 10 of sequence 4: expected 0 to 10");
  input = job.input(0, 4);
  input.sequence = 12;
  refused(input, "a sequence of 12 tokens: the model has 11 positions");
}

TEST(model, steps_take_nothing_from_the_system_and_as_much_memory_as_estimated) {
  for (const double dropout : {0.0, 0.1}) {
    ModelConfig config = small_config(dropout);
    config.num_layers = 3;
    config.hidden_size = 48;
    config.num_attention_heads = 4;
    config.ffn_hidden_size = 192;
    config.max_position_embeddings = 64;
    config.vocab_size = 301;
    for (const std::int64_t batch : {1, 8}) {
      SCOPED_TRACE(cat("dropout ", dropout, ", batch ", batch));
      Job job(config, batch);
      Adam adam({}, job.model.parameters(), all_rows(job.model.parameters()), job.rig.pool);
      std::int64_t allocations = 0;
      for (int step = 0; step < 4; ++step) {
        (void)job.train(0, batch);
        job.model.finish_gradients();
        adam.step(1e-3, gradient_norm(job.model.parameters()));
        if (step == 1) allocations = job.rig.pool.use().system_allocations;
      }
      EXPECT_EQ(job.rig.pool.use().system_allocations, allocations);
      const auto estimate = static_cast<double>(config.training_bytes_estimate(batch, 64, batch));
      const auto peak = static_cast<double>(job.rig.pool.use().peak_total);
      EXPECT_NEAR(estimate / peak, 1.0, 0.05);
    }
  }
}

}  // namespace
}  // namespace mt
