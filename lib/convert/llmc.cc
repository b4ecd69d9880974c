#include "convert/llmc.h"

#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "base/commit.h"
#include "base/error.h"
#include "base/log.h"
#include "base/small_floats.h"
#include "ckpt/manifest.h"
#include "convert/foreign_writer.h"
#include "convert/renamed.h"

namespace mt {
namespace {

constexpr std::int32_t kMagic = 20240326, kVersionF32 = 3, kVersionBf16 = 5;
constexpr std::size_t kHeaderNumbers = 256;
constexpr std::uint64_t kHeaderBytes = kHeaderNumbers * 4;
constexpr std::int64_t kVocabularyMultiple = 128;
using Header = std::array<std::int32_t, kHeaderNumbers>;

// The kinds of tensors in the order of the file: those before the layers, of every layer, after
// them.
constexpr std::array kFirst{"embedding.word_embeddings.weight",
                            "embedding.position_embeddings.weight"};
constexpr std::array kLast{"final_layernorm.weight", "final_layernorm.bias"};
struct Kind {
  std::array<const char*, 3> names;  // that follow each other in a layer
};
constexpr std::array kLayer{
    Kind{{"input_layernorm.weight"}},
    Kind{{"input_layernorm.bias"}},
    Kind{{"self_attention.query.weight", "self_attention.key.weight",
          "self_attention.value.weight"}},
    Kind{{"self_attention.query.bias", "self_attention.key.bias", "self_attention.value.bias"}},
    Kind{{"self_attention.dense.weight"}},
    Kind{{"self_attention.dense.bias"}},
    Kind{{"post_attention_layernorm.weight"}},
    Kind{{"post_attention_layernorm.bias"}},
    Kind{{"mlp.dense_h_to_4h.weight"}},
    Kind{{"mlp.dense_h_to_4h.bias"}},
    Kind{{"mlp.dense_4h_to_h.weight"}},
    Kind{{"mlp.dense_4h_to_h.bias"}},
};

// Our options as that format calls them.
constexpr std::array<Renamed, 4> kWords{{{"--max-position-embeddings", "max_seq_len"},
                                         {"--num-attention-heads", "num_heads"},
                                         {"--num-layers", "num_layers"},
                                         {"--hidden-size", "channels"}}};

std::int64_t padded(std::int64_t vocabulary) {
  return (vocabulary + kVocabularyMultiple - 1) / kVocabularyMultiple * kVocabularyMultiple;
}

// A tensor of ours and the element of the file's parameters that it begins with.
struct Place {
  std::string ours;
  Shape shape;
  std::uint64_t at = 0;
};

// All of them, and how many elements the file has.
std::vector<Place> places(const ModelConfig& config, std::uint64_t& elements) {
  std::map<std::string, Shape> shapes;
  for (const NamedTensor& tensor : gpt2_tensors(config, "")) {
    shapes[tensor.ours] = our_shape(*tensor.name, config);
  }
  std::vector<Place> out;
  std::uint64_t at = 0;
  const auto add = [&](const std::string& name) {
    const Shape& shape = shapes.at(name);
    out.push_back({name, shape, at});
    at += static_cast<std::uint64_t>(element_count(shape));
  };
  add(kFirst[0]);
  at = static_cast<std::uint64_t>(padded(config.vocab_size) * config.hidden_size);
  add(kFirst[1]);
  for (const Kind& kind : kLayer) {
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
      for (const char* const name : kind.names) {
        if (name != nullptr) add(cat("layers.", layer, ".", name));
      }
    }
  }
  for (const char* const name : kLast) add(name);
  elements = at;
  return out;
}

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
      from.stored(kFirst[0]) == DType::kBf16 ? DType::kBf16 : DType::kF32);
  if (type == DType::kF16) throw UsageError("--dtype fp16: llm.c's files hold fp32 or bf16");
  return type;
}

// A file mapped for reading.
class Mapped {
 public:
  explicit Mapped(const std::string& path) {
    const FileDescriptor fd = open_regular(path);
    bytes_ = file_size(fd.get(), path);
    if (bytes_ < kHeaderBytes) {
      throw DataError(cat(printable(path), ": truncated: ", bytes_, " bytes, its header alone has ",
                          kHeaderBytes));
    }
    data_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (data_ == MAP_FAILED) {
      throw EnvironmentError(cat("cannot map ", printable(path), ": ", std::strerror(errno)));
    }
  }
  ~Mapped() { ::munmap(data_, bytes_); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  [[nodiscard]] const std::byte* data() const { return static_cast<const std::byte*>(data_); }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

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
  if (header[7] != padded(config.vocab_size)) {
    throw DataError(cat(where, ": padded_vocab_size: expected ", padded(config.vocab_size),
                        ", found ", header[7]));
  }
  try {
    config.check();
  } catch (const UsageError& error) {
    throw DataError(cat(where, ": ", renamed(error.what(), kWords)));
  }
  return config;
}

void check_finite(const std::byte* data, DType type, const Place& place, const std::string& where) {
  const std::int64_t count = element_count(place.shape);
  for (std::int64_t i = 0; i < count; ++i) {
    float x = 0;
    convert_floats(data + static_cast<std::size_t>(i) * dtype_size(type), type, &x, DType::kF32, 1);
    if (std::isfinite(x)) continue;
    throw DataError(cat(where, ": a value is ", x, " (element ", i, " of ", place.ours, ")"));
  }
}

}  // namespace

