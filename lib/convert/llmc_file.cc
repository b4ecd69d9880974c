#include "convert/llmc_file.h"

#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "base/commit.h"
#include "base/error.h"
#include "base/log.h"
#include "convert/hugging_face_names.h"
#include "convert/renamed.h"
#include "convert/stacked_names.h"

namespace mt {
namespace {

constexpr std::int32_t kMagic = 20240326, kVersionF32 = 3, kVersionBf16 = 5;
constexpr std::size_t kHeaderNumbers = 256;
constexpr std::int64_t kVocabularyMultiple = 128;
using Header = std::array<std::int32_t, kHeaderNumbers>;

// Our options as that format calls them.
constexpr std::array<Renamed, 4> kWords{{{"--max-position-embeddings", "max_seq_len"},
                                         {"--num-attention-heads", "num_heads"},
                                         {"--num-layers", "num_layers"},
                                         {"--hidden-size", "channels"}}};

// The configuration that a header gives; the type of the numbers in `type`.
ModelConfig parse_header(const Header& header, const std::string& where, DType& type) {
  if (header[0] != kMagic) {
    throw DataError(cat(where, ": magic number ", header[0], ", expected ", kMagic));
  }
  if (header[1] != kVersionF32 && header[1] != kVersionBf16) {
    throw DataError(cat(where, ": version ", header[1], ", expected 3 (fp32) or 5 (bf16)"));
  }
  type = header[1] == kVersionF32 ? DType::kF32 : DType::kBf16;
  constexpr std::array kNames{"max_seq_len", "vocab_size", "num_layers",
                              "num_heads",   "channels",   "padded_vocab_size"};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (header[i + 2] > 0) continue;
    throw DataError(cat(where, ": ", kNames[i], ": expected 1 or more, found ", header[i + 2]));
  }
  ModelConfig config;
  config.max_position_embeddings = header[2];
  config.vocab_size = header[3];
  config.num_layers = header[4];
  config.num_attention_heads = header[5];
  config.hidden_size = header[6];
  if (header[7] != llmc_padded(config.vocab_size)) {
    throw DataError(cat(where, ": padded_vocab_size: expected ", llmc_padded(config.vocab_size),
                        ", found ", header[7]));
  }
  try {
    config.check();
  } catch (const UsageError& error) {
    throw DataError(cat(where, ": ", renamed(error.what(), kWords)));
  }
  return config;
}

}  // namespace

std::int64_t llmc_padded(std::int64_t vocabulary) {
  return (vocabulary + kVocabularyMultiple - 1) / kVocabularyMultiple * kVocabularyMultiple;
}

std::vector<LlmcPlace> llmc_places(const ModelConfig& config, std::uint64_t& elements) {
  std::map<std::string, Shape> shapes;
  for (const NamedTensor& tensor : gpt2_tensors(config, "")) {
    shapes[tensor.ours] = our_shape(*tensor.name, config);
  }
  std::vector<LlmcPlace> out;
  std::uint64_t at = 0;
  const auto add = [&](const std::string& name) {
    const Shape& shape = shapes.at(name);
    out.push_back({name, shape, at});
    at += static_cast<std::uint64_t>(element_count(shape));
  };
  add(kStackedFirst[0].ours[0]);
  at = static_cast<std::uint64_t>(llmc_padded(config.vocab_size) * config.hidden_size);
  add(kStackedFirst[1].ours[0]);
  for (const StackedName& kind : kStackedLayer) {
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
      for (const char* const name : kind.ours) {
        if (name != nullptr) add(cat("layers.", layer, ".", name));
      }
    }
  }
  for (const StackedName& kind : kStackedLast) add(kind.ours[0]);
  elements = at;
  return out;
}

std::string llmc_header(const ModelConfig& config, DType type) {
  Header header{};
  header[0] = kMagic;
  header[1] = type == DType::kF32 ? kVersionF32 : kVersionBf16;
  const auto number = [](std::int64_t size) { return static_cast<std::int32_t>(size); };
  header[2] = number(config.max_position_embeddings);
  header[3] = number(config.vocab_size);
  header[4] = number(config.num_layers);
  header[5] = number(config.num_attention_heads);
  header[6] = number(config.hidden_size);
  header[7] = number(llmc_padded(config.vocab_size));
  return {reinterpret_cast<const char*>(header.data()), sizeof header};
}

bool is_llmc(const std::string& path) {
  std::int32_t magic = 0;
  if (!is_file(path)) return false;
  const FileDescriptor fd = open_regular(path);
  if (file_size(fd.get(), path) < sizeof magic) return false;
  read_fully_at(fd.get(), &magic, sizeof magic, 0, path);
  return magic == kMagic;
}

LlmcFile::LlmcFile(const std::string& path) : file_(path) {
  const std::string where = printable(path);
  if (file_.bytes() < kLlmcHeaderBytes) {
    throw DataError(cat(where, ": truncated: ", file_.bytes(), " bytes, its header alone has ",
                        kLlmcHeaderBytes));
  }
  Header header;
  std::memcpy(header.data(), file_.data(), sizeof header);
  config_ = parse_header(header, where, type_);
  // So large a model that the table of its tensors alone would be is refused by its size first.
  const auto parameters = static_cast<std::uint64_t>(
      config_.parameter_count() +
      (llmc_padded(config_.vocab_size) - config_.vocab_size) * config_.hidden_size);
  if (file_.bytes() != kLlmcHeaderBytes + parameters * dtype_size(type_)) {
    throw DataError(cat(where, ": ", file_.bytes(), " bytes, expected ", kLlmcHeaderBytes, " + ",
                        parameters, " parameters of ", dtype_size(type_)));
  }
  std::uint64_t elements = 0;
  for (LlmcPlace& place : llmc_places(config_, elements)) {
    tensors_.push_back({std::move(place.ours), std::move(place.shape),
                        file_.data() + kLlmcHeaderBytes + place.at * dtype_size(type_)});
  }
  MT_ASSERT(elements == parameters);
}

}  // namespace mt
