// Which rank of a grid would save which boxes of a model: the files of a checkpoint in a layout
// that nobody has run.
#pragma once

#include <optional>

#include "ckpt/checkpoint.h"
#include "ckpt/layout.h"
#include "ckpt/reshard.h"

namespace mt {

// The files of the checkpoint in the layout, as training on that grid would write them; on one rank
// any tensors will do, else the model must be a GPT with all its weights, and moments of each or of
// none. weights_only: no optimizer's. weights: their type (absent: as stored). Throws UsageError
// with the arithmetic for a layout that the model does not allow, DataError for a tensor that the
// model lacks, or has more.
[[nodiscard]] ReshardFiles plan_grid(const TensorSource& from, const CheckpointLayout& layout,
                                     bool weights_only, std::optional<DType> weights);

}  // namespace mt