bool is_llmc(const std::string& path) {
  std::int32_t magic = 0;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  const FileDescriptor fd = open_regular(path);
  if (file_size(fd.get(), path) < sizeof magic) return false;
  read_fully_at(fd.get(), &magic, sizeof magic, 0, path);
  return magic == kMagic;
}

void export_llmc(const std::string& source, const std::string& destination,
                 const ExportSettings& settings) {
  const Gpt2Source from(source);
  const ModelConfig& config = from.config();
  check_architecture(config);
  const DType type = type_of(from, settings);
  std::uint64_t elements = 0;
  std::vector<ForeignTarget> targets;
  for (const Place& place : places(config, elements)) {
    targets.push_back({.name = place.ours,
                       .type = type,
                       .offset = kHeaderBytes + place.at * dtype_size(type),
                       .parts = {{.ours = place.ours}}});
  }
  PendingFile file(destination, settings.replace ? PendingFile::Existing::kReplace
                                                 : PendingFile::Existing::kRefuse);
  Header header{};
  header[0] = kMagic;
  header[1] = type == DType::kF32 ? kVersionF32 : kVersionBf16;
  const auto number = [](std::int64_t size) { return static_cast<std::int32_t>(size); };
  header[2] = number(config.max_position_embeddings);
  header[3] = number(config.vocab_size);
  header[4] = number(config.num_layers);
  header[5] = number(config.num_attention_heads);
  header[6] = number(config.hidden_size);
  header[7] = number(padded(config.vocab_size));
  write_fully_at(file.fd(), header.data(), kHeaderBytes, 0, file.temporary_path());
  from.write(targets, {{file.fd(), file.temporary_path()}}, destination, settings);
  // The rows that pad the vocabulary, which may be the last bytes that nobody wrote yet.
  const auto words = static_cast<std::uint64_t>(config.vocab_size * config.hidden_size);
  const auto all = static_cast<std::uint64_t>(padded(config.vocab_size) * config.hidden_size);
  const std::string zeros((all - words) * dtype_size(type), '\0');
  file.write_at(kHeaderBytes + words * dtype_size(type), zeros);
  file.commit();
  from.report(targets.size(), elements * dtype_size(type), destination);
}

void import_llmc(const std::string& source, const std::string& destination,
                 const TokenizerOptions& tokenizer, const Communicator& world, bool replace) {
  const Mapped file(source);
  const std::string where = printable(source);
  Header header;
  std::memcpy(header.data(), file.data(), kHeaderBytes);
  DType type = DType::kF32;
  const ModelConfig config = parse_header(header, where, type);
  // So large a model that the table of its tensors alone would be is refused by its size first.
  const auto parameters = static_cast<std::uint64_t>(
      config.parameter_count() +
      (padded(config.vocab_size) - config.vocab_size) * config.hidden_size);
  if (file.bytes() != kHeaderBytes + parameters * dtype_size(type)) {
    throw DataError(cat(where, ": ", file.bytes(), " bytes, expected ", kHeaderBytes, " + ",
                        parameters, " parameters of ", dtype_size(type)));
  }
  std::uint64_t elements = 0;
  CheckpointContent content;
  content.model = config.to_json();
  for (const Place& place : places(config, elements)) {
    const std::byte* const data = file.data() + kHeaderBytes + place.at * dtype_size(type);
    check_finite(data, type, place, where);
    content.weights.push_back(
        {place.ours, place.shape, Shape(place.shape.size(), 0), place.shape, type, data});
  }
  MT_ASSERT(elements == parameters);
  if (const auto given = tokenizer.open(); given != nullptr) {
    if (given->vocab_size() > config.vocab_size) {
      throw DataError(cat(where, ": the vocab.json that would travel has ", given->vocab_size(),
                          " entries, but vocab_size is ", config.vocab_size));
    }
    content.files[kCarriedVocab] = given->files().vocab;
    content.files[kCarriedMerges] = given->files().merges;
    content.tokenizer_digest = to_hex(given->digest());
  } else {
    log_warning(cat(where,
                    ": that format carries no tokenizer; --vocab-file and --merge-file "
                    "name one that travels with the model"));
  }
  save_checkpoint(destination, content, world, replace);
  log_info(cat(where, ": ", content.weights.size(), " tensors, ", config.parameter_count(),
               " parameters written to ", printable(destination)));
}

}  // namespace mt
