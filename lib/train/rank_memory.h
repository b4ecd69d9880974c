// Bytes that a rank of a grid will hold in tensors, counted from the shapes of its layers before
// anything is built: states as in Rajbhandari et al., arXiv:1910.02054, section 3.1 (in f32),
// activations as in Korthikanti et al., arXiv:2205.05198, section 4.
#pragma once

#include <cstdint>

#include "comm/grid.h"
#include "model/config.h"
#include "train/parallel_options.h"

namespace mt {

struct RankMemory {
  std::int64_t weights = 0, gradients = 0, moments = 0;
  std::int64_t activations = 0;  // of all micro-batches in flight
  std::int64_t working = 0;      // what a pass holds besides
  [[nodiscard]] std::int64_t total() const {
    return weights + gradients + moments + activations + working;
  }
};

// Of rank 0, whose stage has most micro-batches in flight. Options and sizes must have been
// checked.
[[nodiscard]] RankMemory first_rank_memory(const ModelConfig& model, const ParallelOptions& options,
                                           const ParallelOptions::Sizes& sizes,
                                           const GridShape& grid);

}  // namespace mt
