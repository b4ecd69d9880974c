#include "convert/import_foreign.h"

#include <utility>

#include "base/commit.h"
#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "ckpt/checkpoint.h"
#include "ckpt/manifest.h"
#include "ckpt/reshard.h"
#include "convert/grid_plan.h"
#include "convert/hugging_face.h"
#include "convert/llmc.h"
#include "convert/meter.h"
#include "io/mapped_file.h"

namespace mt {
namespace {

constexpr const char* kSafetensors = "safetensors";
constexpr const char* kLlmc = "llmc";

// The tokenizer that lies in a directory, or null.
std::unique_ptr<Tokenizer> own_tokenizer(const std::string& directory) {
  const std::string vocab = directory + "/vocab.json";
  const std::string merges = directory + "/merges.txt";
  if (!exists(vocab) && !exists(merges)) return nullptr;
  for (const std::string& file : {vocab, merges}) {
    if (!exists(file)) {
      throw DataError(cat(printable(file), " is missing: a tokenizer is both files"));
    }
  }
  return TokenizerOptions{vocab, merges}.open();
}

// The one beside the weights or the one that was named, which must be the same if both are there;
// or null.
std::unique_ptr<Tokenizer> choose_tokenizer(const std::string& source, ForeignModelFiles& files,
                                            const TokenizerOptions& options,
                                            const ModelConfig& config) {
  auto tokenizer = std::move(files.tokenizer);
  const bool directory = files.format == kSafetensors;
  if (auto given = options.open(); given != nullptr) {
    if (tokenizer != nullptr && given->digest() != tokenizer->digest()) {
      throw DataError(cat("--vocab-file ", printable(options.vocab_file),
                          ": this tokenizer has digest ", to_hex(given->digest()), ", that of ",
                          printable(source), " has ", to_hex(tokenizer->digest())));
    }
    tokenizer = std::move(given);
  }
  if (tokenizer == nullptr) {
    log_warning(cat(printable(source), directory
                                           ? ": no vocab.json and merges.txt, so no tokenizer "
                                             "travels with the model"
                                           : ": that format carries no tokenizer; --vocab-file and "
                                             "--merge-file name one that travels with the model"));
  } else if (tokenizer->vocab_size() > config.vocab_size) {
    throw DataError(cat(printable(source), ": the vocab.json that would travel has ",
                        tokenizer->vocab_size(), " entries, but ",
                        directory ? "config.json's " : "", "vocab_size is ", config.vocab_size));
  }
  return tokenizer;
}

}  // namespace

std::string foreign_format(const std::string& path) {
  return is_hugging_face(path) ? kSafetensors : is_llmc(path) ? kLlmc : "";
}

ForeignModelFiles open_foreign(const std::string& path, const ForeignReader::Settings& settings) {
  if (is_file(path)) return {kLlmc, open_llmc(path, settings), nullptr};
  return {kSafetensors, open_hugging_face(path, settings), own_tokenizer(path)};
}

void import_foreign(const std::string& source, const std::string& destination,
                    const TokenizerOptions& tokenizer, const CopySettings& settings) {
  // One half is for what is turned, the other for what reshard() has in hand.
  const std::uint64_t half = settings.most_memory / 2;
  ForeignModelFiles files =
      open_foreign(source, {.most_turned = half / static_cast<std::uint64_t>(threads())});
  const TensorSource& weights = *files.weights;
  const ModelConfig config = ModelConfig::from_json(weights.model(), printable(source));
  const auto chosen = choose_tokenizer(source, files, tokenizer, config);

  CheckpointContent content;
  content.model = weights.model();
  content.layout = settings.layout;
  if (chosen != nullptr) {
    content.files[kCarriedVocab] = chosen->files().vocab;
    content.files[kCarriedMerges] = chosen->files().merges;
    content.tokenizer_digest = to_hex(chosen->digest());
  }
  auto type = settings.weights;
  if (!type && files.format == kSafetensors) type = DType::kF32;
  const ReshardFiles plan = plan_grid(weights, settings.layout, true, type);
  std::uint64_t total = 0;
  for (const auto& [name, info] : weights.tensors()) {
    total += checked_bytes(info.shape, info.dtype, name);
  }
  {
    Meter meter(printable(destination), total, settings.stop);
    reshard(weights, destination, plan, content,
            {.replace = settings.replace,
             .most_memory = half,
             .progress = [&](std::uint64_t bytes) { meter.add(bytes); }});
  }
  log_info(cat(printable(source), ": ", weights.tensors().size(), " tensors, ",
               config.parameter_count(), " parameters written to ", printable(destination)));
}

}  // namespace mt
