#include "convert/hugging_face.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/commit.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "ckpt/checkpoint.h"
#include "convert/hugging_face_names.h"
#include "convert/renamed.h"
#include "convert/stored_type.h"
#include "io/safetensors.h"

namespace mt {
namespace {

constexpr std::uint64_t kConfigLimit = 1U << 20;

template <typename T>
T optional(const Json& json, const std::string& key, const std::string& where, T otherwise,
           T (*read)(const Json&, const std::string&, const std::string&)) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? otherwise : read(json, key, where);
}

void expect(bool fine, const std::string& where, const std::string& key, const std::string& found,
            const std::string& wanted) {
  if (!fine) {
    throw DataError(cat(where, ": ", key, ": found ", printable(found), ", expected ", wanted));
  }
}

void expect_flag(const Json& json, const std::string& where, const std::string& key, bool wanted) {
  const bool found = optional(json, key, where, wanted, json_bool);
  expect(found == wanted, where, key, found ? "true" : "false", wanted ? "true" : "false");
}

// Our options as keys of their file.
constexpr std::array<Renamed, 9> kKeys{{{"--num-layers", "n_layer"},
                                        {"--hidden-size", "n_embd"},
                                        {"--num-attention-heads", "n_head"},
                                        {"--ffn-hidden-size", "n_inner"},
                                        {"--max-position-embeddings", "n_positions"},
                                        {"--layernorm-epsilon", "layer_norm_epsilon"},
                                        {"--init-method-std", "initializer_range"},
                                        {"--hidden-dropout", "resid_pdrop"},
                                        {"--attention-dropout", "attn_pdrop"}}};

class Gpt2Import {
 public:
  Gpt2Import(const std::string& directory, const ModelConfig& config)
      : directory_(directory), config_(config), reader_(directory) {
    prefix_ = reader_.tensors().contains("transformer.wte.weight") ? "transformer." : "";
    // Each layer has tensors of its own, so this bounds the work by the file.
    const auto held = static_cast<std::int64_t>(reader_.tensors().size());
    if (config.num_layers > held) {
      throw DataError(cat(directory, "/config.json: n_layer ", config.num_layers,
                          ", but the files hold only ", held, " tensors"));
    }
    sources_ = gpt2_tensors(config_, prefix_);
    check_names();
    for (const NamedTensor& source : sources_) check_shape(source);
    if (!config.untie_embeddings_and_output_weights) check_tied_head();
  }

  // The values of every tensor of ours, in `values`, and boxes that point to them.
  [[nodiscard]] std::vector<Box> boxes(std::vector<std::vector<float>>& values) const {
    std::vector<Box> out;
    values.reserve(sources_.size());
    for (const NamedTensor& source : sources_) {
      auto& data = values.emplace_back(convert(source));
      for (std::size_t i = 0; i < data.size(); ++i) {
        if (!std::isfinite(data[i])) {
          throw DataError(cat(directory_, ": tensor ", source.theirs, ": a value is ", data[i],
                              " (element ", i, " of ", source.ours, ")"));
        }
      }
      const Shape shape = our_shape(*source.name, config_);
      out.push_back({source.ours, shape, Shape(shape.size(), 0), shape, DType::kF32, data.data()});
    }
    return out;
  }

 private:
  // Throws listing every tensor that is missing or unknown.
  void check_names() const {
    std::set<std::string> known{kGpt2Head.theirs};
    for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
      for (const char* buffer : kGpt2MaskBuffers)
        known.insert(gpt2_layer_name(prefix_, layer, buffer));
    }
    std::set<std::string> missing;
    for (const NamedTensor& source : sources_) {
      known.insert(source.theirs);
      if (!reader_.tensors().contains(source.theirs)) {
        missing.insert(source.theirs);
      }
    }
    std::set<std::string> unknown;
    for (const auto& [name, info] : reader_.tensors()) {
      if (!known.contains(name)) unknown.insert(name);
    }
    if (missing.empty() && unknown.empty()) return;
    std::string what;
    if (!missing.empty()) what += cat("; missing: ", list(missing));
    if (!unknown.empty()) what += cat("; unknown: ", list(unknown));
    throw DataError(cat(directory_, ": the tensors are not those of a GPT-2 of ",
                        config_.num_layers, " layers with ",
                        config_.untie_embeddings_and_output_weights ? "an untied" : "a tied",
                        " head", what));
  }

