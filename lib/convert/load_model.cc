#include "convert/load_model.h"

#include <utility>

#include "base/commit.h"
#include "base/error.h"
#include "base/log.h"
#include "ckpt/checkpoint.h"
#include "ckpt/parameters.h"

namespace mt {
namespace {

// GPT-2's two files are 1.5 MB; a hundred times that is no vocabulary.
constexpr std::uint64_t kTokenizerFileLimit = 256U << 20;

// What the sizes of the model would allocate is held against what is there, before it is.
void check_size(const CheckpointReader& reader, const ModelConfig& config) {
  std::int64_t stored = 0;
  for (const auto& [name, info] : reader.tensors()) {
    if (!info.optimizer) stored += element_count(info.shape);
  }
  if (const std::int64_t wanted = config.parameter_count(); wanted > stored) {
    throw DataError(cat(reader.directory(), "/manifest.json: model: its sizes make ", wanted,
                        " parameters, but its tensors hold only ", stored));
  }
}

std::unique_ptr<Tokenizer> carried_tokenizer(const CheckpointReader& reader) {
  TokenizerFiles files{reader.file(kCarriedVocab), reader.file(kCarriedMerges)};
  if (files.empty()) return nullptr;
  auto tokenizer = make_bpe_tokenizer(std::move(files), cat(reader.directory(), "/tokenizer"));
  const std::string digest = to_hex(tokenizer->digest());
  if (!reader.tokenizer_digest().empty() && digest != reader.tokenizer_digest()) {
    throw DataError(cat(reader.directory(), ": the tokenizer it carries has digest ", digest,
                        ", its manifest says ", reader.tokenizer_digest()));
  }
  return tokenizer;
}

std::unique_ptr<Tokenizer> choose_tokenizer(const CheckpointReader& reader,
                                            const TokenizerOptions& options,
                                            const ModelConfig& config) {
  auto tokenizer = options.open();
  if (tokenizer == nullptr) {
    tokenizer = carried_tokenizer(reader);
  } else {
    const std::string given = to_hex(tokenizer->digest());
    if (!reader.tokenizer_digest().empty() && given != reader.tokenizer_digest()) {
      throw DataError(cat("--vocab-file ", printable(options.vocab_file),
                          ": this tokenizer has digest ", given, ", the checkpoint ",
                          reader.directory(), " was made with ", reader.tokenizer_digest()));
    }
  }
  if (tokenizer != nullptr && tokenizer->vocab_size() > config.vocab_size) {
    throw DataError(cat(reader.directory(), ": the tokenizer has ", tokenizer->vocab_size(),
                        " entries, the model only ", config.vocab_size));
  }
  return tokenizer;
}

}  // namespace

void TokenizerOptions::add_to(Options& options) {
  options.add("vocab-file", &vocab_file, "FILE",
              "vocab.json of the tokenizer, where none travels with the model; one that does must "
              "be the same");
  options.add("merge-file", &merge_file, "FILE", "merges.txt of the tokenizer");
}

std::unique_ptr<Tokenizer> TokenizerOptions::open() const {
  if (vocab_file.empty() && merge_file.empty()) return nullptr;
  if (vocab_file.empty() || merge_file.empty()) {
    throw UsageError("--vocab-file and --merge-file go together: only one of them is given");
  }
  return make_bpe_tokenizer(
      {read_file(vocab_file, kTokenizerFileLimit), read_file(merge_file, kTokenizerFileLimit)},
      TokenizerNames{printable(vocab_file), printable(merge_file)});
}

LoadedModel load_model(const std::string& path, const TokenizerOptions& tokenizer,
                       const Communicator& tp, Pool& pool, DType weights) {
  if (path.empty()) throw UsageError("--load: a checkpoint or a training run must be named");
  const FoundCheckpoint found = find_checkpoint(path);
  if (found.absent) {
    throw EnvironmentError(cat("--load ", printable(path), ": there is no checkpoint"));
  }
  const CheckpointReader reader(found.directory);
  LoadedModel model;
  model.directory = found.directory;
  model.iteration = reader.iteration();
  model.config = ModelConfig::from_json(reader.model(), cat(found.directory, "/manifest.json"));
  if (model.config.kind != "gpt") {
    throw DataError(
        cat(found.directory, ": a model of kind ", printable(model.config.kind), ", expected gpt"));
  }
  check_size(reader, model.config);
  model.tokenizer = choose_tokenizer(reader, tokenizer, model.config);
  const StageRange whole{.first_layer = 0, .last_layer = model.config.num_layers};
  model.stage = std::make_unique<GptStage>(model.config, whole, tp, pool, Use::kInference, weights);
  load_parameters(reader, model.stage->parameters(), true);
  return model;
}

DType inference_precision(const std::string& name) {
  if (name == "fp32") return DType::kF32;
  if (name == "bf16") return DType::kBf16;
  throw UsageError(cat("--precision: expected one of fp32, bf16, found \"", printable(name), "\""));
}

}  // namespace mt
