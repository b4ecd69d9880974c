// Import of GPT-2 in Hugging Face's layout: what comes out, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"
#include "ckpt/checkpoint.h"
#include "comm/communicator.h"
#include "continuations.h"
#include "convert/copy_checkpoint.h"
#include "convert/hugging_face.h"
#include "convert/import_foreign.h"
#include "convert/load_model.h"
#include "foreign_model.h"
#include "io/hdf5.h"
#include "io/safetensors.h"

namespace mt {
namespace {

using testing::data_path;
using testing::ForeignModel;
using testing::Scratch;
using testing::slurp;
using testing::spill;

struct Place {
  Scratch scratch;
  std::unique_ptr<Communicator> world = make_single_communicator();
  ProcessGrid grid{*world, {}};
  Pool pool{cpu_device("", 1)};

  std::string import(const std::string& source, const std::string& name = "out") {
    return import_foreign(source, scratch / name, {}, {}), scratch / name;
  }
  std::string import(const ForeignModel& model, const std::string& name = "out") {
    model.write(scratch / (name + ".hf"));
    return import(scratch / (name + ".hf"), name);
  }
  LoadedModel load(const std::string& path) { return load_model(path, {}, grid, pool); }
};

// name -> digest of every tensor.
std::map<std::string, std::string> digests(const std::string& path) {
  std::map<std::string, std::string> out;
  const CheckpointReader reader(path);
  for (const auto& [name, info] : reader.tensors()) out[name] = to_hex(info.digest);
  return out;
}

std::vector<float> values(const CheckpointReader& reader, const std::string& name) {
  const auto& info = reader.tensors().at(name);
  std::vector<float> out(static_cast<std::size_t>(element_count(info.shape)));
  reader.read(name, info.shape, Shape(info.shape.size(), 0), info.shape, DType::kF32, out.data());
  return out;
}

double worst(const float* found, const std::vector<float>& wanted) {
  double out = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    out = std::max(out, std::fabs(static_cast<double>(found[i]) - wanted[i]));
  }
  return out;
}

TEST(HuggingFace, every_tensor_lands_transposed_and_split_where_it_belongs) {
  Place place;
  const ForeignModel model;
  const CheckpointReader reader(place.import(model));
  EXPECT_EQ(reader.tensors().size(), 4U + 2U * 16U);
  const auto& fused = model.tensors.at("transformer.h.1.attn.c_attn.weight").values;
  const auto& bias = model.tensors.at("transformer.h.1.attn.c_attn.bias").values;
  const char* parts[] = {"query", "key", "value"};
  for (std::size_t part = 0; part < 3; ++part) {
    const std::string ours = std::string("layers.1.self_attention.") + parts[part];
    const auto weight = values(reader, ours + ".weight");
    const auto short_bias = values(reader, ours + ".bias");
    ASSERT_EQ(weight.size(), 36U);
    for (std::size_t row = 0; row < 6; ++row) {
      EXPECT_EQ(short_bias.at(row), bias.at(part * 6 + row));
      for (std::size_t column = 0; column < 6; ++column) {
        EXPECT_EQ(weight.at(row * 6 + column), fused.at(column * 18 + part * 6 + row));
      }
    }
  }
  const auto& up = model.tensors.at("transformer.h.0.mlp.c_fc.weight").values;
  const auto ours = values(reader, "layers.0.mlp.dense_h_to_4h.weight");
  EXPECT_EQ(reader.tensors().at("layers.0.mlp.dense_h_to_4h.weight").shape, (Shape{10, 6}));
  for (std::size_t i = 0; i < 60; ++i) EXPECT_EQ(ours.at(i), up.at(i % 6 * 10 + i / 6));
  EXPECT_EQ(values(reader, "embedding.word_embeddings.weight"),
            model.tensors.at("transformer.wte.weight").values);
}

TEST(HuggingFace, the_checkpoint_fits_the_model_and_carries_its_tokenizer) {
  Place place;
  const LoadedModel model = place.load(place.import(ForeignModel()));
  EXPECT_EQ(model.config.ffn_hidden_size, 10);
  EXPECT_EQ(model.config.max_position_embeddings, 7);
  EXPECT_FALSE(model.config.untie_embeddings_and_output_weights);
  EXPECT_EQ(model.iteration, 0);
  ASSERT_NE(model.tokenizer, nullptr);
  EXPECT_EQ(model.tokenizer->end_of_document(), 256);
}

TEST(HuggingFace, prefix_shards_mask_buffers_and_a_stored_tied_head_change_nothing) {
  Place place;
  const ForeignModel plain;
  const auto wanted = digests(place.import(plain, "plain"));
  EXPECT_EQ(digests(place.import(ForeignModel(257, ""), "bare")), wanted);

  plain.write_sharded(place.scratch / "sharded.hf");
  EXPECT_EQ(digests(place.import(place.scratch / "sharded.hf", "sharded")), wanted);

  ForeignModel old = plain;
  old.tensors["transformer.h.0.attn.bias"] = {{1, 1, 7, 7}, std::vector<float>(49, 1.0F)};
  old.tensors["transformer.h.1.attn.masked_bias"] = {{}, {-1e4F}};
  old.tensors["lm_head.weight"] = old.tensors.at("transformer.wte.weight");
  EXPECT_EQ(digests(place.import(old, "old")), wanted);
}

TEST(HuggingFace, bf16_is_widened) {
  Place place;
  ForeignModel model;
  for (auto& [name, tensor] : model.tensors) tensor.type = "BF16";
  const CheckpointReader reader(place.import(model));
  std::vector<float> wanted = model.tensors.at("transformer.wpe.weight").values;
  for (float& value : wanted) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    bits &= 0xFFFF0000U;
    std::memcpy(&value, &bits, 4);
  }
  EXPECT_EQ(values(reader, "embedding.position_embeddings.weight"), wanted);
}

