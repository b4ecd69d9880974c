// From what a --load means to a model that can be asked, with the tokenizer that travelled with it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/options.h"
#include "comm/grid.h"
#include "model/config.h"
#include "model/gpt.h"
#include "text/tokenizer.h"

namespace mt {

// Tokenizer files that a command line names; both or none.
struct TokenizerOptions {
  std::string vocab_file;  // vocab.json
  std::string merge_file;  // merges.txt

  void add_to(Options& options);
  // Null when no file was named. Throws UsageError for one file without the other,
  // EnvironmentError, DataError.
  [[nodiscard]] std::unique_ptr<Tokenizer> open() const;
};

struct LoadedModel {
  std::string directory;  // the checkpoint that was taken
  std::int64_t iteration = 0;
  ModelConfig config;
  std::unique_ptr<GptStage> stage;       // for inference: what this rank of the grid has
  std::unique_ptr<Tokenizer> tokenizer;  // rank 0's; null if neither carried nor given
};

// Opens the checkpoint that `path` means (find_checkpoint), verifies and loads its weights.
// A tokenizer that was given must have the digest of the one that the checkpoint was trained with,
// and no tokenizer may have more entries than the model. Each rank of the grid (of no data axis)
// reads its part of the checkpoint that rank 0 finds; collective over the grid's world. grid and
// pool must outlive the result. weights: kF32, or kBf16, which rounds every parameter to the
// nearest bf16 number (ties to even): the results are, bit for bit, those of the f32 model with the
// rounded weights. Throws UsageError (no path, a model that cannot be cut so), EnvironmentError
// (nothing there, no memory), DataError (damage by tensor, another architecture, other tokenizer:
// both digests).
[[nodiscard]] LoadedModel load_model(const std::string& path, const TokenizerOptions& tokenizer,
                                     const ProcessGrid& grid, Pool& pool,
                                     DType weights = DType::kF32, const LayerLayout& layout = {});

// What --precision of a program that loads a model means: "fp32" or "bf16". Throws UsageError.
[[nodiscard]] DType inference_precision(const std::string& name);

// The carried files of a tokenizer under their names in a checkpoint, and the digest as stored.
constexpr const char* kCarriedVocab = "tokenizer/vocab.json";
constexpr const char* kCarriedMerges = "tokenizer/merges.txt";

}  // namespace mt
