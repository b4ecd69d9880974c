// A GPT of odd sizes with random weights, in memory.
#pragma once

#include <cstring>
#include <memory>

#include "comm/communicator.h"
#include "model/inference_model.h"

namespace mt::testing {

struct SmallGpt {
  static ModelConfig make_config(std::int64_t vocab, std::int64_t positions) {
    ModelConfig config;
    config.num_layers = 2;
    config.hidden_size = 12;
    config.num_attention_heads = 3;
    config.ffn_hidden_size = 20;
    config.max_position_embeddings = positions;
    config.vocab_size = vocab;
    config.init_method_std = 0.5;  // far from uniform
    config.check();
    return config;
  }
  explicit SmallGpt(std::int64_t vocab = 31, std::int64_t positions = 16)
      : config(make_config(vocab, positions)) {
    stage.initialize(3);
  }
  // The weights of the first parameter are the word embedding, which is the head too.
  float* embedding() { return stage.parameters().front()->value.as<float>(); }
  void set_all(float value) {
    for (Parameter* parameter : stage.parameters()) {
      float* const data = parameter->value.as<float>();
      for (std::int64_t i = 0; i < parameter->value.size(); ++i) data[i] = value;
    }
  }

  ModelConfig config;
  std::unique_ptr<Communicator> world = make_single_communicator();
  Pool pool{cpu_device("", 1)};
  GptStage stage{config, {.first_layer = 0, .last_layer = 2}, *world, pool, Use::kInference};
  WholeModel whole{stage};
};

}  // namespace mt::testing
