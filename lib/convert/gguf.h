// GGUF, version 3 (ggml-org/ggml, docs/gguf.md), architecture gpt2, as llama.cpp and what is built
// on it read it: keys of the model and of the tokenizer, then the tensors. Only written.
#pragma once

#include <string>

#include "convert/gpt2_source.h"

namespace mt {

// Writes the checkpoint that `source` means as the file `destination`, whole or not at all.
// Matrices are f32, f16 or bf16 as asked (absent: as stored); vectors and the table of positions
// stay f32, since those who read the format add them to f32. The tokenizer must travel in the
// checkpoint; entries of the model that it lacks are written as unused ones. Throws DataError if
// there is none, UsageError for an existing destination unless replace; else as Gpt2Source does.
void export_gguf(const std::string& source, const std::string& destination,
                 const ExportSettings& settings);

}  // namespace mt