TEST(HuggingFace, an_untied_head_is_a_tensor_of_its_own) {
  Place place;
  ForeignModel model;
  std::mt19937 generator(7);
  model.config["tie_word_embeddings"] = false;
  model.tensors["lm_head.weight"] = ForeignModel::random({257, 6}, generator);
  const std::string path = place.import(model);
  EXPECT_EQ(values(CheckpointReader(path), "output_layer.weight"),
            model.tensors.at("lm_head.weight").values);
  EXPECT_TRUE(place.load(path).config.untie_embeddings_and_output_weights);
}

TEST(HuggingFace, a_copied_checkpoint_is_equal_tensor_by_tensor) {
  Place place;
  const std::string path = place.import(ForeignModel());
  copy_checkpoint(path, place.scratch / "copy", {});
  EXPECT_EQ(digests(place.scratch / "copy"), digests(path));
  const CheckpointReader copy(place.scratch / "copy");
  EXPECT_EQ(copy.file(kCarriedVocab), CheckpointReader(path).file(kCarriedVocab));
  EXPECT_EQ(copy.tokenizer_digest(), CheckpointReader(path).tokenizer_digest());
  EXPECT_EQ(copy.model(), CheckpointReader(path).model());
}

TEST(HuggingFace, gpt_tiny_gives_the_logits_of_pytorch) {
  const Hdf5Reader golden(data_path("golden/gpt-tiny.h5"));
  Place place;
  const LoadedModel model = place.load(place.import(data_path("hf/gpt-tiny")));
  const auto stored = golden.read<std::int32_t>("/tokens");
  std::vector<std::int32_t> tokens;
  for (std::ptrdiff_t row = 0; row < 8; ++row) {
    tokens.insert(tokens.end(), stored.begin() + row * 33, stored.begin() + row * 33 + 32);
  }
  const Tensor logits =
      model.stage->all_logits({.batch = 8, .sequence = 32, .tokens = tokens.data()});
  const auto wanted = golden.read<float>("/float64/logits");
  ASSERT_EQ(static_cast<std::size_t>(logits.size()), wanted.size());
  EXPECT_LT(worst(logits.as<float>(), wanted), 1e-5);
}

