// A checkpoint written anew: in another layout, in another type, without what only training needs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "ckpt/layout.h"

namespace mt {

struct CopySettings {
  CheckpointLayout layout = {};       // of the destination
  std::optional<DType> weights = {};  // stored in this floating type; absent: as they are
  bool model_only = false;            // neither the optimizer's tensors nor the state of training
  bool replace = false;
  std::uint64_t most_memory = std::uint64_t{1} << 30;  // bytes
  std::function<int()> stop = {};  // a signal that asks to stop, or 0; empty: nobody asks
};

// Reads the checkpoint that `source` means (find_checkpoint), every byte verified, and writes all
// of it to `destination`, tensor by tensor under global names and shapes, in bounded memory.
// Weights of 16 bits are model_only. Throws as plan_grid, reshard and Meter do.
void copy_checkpoint(const std::string& source, const std::string& destination,
                     const CopySettings& settings);

}  // namespace mt
