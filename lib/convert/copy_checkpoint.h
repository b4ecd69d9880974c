// A checkpoint written anew: load and save, tensor by tensor under global names and shapes.
#pragma once

#include <optional>
#include <string>

#include "base/dtype.h"
#include "comm/communicator.h"

namespace mt {

// Reads the checkpoint that `source` means (find_checkpoint), every hash verified, and writes all
// of it (weights, optimizer and training state, tokenizer) to `destination`. weights: the type
// in which they are stored (store_weights_as); absent: as they are. Needs memory for all tensors at
// once. Throws as save_checkpoint and CheckpointReader do.
void copy_checkpoint(const std::string& source, const std::string& destination,
                     const Communicator& world, bool replace, std::optional<DType> weights = {});

}  // namespace mt