class NanoSort : public ::testing::Test {
 protected:
  Place place;
  LoadedModel model = place.load(place.import(data_path("hf/gpt-nano-sort")));
};

TEST_F(NanoSort, activations_are_those_of_the_original) {
  const SafetensorsReader golden(data_path("hf/gpt-nano-sort/activations.safetensors"));
  const auto index = golden.read_f32("idx");
  const std::vector<std::int32_t> tokens(index.begin(), index.end());
  const GptInput input{.batch = 3, .sequence = 11, .tokens = tokens.data()};
  const auto found = model.stage->all_activations(input);
  const char* names[] = {"x", "block0", "block1", "block2", "ln_f"};
  ASSERT_EQ(found.size(), std::size(names));
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto wanted = golden.read_f32(names[i]);
    ASSERT_EQ(static_cast<std::size_t>(found[i].size()), wanted.size()) << names[i];
    EXPECT_LT(worst(found[i].as<float>(), wanted), 1e-5) << names[i];
  }
  const auto wanted = golden.read_f32("lm_head");
  const Tensor logits = model.stage->all_logits(input);
  ASSERT_EQ(static_cast<std::size_t>(logits.size()), wanted.size());
  EXPECT_LT(worst(logits.as<float>(), wanted), 1e-5);
}

TEST_F(NanoSort, sorts_all_729_sequences) {
  std::vector<Request> requests(729, testing::request({}, 6));
  int number = 0, right = 0;
  for (Request& request : requests) {
    for (int i = 0, rest = number++; i < 6; ++i, rest /= 3) request.context.push_back(rest % 3);
  }
  for (const Continuation& text : testing::continuations(*model.stage, requests, {.slots = 16})) {
    std::vector<std::int32_t> digits = text.request->context;
    std::sort(digits.begin(), digits.end());
    right += text.tokens == digits ? 1 : 0;
  }
  EXPECT_EQ(right, 729);
}

TEST_F(NanoSort, has_no_tokenizer) {
  EXPECT_EQ(model.tokenizer, nullptr);
}

// What is wrong, how to make it so, and what the message must name.
struct Bad {
  const char* name;
  std::function<void(ForeignModel&)> spoil;
  std::vector<std::string> words;
};

void PrintTo(const Bad& bad, std::ostream* out) {
  *out << bad.name;
}

class Refused : public ::testing::TestWithParam<Bad> {};

TEST_P(Refused, with_the_object_named_and_nothing_left) {
  Place place;
  ForeignModel model;
  GetParam().spoil(model);
  try {
    place.import(model);
    FAIL() << "was imported";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), ExitStatus::kData) << error.what();
    const std::string message = error.what();
    for (const std::string& word : GetParam().words) {
      EXPECT_NE(message.find(word), std::string::npos) << word << " is not in: " << message;
    }
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
  int entries = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(place.scratch / "")) {
    ++entries;
  }
  EXPECT_EQ(entries, 1) << "something is left beside the source";
}

std::function<void(ForeignModel&)> set(const char* key, const Json& value) {
  return [=](ForeignModel& model) { model.config[key] = value; };
}
std::function<void(ForeignModel&)> drop(const char* key) {
  return [=](ForeignModel& model) { model.config.erase(key); };
}

