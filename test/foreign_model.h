// A directory as Hugging Face writes it, made in memory so that a test can spoil any part of it.
#pragma once

#include <sys/stat.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "shared_data.h"
#include "tensor/tensor.h"

namespace mt::testing {

struct ForeignModel {
  struct Values {
    Shape shape;
    std::vector<float> values;
    std::string type = "F32";
  };
  Json config;
  std::map<std::string, Values> tensors;
  TokenizerFiles tokenizer;

  static Values random(const Shape& shape, std::mt19937& generator) {
    std::normal_distribution<float> normal(0.0F, 0.2F);
    Values out{shape, std::vector<float>(static_cast<std::size_t>(element_count(shape)))};
    for (float& value : out.values) value = normal(generator);
    return out;
  }

  // A small GPT-2 of odd sizes: 2 layers, width 6, 3 heads, 10 wide inside, 7 positions.
  explicit ForeignModel(std::int64_t vocab = 257, const std::string& prefix = "transformer.")
      : tokenizer(byte_level_files()) {
    config = {{"model_type", "gpt2"}, {"n_layer", 2},
              {"n_embd", 6},          {"n_head", 3},
              {"n_inner", 10},        {"n_positions", 7},
              {"vocab_size", vocab},  {"activation_function", "gelu_new"}};
    std::mt19937 generator(5);
    const auto add = [&](const std::string& name, const Shape& shape) {
      tensors[prefix + name] = random(shape, generator);
    };
    add("wte.weight", {vocab, 6});
    add("wpe.weight", {7, 6});
    for (const std::string layer : {"h.0.", "h.1."}) {
      add(layer + "ln_1.weight", {6});
      add(layer + "ln_1.bias", {6});
      add(layer + "attn.c_attn.weight", {6, 18});
      add(layer + "attn.c_attn.bias", {18});
      add(layer + "attn.c_proj.weight", {6, 6});
      add(layer + "attn.c_proj.bias", {6});
      add(layer + "ln_2.weight", {6});
      add(layer + "ln_2.bias", {6});
      add(layer + "mlp.c_fc.weight", {6, 10});
      add(layer + "mlp.c_fc.bias", {10});
      add(layer + "mlp.c_proj.weight", {10, 6});
      add(layer + "mlp.c_proj.bias", {6});
    }
    add("ln_f.weight", {6});
    add("ln_f.bias", {6});
  }

  static std::string encode(const Values& tensor) {
    std::string bytes;
    for (const float value : tensor.values) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, 4);
      if (tensor.type == "BF16") {
        bits >>= 16U;
        bytes.append(reinterpret_cast<const char*>(&bits), 2);
      } else {
        bytes.append(reinterpret_cast<const char*>(&bits), 4);
      }
    }
    return bytes;
  }

  // The container of some of the tensors.
  static std::string container(const std::map<std::string, Values>& tensors) {
    Json header = Json::object();
    header["__metadata__"] = {{"format", "pt"}};
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      const std::string bytes = encode(tensor);
      header[name] = {{"dtype", tensor.type},
                      {"shape", tensor.shape},
                      {"data_offsets", {data.size(), data.size() + bytes.size()}}};
      data += bytes;
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t size = text.size();
    return std::string(reinterpret_cast<const char*>(&size), 8) + text + data;
  }

  void write_all_but_tensors(const std::string& directory) const {
    ::mkdir(directory.c_str(), 0777);
    spill(directory + "/config.json", config.dump());
    if (!tokenizer.empty()) {
      spill(directory + "/vocab.json", tokenizer.vocab);
      spill(directory + "/merges.txt", tokenizer.merges);
    }
  }
  void write(const std::string& directory) const {
    write_all_but_tensors(directory);
    spill(directory + "/model.safetensors", container(tensors));
  }
  // Two files and their index.
  void write_sharded(const std::string& directory) const {
    write_all_but_tensors(directory);
    std::map<std::string, Values> parts[2];
    Json map = Json::object();
    std::size_t count = 0;
    for (const auto& [name, tensor] : tensors) {
      const std::size_t part = count++ % 2;
      parts[part][name] = tensor;
      map[name] = file_name(part);
    }
    for (std::size_t part = 0; part < 2; ++part) {
      spill(directory + "/" + file_name(part), container(parts[part]));
    }
    spill(directory + "/model.safetensors.index.json",
          Json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump());
  }
  static std::string file_name(std::size_t part) {
    return "model-0000" + std::to_string(part + 1) + "-of-00002.safetensors";
  }
};

}  // namespace mt::testing
