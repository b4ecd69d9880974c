// GPT-2 in Hugging Face's layout (config.json beside safetensors) into a checkpoint.
//
// Their Conv1D weights are [in, out] with query, key and value side by side; ours are [out, in] and
// three tensors. The table of names is data (hugging_face_names.h). Nothing is guessed: a tensor
// that is unknown, missing or of another shape, an activation or scaling that the architecture does
// not have, or a head that contradicts the configuration ends the import.
#pragma once

#include <string>

#include "comm/communicator.h"
#include "convert/load_model.h"
#include "model/config.h"

namespace mt {

// Reads the configuration of a GPT-2. Sizes must be written there, other keys have the defaults of
// the format. Throws DataError naming `where` and the key.
[[nodiscard]] ModelConfig parse_gpt2_config(const std::string& text, const std::string& where);

// True if the directory looks like one of Hugging Face: it holds a config.json and no
// manifest.json.
[[nodiscard]] bool is_hugging_face(const std::string& directory);

// Imports `source` as the checkpoint `destination`: weights in the type given (store_weights_as),
// iteration 0, no training state. The tokenizer is the directory's (vocab.json and merges.txt),
// or the one that `tokenizer` names, which must be the same if both are there, or none. Needs
// memory for the weights. Throws DataError naming file and object, EnvironmentError; UsageError for
// an existing destination unless replace. Then nothing is left.
void import_hugging_face(const std::string& source, const std::string& destination,
                         const TokenizerOptions& tokenizer, const Communicator& world, bool replace,
                         DType weights = DType::kF32);

}  // namespace mt