INSTANTIATE_TEST_SUITE_P(
    HuggingFace, Refused,
    ::testing::Values(
        Bad{"type", set("model_type", "gptj"), {"config.json", "model_type", "gptj"}},
        Bad{"no_type", drop("model_type"), {"model_type"}},
        Bad{"activation", set("activation_function", "relu"), {"activation_function", "relu"}},
        Bad{"exact_gelu", set("activation_function", "gelu"), {"activation_function", "gelu_new"}},
        Bad{"unscaled", set("scale_attn_weights", false), {"scale_attn_weights"}},
        Bad{"layer_scaled",
            set("scale_attn_by_inverse_layer_idx", true),
            {"scale_attn_by_inverse_layer_idx"}},
        Bad{"cross", set("add_cross_attention", true), {"add_cross_attention"}},
        Bad{"quantised", set("quantization_config", Json::object()), {"quantization_config"}},
        Bad{"no_layers_key", drop("n_layer"), {"n_layer"}},
        Bad{"no_layers", set("n_layer", 0), {"config.json"}},
        Bad{"many_layers", set("n_layer", 1000000000), {"n_layer", "1000000000"}},
        Bad{"negative", set("n_embd", -6), {"config.json"}},
        Bad{"text", set("n_embd", "6"), {"n_embd"}},
        Bad{"fraction", set("n_embd", 6.5), {"n_embd"}},
        Bad{"absurd", set("n_embd", 4611686018427387904), {"config.json"}},
        Bad{"huge_vocabulary", set("vocab_size", 4611686018427387904), {"config.json"}},
        Bad{"other_vocabulary", set("vocab_size", 300), {"wte.weight", "[257, 6]", "[300, 6]"}},
        Bad{"other_positions", set("n_positions", 8), {"wpe.weight", "[7, 6]", "[8, 6]"}},
        Bad{"other_inner", set("n_inner", nullptr), {"mlp.c_fc", "[6, 24]"}},
        Bad{"zero_inner", set("n_inner", 0), {"n_inner"}},
        Bad{"heads", set("n_head", 4), {"config.json", "4"}},
        Bad{"fewer_layers", set("n_layer", 1), {"unknown", "transformer.h.1.ln_1.weight"}},
        Bad{"more_layers", set("n_layer", 3), {"missing", "transformer.h.2.ln_1.weight"}},
        Bad{"epsilon", set("layer_norm_epsilon", -1.0), {"config.json"}},
        Bad{"no_tensor",
            [](ForeignModel& m) { m.tensors.erase("transformer.h.0.ln_2.bias"); },
            {"missing", "transformer.h.0.ln_2.bias"}},
        Bad{"one_bias_missing",
            [](ForeignModel& m) { m.tensors.erase("transformer.h.1.attn.c_attn.bias"); },
            {"missing", "transformer.h.1.attn.c_attn.bias"}},
        // A converter that skips the masks "attn.bias" by the end of the name loses these too; the
        // model then still looks sound.
        Bad{"all_biases_missing",
            [](ForeignModel& m) {
              m.tensors.erase("transformer.h.0.attn.c_attn.bias");
              m.tensors.erase("transformer.h.1.attn.c_attn.bias");
            },
            {"missing", "transformer.h.0.attn.c_attn.bias", "transformer.h.1.attn.c_attn.bias"}},
        Bad{"extra_tensor",
            [](ForeignModel& m) {
              m.tensors["score.weight"] = {{1}, {1.0F}};
            },
            {"unknown", "score.weight"}},
        Bad{"forged_name",
            [](ForeignModel& m) {
              m.tensors["x\n\033[2Jmt: done"] = {{1}, {1.0F}};
            },
            {"unknown"}},
        Bad{"buffer_of_no_layer",
            [](ForeignModel& m) {
              m.tensors["transformer.h.2.attn.bias"] = {{1}, {1.0F}};
            },
            {"unknown", "transformer.h.2.attn.bias"}},
        Bad{"turned",
            [](ForeignModel& m) {
              m.tensors["transformer.h.0.mlp.c_fc.weight"].shape = {10, 6};
            },
            {"transformer.h.0.mlp.c_fc.weight", "[10, 6]", "[6, 10]"}},
        Bad{"not_a_number",
            [](ForeignModel& m) { m.tensors["transformer.ln_f.bias"].values[3] = NAN; },
            {"transformer.ln_f.bias", "nan"}},
        Bad{"tied_but_other_head",
            [](ForeignModel& m) {
              m.tensors["lm_head.weight"] = m.tensors["transformer.wte.weight"];
              m.tensors["lm_head.weight"].values.back() += 1;
            },
            {"lm_head.weight", "transformer.wte.weight"}},
        Bad{"untied_without_head",
            set("tie_word_embeddings", false),
            {"missing", "lm_head.weight", "untied"}},
        Bad{"integers",
            [](ForeignModel& m) { m.tensors["transformer.wpe.weight"].type = "I32"; },
            {"transformer.wpe.weight", "I32"}},
        Bad{"no_end_of_text",
            [](ForeignModel& m) {
              const auto at = m.tokenizer.vocab.find("<|endoftext|>");
              m.tokenizer.vocab.replace(at, 13, "<|somethingy|>");
            },
            {"vocab.json"}},
        Bad{"long_vocabulary",
            [](ForeignModel& m) { m.tokenizer = testing::byte_level_files({"ab"}, "a b\n"); },
            {"vocab.json", "258", "257"}}),
    [](const auto& test) { return std::string(test.param.name); });