  [[nodiscard]] static std::string list(const std::set<std::string>& names) {
    constexpr std::size_t kShown = 20;
    std::string out;
    std::size_t shown = 0;
    for (const std::string& name : names) {
      if (shown++ == kShown) break;
      out += cat(shown == 1 ? "" : ", ", printable(name));
    }
    if (names.size() > kShown) out += cat(" and ", names.size() - kShown, " more");
    return out;
  }

  void check_shape(const NamedTensor& source) const {
    const Shape wanted = their_shape(*source.name, config_);
    const ForeignTensor& found = reader_.info(source.theirs);
    if (found.shape != wanted) {
      throw DataError(cat(reader_.files().at(found.file), ": tensor ", source.theirs, ": shape ",
                          shape_text(found.shape), ", but config.json makes it ",
                          shape_text(wanted)));
    }
  }

  // A tied model may hold the head all the same: then it must be the embedding.
  void check_tied_head() const {
    if (!reader_.tensors().contains(kGpt2Head.theirs)) return;
    const std::string embedding = cat(prefix_, kGpt2Ends.front().theirs);
    check_shape({&kGpt2Head, kGpt2Head.ours, kGpt2Head.theirs});
    if (reader_.read_f32(embedding) == reader_.read_f32(kGpt2Head.theirs)) return;
    throw DataError(cat(directory_, ": config.json ties the head to the embedding, but ",
                        kGpt2Head.theirs, " differs from ", embedding));
  }

  [[nodiscard]] std::vector<float> convert(const NamedTensor& source) const {
    const TensorName& name = *source.name;
    const std::int64_t rows = size_of(name.rows, config_);
    const std::int64_t first = name.part * rows;
    std::vector<float> theirs = reader_.read_f32(source.theirs);
    if (name.form == Form::kSame) return theirs;
    if (name.form == Form::kVector) {
      const auto begin = theirs.begin() + static_cast<std::ptrdiff_t>(first);
      return {begin, begin + static_cast<std::ptrdiff_t>(rows)};
    }
    const std::int64_t columns = size_of(name.columns, config_);
    const std::int64_t stride = name.parts * rows;
    std::vector<float> ours(static_cast<std::size_t>(rows * columns));
    constexpr std::int64_t kTile = 32;  // both sides of a tile stay in the cache
    for (std::int64_t c0 = 0; c0 < columns; c0 += kTile) {
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = c0; c < std::min(c0 + kTile, columns); ++c) {
          ours[static_cast<std::size_t>(r * columns + c)] =
              theirs[static_cast<std::size_t>(c * stride + first + r)];
        }
      }
    }
    return ours;
  }

  std::string directory_;
  ModelConfig config_;
  SafetensorsReader reader_;
  std::string prefix_;
  std::vector<NamedTensor> sources_;
};

// The tokenizer that lies in the directory, or null.
std::unique_ptr<Tokenizer> own_tokenizer(const std::string& directory) {
  const std::string vocab = directory + "/vocab.json";
  const std::string merges = directory + "/merges.txt";
  if (!exists(vocab) && !exists(merges)) return nullptr;
  for (const std::string& file : {vocab, merges}) {
    if (!exists(file)) {
      throw DataError(cat(printable(file), " is missing: a tokenizer is both files"));
    }
  }
  return TokenizerOptions{vocab, merges}.open();
}

// The directory's or the one that was named, which must be the same if both are there; or null.
std::unique_ptr<Tokenizer> find_tokenizer(const std::string& directory,
                                          const TokenizerOptions& options,
                                          const ModelConfig& config) {
  auto tokenizer = own_tokenizer(directory);
  if (auto given = options.open(); given != nullptr) {
    if (tokenizer != nullptr && given->digest() != tokenizer->digest()) {
      throw DataError(cat("--vocab-file ", printable(options.vocab_file),
                          ": this tokenizer has digest ", to_hex(given->digest()), ", that of ",
                          printable(directory), " has ", to_hex(tokenizer->digest())));
    }
    tokenizer = std::move(given);
  }
  if (tokenizer == nullptr) {
    log_warning(cat(printable(directory),
                    ": no vocab.json and merges.txt, so no tokenizer travels with the model"));
  } else if (tokenizer->vocab_size() > config.vocab_size) {
    throw DataError(cat(printable(directory), ": the vocab.json that would travel has ",
                        tokenizer->vocab_size(), " entries, but config.json's vocab_size is ",
                        config.vocab_size));
  }
  return tokenizer;
}

}  // namespace

