// llm.c's model files (karpathy/llm.c, train_gpt2.py and train_gpt2.c: magic 20240326, version 3 in
// f32, version 5 in bf16): 256 numbers of 32 bits, then all parameters, each kind stacked over the
// layers; matrices lie as ours do, and the vocabulary is padded with rows of zeros to a multiple of
// 128. The architecture is GPT-2's alone: inner width 4 h, a tied head, epsilon 1e-5.
#pragma once

#include <memory>
#include <string>

#include "convert/foreign_reader.h"
#include "convert/gpt2_source.h"
#include "convert/llmc_file.h"

namespace mt {

// Writes the weights of the checkpoint that `source` means as the file `destination`, in f32 or
// bf16 (absent: bf16 if they are stored so, else f32), whole or not at all. Throws UsageError for a
// model or type that the format has no place for, or an existing destination unless replace; else
// as Gpt2Source does.
void export_llmc(const std::string& source, const std::string& destination,
                 const ExportSettings& settings);

// The weights that the file holds, in its type. Nothing in it is trusted. Throws DataError naming
// file and field, EnvironmentError.
[[nodiscard]] std::unique_ptr<TensorSource> open_llmc(const std::string& path,
                                                      const ForeignReader::Settings& settings);

}  // namespace mt
