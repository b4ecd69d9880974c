#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"
#include "nn/loss.h"

namespace mt {
namespace {

constexpr std::int64_t kMostParameters = std::int64_t{1} << 48;
constexpr std::int64_t kFloat = sizeof(float);

void require_positive(const char* option, std::int64_t value) {
  if (value <= 0) throw UsageError(cat("--", option, " ", value, ": must be given, at least 1"));
}

// Below 2^31, so that ids fit an int32 and the products below stay inside 128 bits.
void require_size(const char* option, std::int64_t value) {
  require_positive(option, value);
  if (value > INT32_MAX) {
    throw UsageError(cat("--", option, ": at most ", INT32_MAX, ", found ", value));
  }
}

// The kernels take floats, in which these must still be what they are.
void require_probability(const char* option, double value) {
  if (!(value >= 0.0 && static_cast<float>(value) < 1.0F)) {
    throw UsageError(
        cat("--", option, ": expected a probability from 0 to below 1, found ", value));
  }
}

void require_positive_number(const char* option, double value) {
  if (!(static_cast<float>(value) > 0) || !std::isfinite(static_cast<float>(value))) {
    throw UsageError(
        cat("--", option, ": expected a positive number in a float's range, found ", value));
  }
}

// The number of parameters in 128 bits: exact for sizes below 2^31.
__int128 count_parameters(const ModelConfig& config) {
  const __int128 h = config.hidden_size, f = config.ffn_hidden_size;
  const __int128 norms = 2 * h;
  const __int128 block = norms + 3 * h * (h + 1) + h * (h + 1) + norms + f * (h + 1) + h * (f + 1);
  const __int128 words = config.vocab_size * h;
  const __int128 head = config.untie_embeddings_and_output_weights ? words : 0;
  return words + config.max_position_embeddings * h + config.num_layers * block + norms + head;
}

// One field under its name in JSON and in options, for the places that treat all alike.
struct SizeField {
  const char* key;
  const char* option;
  std::int64_t ModelConfig::*member;
};
constexpr SizeField kSizes[] = {
    {"num_layers", "num-layers", &ModelConfig::num_layers},
    {"hidden_size", "hidden-size", &ModelConfig::hidden_size},
    {"num_attention_heads", "num-attention-heads", &ModelConfig::num_attention_heads},
    {"ffn_hidden_size", "ffn-hidden-size", &ModelConfig::ffn_hidden_size},
    {"max_position_embeddings", "max-position-embeddings", &ModelConfig::max_position_embeddings},
};
struct NumberField {
  const char* key;
  const char* option;
  double ModelConfig::*member;
};
constexpr NumberField kNumbers[] = {
    {"layernorm_epsilon", "layernorm-epsilon", &ModelConfig::layernorm_epsilon},
    {"init_method_std", "init-method-std", &ModelConfig::init_method_std},
};
constexpr const char* kUntie = "untie_embeddings_and_output_weights";
constexpr const char* kUntieOption = "untie-embeddings-and-output-weights";

}  // namespace

void ModelConfig::add_to(Options& options) {
  options.add("num-layers", &num_layers, "N", "transformer blocks");
  options.add("hidden-size", &hidden_size, "N", "width of the model");
  options.add("num-attention-heads", &num_attention_heads, "N", "heads of each attention");
  options.add("ffn-hidden-size", &ffn_hidden_size, "N",
              "inner width of the feed-forward part (0: 4 times the width)");
  options.add("max-position-embeddings", &max_position_embeddings, "N",
              "positions that the model knows, the longest sequence");
  options.add(kUntieOption, &untie_embeddings_and_output_weights,
              "give the output layer weights of its own");
  options.add("layernorm-epsilon", &layernorm_epsilon, "F", "added to variances");
  options.add("init-method-std", &init_method_std, "F",
              "standard deviation of the initial weights");
  options.add("hidden-dropout", &hidden_dropout, "P",
              "dropout after the embedding, attention and feed-forward parts");
  options.add("attention-dropout", &attention_dropout, "P", "dropout of attention probabilities");
}

void ModelConfig::check() {
  if (kind != "gpt") throw UsageError(cat("model kind: expected gpt, found ", kind));
  require_size("num-layers", num_layers);
  require_size("hidden-size", hidden_size);
  require_size("num-attention-heads", num_attention_heads);
  require_size("max-position-embeddings", max_position_embeddings);
  require_size("vocab-size", vocab_size);
  if (ffn_hidden_size == 0) ffn_hidden_size = 4 * hidden_size;
  require_size("ffn-hidden-size", ffn_hidden_size);
  if (hidden_size % num_attention_heads != 0) {
    throw UsageError(cat("--num-attention-heads ", num_attention_heads, ": hidden size ",
                         hidden_size, " is not divisible by ", num_attention_heads));
  }
  // Philox counters hold the layer in 16 bits.
  if (num_layers >= (1 << 16)) {
    throw UsageError(cat("--num-layers: below ", 1 << 16, ", found ", num_layers));
  }
  if (count_parameters(*this) > kMostParameters) {
    throw UsageError(cat("the model would have more than 2^48 parameters: --num-layers ",
                         num_layers, " --hidden-size ", hidden_size, " --ffn-hidden-size ",
                         ffn_hidden_size, ", vocabulary ", vocab_size));
  }
  require_positive_number("layernorm-epsilon", layernorm_epsilon);
  require_positive_number("init-method-std", init_method_std);
  require_probability("hidden-dropout", hidden_dropout);
  require_probability("attention-dropout", attention_dropout);
}

Json ModelConfig::to_json() const {
  Json json = {{"kind", kind}};
  for (const SizeField& field : kSizes) json[field.key] = this->*field.member;
  json["vocab_size"] = vocab_size;
  json[kUntie] = untie_embeddings_and_output_weights;
  for (const NumberField& field : kNumbers) json[field.key] = this->*field.member;
  return json;
}

ModelConfig ModelConfig::from_json(const Json& json, const std::string& where) {
  if (!json.is_object()) throw DataError(cat(where, ": expected an object"));
  ModelConfig config;
  std::set<std::string> known = {"kind", "vocab_size", kUntie};
  config.kind = json_string(json, "kind", where);
  for (const SizeField& field : kSizes) {
    config.*field.member = json_int(json, field.key, where);
    known.insert(field.key);
  }
  config.vocab_size = json_int(json, "vocab_size", where);
  config.untie_embeddings_and_output_weights = json_bool(json, kUntie, where);
  for (const NumberField& field : kNumbers) {
    config.*field.member = json_number(json, field.key, where);
    known.insert(field.key);
  }
  for (const auto& item : json.items()) {
    if (known.count(item.key()) == 0) throw DataError(cat(where, ": unknown key ", item.key()));
  }
  try {
    config.check();
  } catch (const UsageError& error) {
    throw DataError(cat(where, ": ", error.what()));
  }
  return config;
}

std::int64_t ModelConfig::parameter_count() const {
  return static_cast<std::int64_t>(count_parameters(*this));
}

double ModelConfig::training_flops_per_token(std::int64_t sequence) const {
  const auto h = static_cast<double>(hidden_size), f = static_cast<double>(ffn_hidden_size);
  const auto layers = static_cast<double>(num_layers);
  const double products = layers * (4 * h * h + 2 * h * f) + h * static_cast<double>(vocab_size);
  return 6 * products + 12 * layers * h * static_cast<double>(sequence);
}

std::int64_t ModelConfig::training_bytes_estimate(std::int64_t batch, std::int64_t sequence,
                                                  std::int64_t global_batch) const {
  require_size("micro-batch-size", batch);
  require_size("seq-length", sequence);
  const __int128 h = hidden_size, f = ffn_hidden_size, a = num_attention_heads, v = vocab_size;
  const __int128 tokens = static_cast<__int128>(batch) * sequence;
  // Value, gradient and two moments; with a tied head the embedding's part of the gradient is
  // apart, a row for each token of a step that differs.
  const __int128 apart = std::min(v, static_cast<__int128>(global_batch) * sequence) * h;
  const __int128 head_part = untie_embeddings_and_output_weights ? 0 : apart;
  const __int128 states = 4 * count_parameters(*this) + head_part;
  // What a block's Saved holds for a token: inputs of both norms, their results, q, k, v, the
  // attention's result, both sides of GELU, and statistics.
  const __int128 saved = num_layers * (8 * h + 2 * f + a + 4);
  // The last norm's input and statistics; ids, labels, positions, weights.
  const __int128 ends = h + 2 + 4;
  // At the peak: the head's input with a block of logits, or the last block's backward pass.
  const __int128 block_rows = std::max<__int128>(1, kLogitsBlockBytes / (v * kFloat));
  const __int128 logits = std::min(tokens, block_rows) * (v + 3);
  const __int128 dropped = hidden_dropout > 0 ? h : 0;
  const __int128 working = std::max(tokens * h + logits, tokens * (h + f + dropped));
  const __int128 bytes = kFloat * (states + tokens * (saved + ends) + working);
  if (bytes > INT64_MAX) {
    throw UsageError(cat("training with --micro-batch-size ", batch, " --seq-length ", sequence,
                         " would need more than 2^63 bytes"));
  }
  return static_cast<std::int64_t>(bytes);
}

ModelConfig reconcile(const ModelConfig& stored, const ModelConfig& wished,
                      const Options& options) {
  const auto require_equal = [&](const char* option, const auto& have, const auto& wish) {
    if (options.given(option) && have != wish) {
      throw UsageError(cat("--", option, " ", wish, ": the checkpoint's model has ", have));
    }
  };
  for (const SizeField& field : kSizes) {
    // A wish for "4 times the width" is a wish for the resolved number.
    const bool automatic =
        field.member == &ModelConfig::ffn_hidden_size && wished.*field.member == 0;
    require_equal(field.option, stored.*field.member,
                  automatic ? 4 * stored.hidden_size : wished.*field.member);
  }
  for (const NumberField& field : kNumbers) {
    require_equal(field.option, stored.*field.member, wished.*field.member);
  }
  require_equal(kUntieOption, stored.untie_embeddings_and_output_weights,
                wished.untie_embeddings_and_output_weights);
  ModelConfig config = stored;
  config.hidden_dropout = wished.hidden_dropout;
  config.attention_dropout = wished.attention_dropout;
  config.check();
  return config;
}

}  // namespace mt
