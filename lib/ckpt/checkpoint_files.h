// The files of a checkpoint beside those of boxes, and the names of those.
#pragma once

#include <string>

#include "ckpt/checkpoint.h"
#include "ckpt/manifest.h"

namespace mt {

[[nodiscard]] std::string model_file_name(const GridPlace& place);      // model-pp00-tp00.h5
[[nodiscard]] std::string optimizer_file_name(const GridPlace& place);  // optim-pp00-tp00-dp00.h5

// Given what all files of boxes hold, with the digests of the tensors: takes the rest of the
// manifest from the content, and writes and synchronises into `folder` the index, the carried files
// and, last, the manifest. Boxes are put in the order of their offsets, so that equal content gives
// equal bytes. `where` is the checkpoint's name in messages. Throws EnvironmentError; DataError if
// the boxes do not cover their tensors.
void write_shared_files(const std::string& folder, const CheckpointContent& content,
                        const std::string& where, Manifest& manifest);

}  // namespace mt
