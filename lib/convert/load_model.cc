#include "convert/load_model.h"

#include <set>
#include <sstream>
#include <utility>

#include "base/commit.h"
#include "base/error.h"
#include "base/log.h"
#include "ckpt/checkpoint.h"
#include "ckpt/parameters.h"
#include "comm/texts.h"
#include "model/inference_grid.h"

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

// The newest checkpoint may become another one between two looks: rank 0's counts.
std::string find_directory(const std::string& path, const Communicator& world) {
  std::string directory;
  if (world.rank() == 0) {
    const FoundCheckpoint found = find_checkpoint(path);
    if (found.absent) {
      throw EnvironmentError(cat("--load ", printable(path), ": there is no checkpoint"));
    }
    directory = found.directory;
  }
  return broadcast_text(world, directory);
}

// Throws DataError if the stages of the pipeline together do not take every weight.
void check_all_taken(const CheckpointReader& reader, const std::vector<Parameter*>& parameters,
                     const Communicator& pipeline) {
  std::string names;
  for (const Parameter* parameter : parameters) {
    for (const Segment& segment : parameter->segments) names += segment.name + "\n";
  }
  std::set<std::string> taken;
  for (const std::string& part : gather_texts(pipeline, names)) {
    std::istringstream lines(part);
    for (std::string name; std::getline(lines, name);) taken.insert(name);
  }
  for (const auto& [name, info] : reader.tensors()) {
    if (!info.optimizer && !taken.contains(name)) {
      throw DataError(
          cat(reader.directory(), ": tensor ", name, ": the model has no place for it"));
    }
  }
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
                       const ProcessGrid& grid, Pool& pool, DType weights,
                       const LayerLayout& layout) {
  if (path.empty()) throw UsageError("--load: a checkpoint or a training run must be named");
  LoadedModel model;
  model.directory = find_directory(path, grid.world());
  const CheckpointReader reader(model.directory);
  model.iteration = reader.iteration();
  model.config = ModelConfig::from_json(reader.model(), cat(model.directory, "/manifest.json"));
  if (model.config.kind != "gpt") {
    throw DataError(
        cat(model.directory, ": a model of kind ", printable(model.config.kind), ", expected gpt"));
  }
  check_size(reader, model.config);
  check_cut(model.config, grid.shape());
  if (grid.world().rank() == 0) {
    model.tokenizer = choose_tokenizer(reader, tokenizer, model.config);
  }
  model.stage = std::make_unique<GptStage>(
      model.config, stage_range(model.config, grid.shape().pipeline, grid.place().pipeline),
      grid.tensor(), pool, Use::kInference, weights, layout);
  load_parameters(reader, model.stage->parameters(), false);
  check_all_taken(reader, model.stage->parameters(), grid.pipeline());
  return model;
}

DType inference_precision(const std::string& name) {
  if (name == "fp32") return DType::kF32;
  if (name == "bf16") return DType::kBf16;
  throw UsageError(cat("--precision: expected one of fp32, bf16, found \"", printable(name), "\""));
}

}  // namespace mt