// The same for files that no ForeignModel would write.
class Spoiled : public ::testing::Test {
 protected:
  void SetUp() override { ForeignModel().write(source); }
  std::string message(ExitStatus status = ExitStatus::kData) {
    std::string out;
    try {
      place.import(source);
    } catch (const Error& error) {
      out = error.what();
      EXPECT_EQ(error.status(), status) << out;
    }
    EXPECT_FALSE(out.empty()) << "was imported";
    EXPECT_FALSE(std::filesystem::exists(place.scratch / "out"));
    return out;
  }
  Place place;
  std::string source = place.scratch / "hf";
};

TEST_F(Spoiled, bad_json_names_the_file) {
  spill(source + "/config.json", "{\"model_type\": ");
  EXPECT_NE(message().find("config.json"), std::string::npos);
}

TEST_F(Spoiled, half_a_tokenizer_is_refused) {
  std::filesystem::remove(source + "/merges.txt");
  EXPECT_NE(message().find("merges.txt"), std::string::npos);
}

TEST_F(Spoiled, a_file_cut_anywhere_is_refused) {
  const std::string whole = slurp(source + "/model.safetensors");
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{8}, std::size_t{100},
                                 whole.size() / 2, whole.size() - 1}) {
    spill(source + "/model.safetensors", whole.substr(0, size));
    EXPECT_NE(message().find("model.safetensors"), std::string::npos) << size;
  }
  spill(source + "/model.safetensors", whole + "x");
  EXPECT_NE(message().find("model.safetensors"), std::string::npos);
}

TEST_F(Spoiled, a_header_longer_than_the_file_is_refused) {
  std::string bytes = slurp(source + "/model.safetensors");
  for (const char high : {'\x01', '\x7F', '\xFF'}) {
    bytes[7] = high;
    spill(source + "/model.safetensors", bytes);
    EXPECT_NE(message().find("model.safetensors"), std::string::npos);
  }
}

TEST_F(Spoiled, an_index_names_files_of_its_own_directory_only) {
  std::filesystem::remove(source + "/model.safetensors");
  ForeignModel().write_sharded(source);
  const std::string index = source + "/model.safetensors.index.json";
  const std::string sound = slurp(index);
  const std::string name = ForeignModel::file_name(1);
  std::filesystem::create_directory(source + "/sub");
  std::filesystem::copy(source + "/" + name, source + "/sub/" + name);
  for (const std::string& other :
       {"../hf/" + name, "sub/" + name, source + "/" + name, std::string(".."), std::string("")}) {
    std::string text = sound;
    for (std::size_t at = 0; (at = text.find(name, at)) != std::string::npos; at += other.size()) {
      text.replace(at, name.size(), other);
    }
    spill(index, text);
    EXPECT_NE(message().find("model.safetensors.index.json"), std::string::npos) << other;
  }
}

