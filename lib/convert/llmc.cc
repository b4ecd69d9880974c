#include "convert/llmc.h"

#include <memory>
#include <vector>

#include "base/commit.h"
#include "base/error.h"
#include "base/log.h"
#include "ckpt/manifest.h"
#include "convert/foreign_writer.h"
#include "convert/llmc_file.h"
#include "convert/stacked_names.h"

namespace mt {
namespace {

void check_architecture(const ModelConfig& config) {
  const auto refuse = [](const std::string& what) { throw UsageError(cat("--to llmc: ", what)); };
  if (config.untie_embeddings_and_output_weights) refuse("that format ties the head");
  if (config.ffn_hidden_size != 4 * config.hidden_size) {
    refuse(cat("an inner width of ", config.ffn_hidden_size, ", which that format makes 4 x ",
               config.hidden_size));
  }
  if (config.layernorm_epsilon != 1e-5) {
    refuse(cat("epsilon ", config.layernorm_epsilon, ", which that format makes 1e-5"));
  }
}

DType type_of(const Gpt2Source& from, const ExportSettings& settings) {
  const DType type = settings.weights.value_or(
      from.stored(kStackedFirst[0].ours[0]) == DType::kBf16 ? DType::kBf16 : DType::kF32);
  if (type == DType::kF16) throw UsageError("--dtype fp16: llm.c's files hold fp32 or bf16");
  return type;
}

}  // namespace

void export_llmc(const std::string& source, const std::string& destination,
                 const ExportSettings& settings) {
  const Gpt2Source from(source);
  const ModelConfig& config = from.config();
  check_architecture(config);
  const DType type = type_of(from, settings);
  std::uint64_t elements = 0;
  std::vector<ForeignTarget> targets;
  for (const LlmcPlace& place : llmc_places(config, elements)) {
    targets.push_back({.name = place.ours,
                       .type = type,
                       .offset = kLlmcHeaderBytes + place.at * dtype_size(type),
                       .parts = {{.ours = place.ours}}});
  }
  PendingFile file(destination, settings.replace ? PendingFile::Existing::kReplace
                                                 : PendingFile::Existing::kRefuse);
  const std::string header = llmc_header(config, type);
  write_fully_at(file.fd(), header.data(), header.size(), 0, file.temporary_path());
  from.write(targets, {{file.fd(), file.temporary_path()}}, destination, settings);
  // The rows that pad the vocabulary, which may be the last bytes that nobody wrote yet.
  const auto words = static_cast<std::uint64_t>(config.vocab_size * config.hidden_size);
  const auto all = static_cast<std::uint64_t>(llmc_padded(config.vocab_size) * config.hidden_size);
  const std::string zeros((all - words) * dtype_size(type), '\0');
  file.write_at(kLlmcHeaderBytes + words * dtype_size(type), zeros);
  file.commit();
  from.report(targets.size(), elements * dtype_size(type), destination);
}

std::unique_ptr<TensorSource> open_llmc(const std::string& path,
                                        const ForeignReader::Settings& settings) {
  const LlmcFile file(path);
  std::uint64_t elements = 0;
  std::vector<ForeignOrigin> origins;
  for (const LlmcPlace& place : llmc_places(file.config(), elements)) {
    origins.push_back({.ours = place.ours,
                       .theirs = place.ours,
                       .shape = place.shape,
                       .type = file.type(),
                       .offset = kLlmcHeaderBytes + place.at * dtype_size(file.type())});
  }
  return std::make_unique<ForeignReader>(printable(path), file.config().to_json(),
                                         std::vector{path}, std::move(origins), settings);
}

}  // namespace mt
