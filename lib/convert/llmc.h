// llm.c's model files (karpathy/llm.c, train_gpt2.py and train_gpt2.c: magic 20240326, version 3 in
// f32, version 5 in bf16): 256 numbers of 32 bits, then all parameters, each kind stacked over the
// layers; matrices lie as ours do, and the vocabulary is padded with rows of zeros to a multiple of
// 128. The architecture is GPT-2's alone: inner width 4 h, a tied head, epsilon 1e-5.
#pragma once

#include <string>

#include "comm/communicator.h"
#include "convert/gpt2_source.h"
#include "convert/llmc_file.h"
#include "convert/load_model.h"

namespace mt {

// Writes the weights of the checkpoint that `source` means as the file `destination`, in f32 or
// bf16 (absent: bf16 if they are stored so, else f32), whole or not at all. Throws UsageError for a
// model or type that the format has no place for, or an existing destination unless replace; else
// as Gpt2Source does.
void export_llmc(const std::string& source, const std::string& destination,
                 const ExportSettings& settings);

// The file `source` as the checkpoint `destination` of one rank, in the type of the file;
// iteration 0, no training state; the tokenizer that `tokenizer` names travels, or none. Nothing in
// the file is trusted. Throws DataError naming file and field, EnvironmentError, UsageError for an
// existing destination unless replace.
void import_llmc(const std::string& source, const std::string& destination,
                 const TokenizerOptions& tokenizer, const Communicator& world, bool replace);

}  // namespace mt
