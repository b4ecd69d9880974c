// GPT-2 in Hugging Face's layout (config.json beside safetensors) into a checkpoint.
//
// Their Conv1D weights are [in, out] with query, key and value side by side; ours are [out, in] and
// three tensors. The table of names is data (hugging_face_names.h). Nothing is guessed: a tensor
// that is unknown, missing or of another shape, an activation or scaling that the architecture does
// not have, or a head that contradicts the configuration ends the import.
#pragma once

#include <memory>
#include <string>

#include "convert/foreign_reader.h"
#include "model/config.h"

namespace mt {

// Reads the configuration of a GPT-2. Sizes must be written there, other keys have the defaults of
// the format. Throws DataError naming `where` and the key.
[[nodiscard]] ModelConfig parse_gpt2_config(const std::string& text, const std::string& where);

// True if the directory looks like one of Hugging Face: it holds a config.json and no
// manifest.json.
[[nodiscard]] bool is_hugging_face(const std::string& directory);

// The weights that the directory holds, in the types in which they are stored there, f64 as f32.
// Throws DataError naming file and object, EnvironmentError.
[[nodiscard]] std::unique_ptr<TensorSource> open_hugging_face(
    const std::string& directory, const ForeignReader::Settings& settings);

}  // namespace mt
