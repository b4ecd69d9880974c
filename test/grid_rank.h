// A small GPT with moments on a grid of local ranks, whose numbers follow from their places in the
// whole, and the layouts that tests go through.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "ckpt/grid_content.h"
#include "ckpt/parameters.h"
#include "comm/grid.h"
#include "model/gpt.h"

namespace mt::testing_data {

struct Layout {
  int tensor, pipeline, data;
  bool zero;
  [[nodiscard]] int ranks() const { return tensor * pipeline * data; }
  [[nodiscard]] std::string name() const {
    return cat("tp", tensor, "-pp", pipeline, "-dp", data, zero ? "-zero" : "");
  }
};

inline const std::vector<Layout> kLayouts = {
    {1, 1, 1, false}, {2, 1, 1, false}, {1, 2, 1, false}, {2, 2, 1, false},
    {4, 1, 1, false}, {1, 4, 1, false}, {1, 1, 2, false}, {1, 1, 3, true},
    {2, 1, 2, true},  {1, 2, 2, true},  {2, 2, 2, true},  {4, 2, 1, true},
};

inline ModelConfig small_model() {
  ModelConfig config;
  config.num_layers = 4;
  config.hidden_size = 16;
  config.num_attention_heads = 4;
  config.ffn_hidden_size = 28;
  config.max_position_embeddings = 9;
  config.vocab_size = 37;  // no tensor size but 1 divides it
  config.init_method_std = 0.5;
  config.check();
  return config;
}

// One rank's model and moments, whose numbers follow from their places in the whole.
class GridRank {
 public:
  GridRank(const Communicator& world, const Layout& layout)
      : layout_(layout),
        pool_(cpu_device("baseline", 1)),
        grid_(world, {.tensor = layout.tensor, .pipeline = layout.pipeline, .data = layout.data}),
        stage_(small_model(), range(), grid_.tensor(), pool_, Use::kTraining) {
    stage_.initialize(5);
    std::uint32_t seed = 6;
    for (const char* const suffix : {"exp_avg", "exp_avg_sq"}) {
      for (Parameter* const parameter : parameters()) {
        Parameter whole = *parameter;  // moments of all rows
        whole.value = Tensor(pool_, parameter->value.shape(), DType::kF32, MemoryKind::kOptimizer);
        whole.init = Init::kNormal;
        whole.init_std = 1;
        initialize(whole, seed);
        moments_.push_back({parameter, suffix, first_row(*parameter), rows_of(whole.value)});
      }
      ++seed;
    }
  }

  [[nodiscard]] const std::vector<Parameter*>& parameters() { return stage_.parameters(); }
  [[nodiscard]] CheckpointContent content() {
    CheckpointContent content;
    content.iteration = 7;
    content.model = small_model().to_json();
    content.training = {{"consumed_samples", 70}};
    content.files = {{"tokenizer/vocab.json", "{}"}};
    const GridContent role(grid_.shape(), grid_.place(), layout_.zero);
    role.add_weights(parameters(), content);
    for (const Moment& moment : moments_) {
      role.add_moment(*moment.parameter, moment.values, moment.first_row, moment.suffix, content);
    }
    return content;
  }
  // Loads into other memory, and says what differs.
  [[nodiscard]] std::string difference(const std::string& directory) {
    const CheckpointReader reader(directory);
    std::vector<Tensor> expected;
    for (Parameter* const parameter : parameters()) {
      expected.push_back(copy(parameter->value));
      parameter->value.fill_zero();
    }
    load_parameters(reader, parameters(), layout_.tensor == 1 && layout_.pipeline == 1);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (!same(expected[i], parameters()[i]->value)) return parameters()[i]->segments[0].name;
    }
    std::vector<Tensor> loaded;
    std::vector<CheckpointReader::Request> requests;
    for (const Moment& moment : moments_) {
      loaded.push_back(
          Tensor::zero(pool_, moment.values.shape(), DType::kF32, MemoryKind::kOptimizer));
      append_row_requests(*moment.parameter, loaded.back(), moment.first_row, moment.suffix,
                          requests);
    }
    reader.read(requests);
    for (std::size_t i = 0; i < loaded.size(); ++i) {
      if (!same(loaded[i], moments_[i].values)) {
        return moments_[i].parameter->segments[0].name + "." + moments_[i].suffix;
      }
    }
    return "";
  }

 private:
  struct Moment {
    Parameter* parameter;
    std::string suffix;
    std::int64_t first_row;
    Tensor values;
  };
  [[nodiscard]] StageRange range() const {
    const std::int64_t layers = 4 / layout_.pipeline, stage = grid_.place().pipeline;
    return {.first_layer = stage * layers,
            .last_layer = (stage + 1) * layers,
            .first = stage == 0,
            .last = stage == layout_.pipeline - 1};
  }
  // Matrices in equal parts of rows, the last with what is left over.
  [[nodiscard]] std::int64_t first_row(const Parameter& parameter) const {
    const bool cut = layout_.zero && parameter.value.shape().size() > 1;
    return cut ? grid_.place().data * (parameter.value.dim(0) / layout_.data) : 0;
  }
  [[nodiscard]] Tensor rows_of(const Tensor& whole) const {
    if (!layout_.zero || whole.shape().size() < 2) return whole;
    const std::int64_t part = whole.dim(0) / layout_.data, place = grid_.place().data;
    return whole.rows(part * place, place + 1 == layout_.data ? whole.dim(0) : part * (place + 1));
  }
  [[nodiscard]] Tensor copy(const Tensor& from) {
    const Tensor to(pool_, from.shape(), from.dtype(), MemoryKind::kWorkspace);
    std::memcpy(to.data(), from.data(), static_cast<std::size_t>(from.bytes()));
    return to;
  }
  [[nodiscard]] static bool same(const Tensor& a, const Tensor& b) {
    return std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())) == 0;
  }

  Layout layout_;
  Pool pool_;
  ProcessGrid grid_;
  GptStage stage_;
  std::vector<Moment> moments_;
};

}  // namespace mt::testing_data
