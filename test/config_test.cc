// The model's configuration: arithmetic, refusals, JSON, and the agreement of options with a
// checkpoint.
#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "base/error.h"

namespace mt {
namespace {

ModelConfig gpt2_small() {
  ModelConfig config;
  config.num_layers = 12;
  config.hidden_size = 768;
  config.num_attention_heads = 12;
  config.max_position_embeddings = 1024;
  config.vocab_size = 50257;
  config.check();
  return config;
}

// Runs f and expects an error of type E whose text holds `named`.
template <typename E, typename F>
void expect_refused(F f, const std::string& named) {
  try {
    f();
    ADD_FAILURE() << "accepted: " << named;
  } catch (const E& error) {
    EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
  }
}

TEST(config, counts_the_parameters_of_known_models) {
  ModelConfig config = gpt2_small();
  EXPECT_EQ(config.ffn_hidden_size, 3072);
  EXPECT_EQ(config.parameter_count(), 124439808);  // as published for GPT-2
  config.untie_embeddings_and_output_weights = true;
  EXPECT_EQ(config.parameter_count(), 124439808 + 50257 * 768);
}

TEST(config, flops_follow_the_formula_of_narayanan) {
  const ModelConfig config = gpt2_small();
  // equation 3 without recomputation: 72 s l h^2 (1 + s / (6 h) + V / (12 l h)), for one token
  const double h = 768, l = 12, s = 1024, v = 50257;
  const double expected = 72 * l * h * h * (1 + s / (6 * h) + v / (12 * l * h));
  EXPECT_NEAR(config.training_flops_per_token(1024) / expected, 1.0, 1e-12);
}

TEST(config, survives_json) {
  ModelConfig config = gpt2_small();
  config.layernorm_epsilon = 1.0 / 3e5;
  config.untie_embeddings_and_output_weights = true;
  const Json json = parse_json(json_line(config.to_json()), "text");
  const ModelConfig back = ModelConfig::from_json(json, "manifest");
  EXPECT_EQ(back.to_json(), config.to_json());
  EXPECT_EQ(back.layernorm_epsilon, config.layernorm_epsilon);
}

TEST(config, refuses_json_that_is_no_model) {
  const Json good = gpt2_small().to_json();
  const auto refused = [&](auto change, const std::string& named) {
    Json json = good;
    change(json);
    expect_refused<DataError>([&] { (void)ModelConfig::from_json(json, "manifest: model"); },
                              "manifest: model");
    expect_refused<DataError>([&] { (void)ModelConfig::from_json(json, "manifest: model"); },
                              named);
  };
  for (const auto& item : good.items()) {
    const std::string key = item.key();
    refused([&](Json& json) { json.erase(key); }, key);
    refused([&](Json& json) { json[key] = Json::array(); }, key);
  }
  refused([](Json& json) { json["colour"] = 3; }, "colour");
  refused([](Json& json) { json["kind"] = "bert"; }, "bert");
  refused([](Json& json) { json["num_layers"] = -1; }, "num-layers");
  refused([](Json& json) { json["num_attention_heads"] = 7; }, "not divisible by 7");
  refused([](Json& json) { json["vocab_size"] = 0; }, "vocab-size");
  refused([](Json& json) { json = 3; }, "object");
}

TEST(config, refuses_sizes_that_make_no_model) {
  const auto refused = [](auto change, const std::string& named) {
    ModelConfig config = gpt2_small();
    change(config);
    expect_refused<UsageError>([&] { config.check(); }, named);
  };
  refused([](auto& c) { c.num_layers = 0; }, "--num-layers");
  refused([](auto& c) { c.num_layers = 65536; }, "--num-layers");
  refused([](auto& c) { c.hidden_size = -768; }, "--hidden-size");
  refused([](auto& c) { c.hidden_size = INT64_MAX; }, "--hidden-size");
  refused([](auto& c) { c.ffn_hidden_size = -1; }, "--ffn-hidden-size");
  refused([](auto& c) { c.num_attention_heads = 7; }, "hidden size 768 is not divisible by 7");
  refused([](auto& c) { c.max_position_embeddings = std::int64_t{1} << 40; },
          "--max-position-embeddings");
  refused([](auto& c) { c.hidden_size = 1'200'000'000, c.ffn_hidden_size = 0; },
          "--ffn-hidden-size: at most 2147483647");
  refused([](auto& c) { c.hidden_size = 12 * 1'000'000; }, "2^48 parameters");
  refused([](auto& c) { c.layernorm_epsilon = 0; }, "--layernorm-epsilon");
  refused([](auto& c) { c.init_method_std = NAN; }, "--init-method-std");
  // What is 0, 1 or infinite as a float.
  refused([](auto& c) { c.layernorm_epsilon = 1e-50; }, "--layernorm-epsilon");
  refused([](auto& c) { c.layernorm_epsilon = 1e39; }, "--layernorm-epsilon");
  refused([](auto& c) { c.init_method_std = 1e308; }, "--init-method-std");
  refused([](auto& c) { c.hidden_dropout = 0.99999999999; }, "--hidden-dropout");
  refused([](auto& c) { c.hidden_dropout = 1.0; }, "--hidden-dropout");
  refused([](auto& c) { c.attention_dropout = -0.1; }, "--attention-dropout");
  refused([](auto& c) { c.attention_dropout = NAN; }, "--attention-dropout");
}

TEST(config, estimates_absurd_runs_without_overflow) {
  const ModelConfig config = gpt2_small();
  const std::int64_t small = config.training_bytes_estimate(1, 1024, 8);
  EXPECT_GT(small, 16 * config.parameter_count());
  EXPECT_GT(config.training_bytes_estimate(2, 1024, 8), small);
  EXPECT_GT(config.training_bytes_estimate(1'000'000, 1024, 1'000'000), std::int64_t{1} << 47);
  expect_refused<UsageError>(
      [&] { (void)config.training_bytes_estimate(INT32_MAX, INT32_MAX, INT32_MAX); }, "2^63");
  expect_refused<UsageError>([&] { (void)config.training_bytes_estimate(INT64_MAX, 1024, 8); },
                             "--micro-batch-size");
  expect_refused<UsageError>([&] { (void)config.training_bytes_estimate(1, 0, 8); },
                             "--seq-length");
}

// What a command line makes of a configuration, against a stored one.
ModelConfig reconciled(const std::vector<const char*>& words) {
  ModelConfig wished;
  Options options("mt-test", "", "");
  wished.add_to(options);
  std::vector<const char*> arguments = {"mt-test"};
  arguments.insert(arguments.end(), words.begin(), words.end());
  std::ostringstream out;
  (void)options.parse(static_cast<int>(arguments.size()), arguments.data(), "", out);
  return reconcile(gpt2_small(), wished, options);
}

TEST(config, a_checkpoint_decides_what_was_not_asked_for) {
  const ModelConfig config = reconciled({"--hidden-dropout", "0.25", "--num-layers", "12"});
  Json expected = gpt2_small().to_json();
  EXPECT_EQ(config.to_json(), expected);
  EXPECT_EQ(config.hidden_dropout, 0.25);
  EXPECT_EQ(config.attention_dropout, 0.1);
  EXPECT_EQ(reconciled({"--ffn-hidden-size", "0"}).ffn_hidden_size, 3072);
}

TEST(config, a_wish_against_the_checkpoint_is_refused_by_name) {
  const auto refused = [](const std::vector<const char*>& words, const std::string& named) {
    expect_refused<UsageError>([&] { (void)reconciled(words); }, named);
  };
  refused({"--num-layers", "11"}, "--num-layers 11: the checkpoint's model has 12");
  refused({"--ffn-hidden-size", "768"}, "--ffn-hidden-size 768");
  refused({"--layernorm-epsilon", "1e-6"}, "--layernorm-epsilon");
  refused({"--untie-embeddings-and-output-weights"}, "--untie-embeddings-and-output-weights");
}

}  // namespace
}  // namespace mt
