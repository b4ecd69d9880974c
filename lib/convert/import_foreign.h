// Models in other libraries' formats: seen as ours, and written as checkpoints of any grid.
#pragma once

#include <memory>
#include <string>

#include "convert/copy_checkpoint.h"
#include "convert/foreign_reader.h"
#include "convert/load_model.h"

namespace mt {

// "safetensors" (hugging_face.h) or "llmc" (llmc.h), which is found by looking; "" for what is
// neither.
[[nodiscard]] std::string foreign_format(const std::string& path);

// What such a path holds: the weights, and the tokenizer beside them or null. Throws DataError
// naming file and object, EnvironmentError.
struct ForeignModelFiles {
  std::string format;
  std::unique_ptr<TensorSource> weights;
  std::unique_ptr<Tokenizer> tokenizer;
};
[[nodiscard]] ForeignModelFiles open_foreign(const std::string& path,
                                             const ForeignReader::Settings& settings);

// Imports `source` as the checkpoint `destination`, streamed in bounded memory: iteration 0, no
// training state. Weights that are to stay as they are (settings.weights) become f32 if they are
// Hugging Face's. The tokenizer is the one beside them, or the one that `tokenizer` names, which
// must be the same if both are there, or none. Throws what open_foreign does, UsageError for an
// existing destination unless replace or a layout that the model does not allow, and as reshard and
// Meter do. Then nothing is left.
void import_foreign(const std::string& source, const std::string& destination,
                    const TokenizerOptions& tokenizer, const CopySettings& settings);

}  // namespace mt
