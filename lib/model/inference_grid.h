// How a model that is only read is cut over ranks: tensor x pipeline, no data axis. The options
// that evaluation and generation have for it.
#pragma once

#include <cstdint>
#include <string>

#include "base/options.h"
#include "comm/grid.h"
#include "model/config.h"
#include "model/gpt.h"
#include "nn/linear.h"

namespace mt {

struct InferenceGridOptions {
  std::int64_t tensor_model_parallel_size = 1;
  std::int64_t pipeline_model_parallel_size = 1;
  std::string reduction = "fast";   // or tree
  std::int64_t virtual_shards = 8;  // with reduction tree

  void add_to(Options& options);
  // The grid of so many ranks. Throws UsageError with the arithmetic unless they are tensor x
  // pipeline, and for what tree mode asks of them.
  [[nodiscard]] GridShape grid(int ranks) const;
  // Of checked options.
  [[nodiscard]] LayerLayout layout() const;
};

// Throws UsageError with the arithmetic if the model cannot be cut so: heads and inner width over
// the tensor ranks, layers over the stages, no rank without an entry of the vocabulary.
void check_cut(const ModelConfig& model, const GridShape& grid);

// The layers of one of `stages` stages of equal size.
[[nodiscard]] StageRange stage_range(const ModelConfig& model, int stages, int stage);

}  // namespace mt
