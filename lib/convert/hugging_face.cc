#include "convert/hugging_face.h"

#include <array>
#include <cstring>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/commit.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/small_floats.h"
#include "convert/hugging_face_names.h"
#include "convert/renamed.h"
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

  [[nodiscard]] std::unique_ptr<TensorSource> source(
      const ForeignReader::Settings& settings) const {
    std::vector<ForeignOrigin> origins;
    origins.reserve(sources_.size());
    for (const NamedTensor& source : sources_) origins.push_back(origin(source));
    return reader(std::move(origins), settings);
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

  [[nodiscard]] std::unique_ptr<TensorSource> reader(
      std::vector<ForeignOrigin> origins, const ForeignReader::Settings& settings) const {
    return std::make_unique<ForeignReader>(printable(directory_), config_.to_json(),
                                           reader_.files(), std::move(origins), settings);
  }

  // A tied model may hold the head all the same: then it must be the embedding.
  void check_tied_head() const {
    if (!reader_.tensors().contains(kGpt2Head.theirs)) return;
    const NamedTensor head{&kGpt2Head, kGpt2Head.ours, kGpt2Head.theirs};
    check_shape(head);
    const auto both = reader({origin(sources_.front()), origin(head)}, {.finite = false});
    if (!differences(*both, sources_.front().ours, head.ours)) return;
    throw DataError(cat(directory_, ": config.json ties the head to the embedding, but ",
                        kGpt2Head.theirs, " differs from ", sources_.front().theirs));
  }

  // Whether two tensors of one shape are different numbers.
  [[nodiscard]] static bool differences(const TensorSource& source, const std::string& a,
                                        const std::string& b) {
    constexpr std::uint64_t kBandElements = std::uint64_t{1} << 18;
    const auto open = [&](const std::string& name) {
      return source.rows(name, kBandElements * dtype_size(source.tensors().at(name).dtype));
    };
    const auto wide = [&](const std::string& name, const RowStream::Band& band) {
      const DType type = source.tensors().at(name).dtype;
      std::vector<float> out(band.bytes / dtype_size(type));
      convert_floats(band.data, type, out.data(), DType::kF32, out.size());
      return out;
    };
    const auto left = open(a), right = open(b);
    RowStream::Band x, y;
    while (left->next(x) && right->next(y)) {
      if (wide(a, x) != wide(b, y)) return true;
    }
    return false;
  }

  [[nodiscard]] ForeignOrigin origin(const NamedTensor& source) const {
    const TensorName& name = *source.name;
    const ForeignTensor& stored = reader_.info(source.theirs);
    ForeignOrigin out{.ours = source.ours,
                      .theirs = source.theirs,
                      .shape = our_shape(name, config_),
                      .file = stored.file,
                      .offset = stored.offset,
                      .part = name.part,
                      .parts = name.parts,
                      .transposed = name.form == Form::kTransposed};
    if (stored.type == "BF16") {
      out.type = DType::kBf16;
    } else if (stored.type == "F16") {
      out.type = DType::kF16;
    } else if (stored.type == "F64") {
      out.f64 = true;
    } else if (stored.type != "F32") {
      throw DataError(cat(reader_.files()[stored.file], ": tensor ", source.theirs,
                          ": expected F32, BF16, F16 or F64, found ", stored.type));
    }
    return out;
  }

  std::string directory_;
  ModelConfig config_;
  SafetensorsReader reader_;
  std::string prefix_;
  std::vector<NamedTensor> sources_;
};

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

std::unique_ptr<TensorSource> open_hugging_face(const std::string& directory,
                                                const ForeignReader::Settings& settings) {
  const std::string where = directory + "/config.json";
  const ModelConfig config = parse_gpt2_config(read_file(where, kConfigLimit), printable(where));
  if (!exists(directory + "/model.safetensors") &&
      !exists(directory + "/model.safetensors.index.json")) {
    throw EnvironmentError(cat(printable(directory),
                               ": neither model.safetensors nor model.safetensors.index.json is "
                               "there (other kinds of weight files are not read)"));
  }
  return Gpt2Import(directory, config).source(settings);
}

}  // namespace mt