TEST_F(Spoiled, a_missing_part_is_the_environments_fault) {
  std::filesystem::remove(source + "/model.safetensors");
  std::string text = message(ExitStatus::kEnvironment);
  EXPECT_NE(text.find("model.safetensors"), std::string::npos) << text;
  ForeignModel().write_sharded(source);
  std::filesystem::remove(source + "/" + ForeignModel::file_name(1));
  text = message(ExitStatus::kEnvironment);
  EXPECT_NE(text.find(ForeignModel::file_name(1)), std::string::npos) << text;
}

TEST(HuggingFace, an_existing_destination_is_refused_and_untouched) {
  Place place;
  std::filesystem::create_directory(place.scratch / "out");
  spill(place.scratch / "out/mine", "precious");
  EXPECT_THROW(place.import(ForeignModel()), UsageError);
  EXPECT_EQ(slurp(place.scratch / "out/mine"), "precious");
}

// Edits a checkpoint's manifest and hashes it again.
void edit_manifest(const std::string& checkpoint, const std::string& from, const std::string& to) {
  const std::string path = checkpoint + "/manifest.json";
  std::string text = slurp(path);
  const std::size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  text.erase(text.rfind("\"manifest_xxh3_128\""));
  text += "\"manifest_xxh3_128\":\"" + to_hex(xxh3_128(text.data(), text.size())) + "\"}\n";
  spill(path, text);
}

TEST(LoadModel, sizes_that_its_tensors_do_not_fill_allocate_nothing) {
  Place place;
  const std::string path = place.import(ForeignModel());
  edit_manifest(path, "\"num_layers\":2", "\"num_layers\":65535");
  try {
    static_cast<void>(load_model(path, {}, place.grid, place.pool));
    FAIL() << "65535 layers were taken";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("hold only"), std::string::npos) << error.what();
  }
}

TEST(HuggingFace, a_copy_notices_a_digest_that_is_not_its_tensors) {
  Place place;
  const std::string path = place.import(ForeignModel());
  const std::string digest = to_hex(CheckpointReader(path).tensors().begin()->second.digest);
  edit_manifest(path, digest, std::string(32, '0'));
  EXPECT_THROW(copy_checkpoint(path, place.scratch / "copy", {}), DataError);
  EXPECT_FALSE(std::filesystem::exists(place.scratch / "copy"));
}

TEST(LoadModel, a_given_tokenizer_must_be_the_one_that_travelled) {
  Place place;
  const std::string path = place.import(ForeignModel());
  const TokenizerFiles same = testing::byte_level_files();
  spill(place.scratch / "vocab.json", " \n" + same.vocab);  // other bytes, same tokens
  spill(place.scratch / "merges.txt", same.merges);
  const TokenizerOptions options{place.scratch / "vocab.json", place.scratch / "merges.txt"};
  EXPECT_NE(load_model(path, options, place.grid, place.pool).tokenizer, nullptr);
  TokenizerFiles other = testing::byte_level_files();
  const auto a = other.vocab.find("\"\\u0061\": 97");
  const auto b = other.vocab.find("\"\\u0062\": 98");
  ASSERT_TRUE(a != std::string::npos && b != std::string::npos);
  other.vocab.replace(a, 12, "\"\\u0061\": 98").replace(b, 12, "\"\\u0062\": 97");
  spill(place.scratch / "vocab.json", other.vocab);
  try {
    static_cast<void>(load_model(path, options, place.grid, place.pool));
    FAIL() << "another tokenizer was taken";
  } catch (const DataError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(CheckpointReader(path).tokenizer_digest()), std::string::npos);
    EXPECT_NE(message.find(to_hex(make_bpe_tokenizer(other, "test")->digest())), std::string::npos);
  }
  EXPECT_THROW(static_cast<void>(TokenizerOptions{"x", ""}.open()), UsageError);
}

}  // namespace
}  // namespace mt
