// Weights that several ranks hold must be equal in every bit. A rank whose memory, processor or
// program has gone wrong shows here before it spoils a checkpoint.
#pragma once

#include <vector>

#include "comm/grid.h"
#include "model/gpt.h"

namespace mt {

// Compares digests (XXH3-128 of the bytes) of each weight over the data axis, of those that each
// tensor rank holds whole over the tensor axis, and of a tied embedding and its copy. Throws
// NumericError, the same on every rank, that names the tensor, the digest that most ranks have, and
// the ranks that have others. stages: this rank's chunks of the model, in order. Collective over
// the grid.
void check_replicas(const ProcessGrid& grid, const std::vector<GptStage*>& stages);

}  // namespace mt
