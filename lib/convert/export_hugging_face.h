// A checkpoint as a directory of Hugging Face's: config.json, safetensors and the tokenizer's files
// of a GPT-2 (GPT2LMHeadModel), which the class of that name loads. The other way: hugging_face.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "model/config.h"

namespace mt {

struct ExportSettings {
  std::optional<DType> weights = {};                   // f32, bf16 or f16; absent: as stored
  std::uint64_t most_shard = std::uint64_t{50} << 30;  // bytes of tensors in a file; one at least
  bool replace = false;
  std::uint64_t most_memory = std::uint64_t{1} << 30;  // bytes
  std::function<int()> stop = {};  // a signal that asks to stop, or 0; empty: nobody asks
};

// Writes the weights of the checkpoint that `source` means (find_checkpoint), every byte verified,
// in whatever layout they are stored, as the directory `destination`, which appears whole or not at
// all. What only training needs is left out, with a word in the log. Throws DataError (damage, a
// tensor that the model lacks or has more), EnvironmentError, UsageError for an existing
// destination unless replace, and what Meter throws; then nothing is left.
void export_hugging_face(const std::string& source, const std::string& destination,
                         const ExportSettings& settings);

}  // namespace mt
