// A checkpoint as a directory of Hugging Face's: config.json, safetensors and the tokenizer's files
// of a GPT-2 (GPT2LMHeadModel), which the class of that name loads. The other way: hugging_face.h.
#pragma once

#include <string>

#include "convert/gpt2_source.h"

namespace mt {

// Writes the weights of the checkpoint that `source` means (find_checkpoint), every byte verified,
// in whatever layout they are stored, as the directory `destination`, which appears whole or not at
// all. What only training needs is left out, with a word in the log. Throws DataError (damage, a
// tensor that the model lacks or has more), EnvironmentError, UsageError for an existing
// destination unless replace, and what Meter throws; then nothing is left.
void export_hugging_face(const std::string& source, const std::string& destination,
                         const ExportSettings& settings);

}  // namespace mt
