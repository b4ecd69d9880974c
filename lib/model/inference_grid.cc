#include "model/inference_grid.h"

#include <limits>

#include "base/error.h"

namespace mt {

void InferenceGridOptions::add_to(Options& options) {
  options.section("Ranks");
  options.add("tensor-model-parallel-size", &tensor_model_parallel_size, "N",
              "ranks that share each layer");
  options.add("pipeline-model-parallel-size", &pipeline_model_parallel_size, "N",
              "stages of layers, each on ranks of its own");
  options.add_choice("reduction", &reduction, {"fast", "tree"},
                     "tree: sums in one fixed tree, the same bits on every grid");
  options.add("virtual-shards", &virtual_shards, "N",
              "parts that --reduction tree cuts sums into, a power of two");
}

GridShape InferenceGridOptions::grid(int ranks) const {
  const auto size = [](std::int64_t value, const char* option) {
    if (value >= 1 && value <= std::numeric_limits<int>::max()) return static_cast<int>(value);
    throw UsageError(
        cat("--", option, " ", value, ": expected 1 to ", std::numeric_limits<int>::max()));
  };
  const GridShape grid{
      .tensor = size(tensor_model_parallel_size, "tensor-model-parallel-size"),
      .pipeline = size(pipeline_model_parallel_size, "pipeline-model-parallel-size"),
      .data = 1};
  if (const std::int64_t wanted = std::int64_t{grid.tensor} * grid.pipeline; wanted != ranks) {
    throw UsageError(cat("started as ", ranks, ranks == 1 ? " rank" : " ranks",
                         ": --tensor-model-parallel-size ", grid.tensor,
                         " x --pipeline-model-parallel-size ", grid.pipeline, " makes ", wanted));
  }
  if (reduction == "tree") {
    const auto power_of_two = [](std::int64_t n) { return n > 0 && (n & (n - 1)) == 0; };
    if (!power_of_two(virtual_shards) || virtual_shards > 1024) {
      throw UsageError(
          cat("--virtual-shards ", virtual_shards, ": expected a power of two from 1 to 1024"));
    }
    if (!power_of_two(grid.tensor) || virtual_shards % grid.tensor != 0) {
      throw UsageError(cat("--reduction tree: ", grid.tensor, " tensor ranks: expected a power of ",
                           "two that divides --virtual-shards ", virtual_shards));
    }
  }
  return grid;
}

LayerLayout InferenceGridOptions::layout() const {
  return {.virtual_shards = reduction == "tree" ? static_cast<int>(virtual_shards) : 1};
}

void check_cut(const ModelConfig& model, const GridShape& grid) {
  struct Cut {
    const char* option;
    std::int64_t parts;
    const char* what;
    std::int64_t whole;
  };
  for (const Cut& cut :
       {Cut{"tensor", grid.tensor, "attention heads", model.num_attention_heads},
        Cut{"tensor", grid.tensor, "columns inside the MLP", model.ffn_hidden_size},
        Cut{"pipeline", grid.pipeline, "layers", model.num_layers}}) {
    if (cut.whole % cut.parts == 0) continue;
    throw UsageError(cat("--", cut.option, "-model-parallel-size ", cut.parts,
                         ": does not divide the model's ", cut.whole, " ", cut.what, ": ",
                         cut.whole, " = ", cut.whole / cut.parts, " * ", cut.parts, " + ",
                         cut.whole % cut.parts));
  }
  if (model.vocab_size < grid.tensor) {
    throw UsageError(cat("--tensor-model-parallel-size ", grid.tensor, ": more than the model's ",
                         model.vocab_size, " entries of the vocabulary"));
  }
}

StageRange stage_range(const ModelConfig& model, int stages, int stage) {
  const std::int64_t layers = model.num_layers / stages;
  return {.first_layer = layers * stage,
          .last_layer = layers * (stage + 1),
          .first = stage == 0,
          .last = stage == stages - 1};
}

}  // namespace mt