ModelConfig parse_gpt2_config(const std::string& text, const std::string& where) {
  const Json json = parse_json(text, where);
  if (!json.is_object()) throw DataError(cat(where, ": expected a JSON object"));
  const std::string type = json_string(json, "model_type", where);
  expect(type == "gpt2", where, "model_type", type, "gpt2");
  const std::string activation =
      optional(json, "activation_function", where, std::string("gelu_new"), json_string);
  expect(activation == "gelu_new" || activation == "gelu_pytorch_tanh", where,
         "activation_function", activation, "gelu_new or gelu_pytorch_tanh");
  expect_flag(json, where, "scale_attn_weights", true);
  expect_flag(json, where, "scale_attn_by_inverse_layer_idx", false);
  expect_flag(json, where, "add_cross_attention", false);
  if (json.contains("quantization_config")) {
    throw DataError(cat(where, ": quantization_config: quantised models are not read"));
  }

  ModelConfig config;
  config.num_layers = json_int(json, "n_layer", where);
  config.hidden_size = json_int(json, "n_embd", where);
  config.num_attention_heads = json_int(json, "n_head", where);
  config.max_position_embeddings = json_int(json, "n_positions", where);
  config.vocab_size = json_int(json, "vocab_size", where);
  config.ffn_hidden_size = optional(json, "n_inner", where, std::int64_t{0}, json_int);
  config.layernorm_epsilon = optional(json, "layer_norm_epsilon", where, 1e-5, json_number);
  config.init_method_std = optional(json, "initializer_range", where, 0.02, json_number);
  config.hidden_dropout = optional(json, "resid_pdrop", where, 0.1, json_number);
  config.attention_dropout = optional(json, "attn_pdrop", where, 0.1, json_number);
  config.untie_embeddings_and_output_weights =
      !optional(json, "tie_word_embeddings", where, true, json_bool);
  expect(config.ffn_hidden_size > 0 || !json.contains("n_inner") || json["n_inner"].is_null(),
         where, "n_inner", cat(config.ffn_hidden_size), "a positive number or null");
  try {
    config.check();
  } catch (const UsageError& error) {
    throw DataError(cat(where, ": ", renamed(error.what(), kKeys)));
  }
  return config;
}

bool is_hugging_face(const std::string& directory) {
  return exists(directory + "/config.json") && !exists(directory + "/manifest.json");
}

void import_hugging_face(const std::string& source, const std::string& destination,
                         const TokenizerOptions& tokenizer, const Communicator& world, bool replace,
                         DType weights) {
  const std::string where = source + "/config.json";
  const ModelConfig config = parse_gpt2_config(read_file(where, kConfigLimit), printable(where));
  const auto chosen = find_tokenizer(source, tokenizer, config);
  if (!exists(source + "/model.safetensors") && !exists(source + "/model.safetensors.index.json")) {
    throw EnvironmentError(cat(printable(source),
                               ": neither model.safetensors nor model.safetensors.index.json is "
                               "there (other kinds of weight files are not read)"));
  }
  const Gpt2Import import(source, config);

  CheckpointContent content;
  content.model = config.to_json();
  if (chosen != nullptr) {
    content.files[kCarriedVocab] = chosen->files().vocab;
    content.files[kCarriedMerges] = chosen->files().merges;
    content.tokenizer_digest = to_hex(chosen->digest());
  }
  std::vector<std::vector<float>> values;
  content.weights = import.boxes(values);
  std::vector<std::vector<std::byte>> stored;
  store_weights_as(content, weights, stored);
  save_checkpoint(destination, content, world, replace);
  log_info(cat(printable(source), ": ", content.weights.size(), " tensors, ",
               config.parameter_count(), " parameters written to ", printable(destination)));
}

}  // namespace mt
