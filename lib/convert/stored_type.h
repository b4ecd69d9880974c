// The type in which a checkpoint that is written from another model stores its weights.
#pragma once

#include <cstddef>
#include <vector>

#include "ckpt/checkpoint.h"

namespace mt {

// Makes all weights of `content` ones of `type` (f32 or bf16; from bf16 to f32 is exact, the other
// way rounds to the nearest, ties to even). bf16 is for evaluation and generation: the optimizer's
// tensors and the state of training, which belong to the unrounded weights, are dropped then, with
// a word in the log. keep: gets the new values, to which the boxes point. Throws DataError for a
// weight that has no floating numbers, or one that bf16 cannot hold.
void store_weights_as(CheckpointContent& content, DType type,
                      std::vector<std::vector<std::byte>>& keep);

}  // namespace mt
