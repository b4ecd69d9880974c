#include "convert/gguf.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/commit.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "ckpt/manifest.h"
#include "convert/foreign_writer.h"
#include "convert/load_model.h"
#include "convert/stacked_names.h"
#include "text/tokenizer.h"

namespace mt {
namespace {

constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kAlignment = 32;

// Types of values and of tensors, and what kind of token an entry is.
enum class Value : std::uint32_t {
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9
};
enum class Token : std::int32_t { kNormal = 1, kControl = 3, kUnused = 5 };

std::uint32_t tensor_code(DType type) {
  return type == DType::kF32 ? 0 : type == DType::kF16 ? 1 : 30;
}
std::uint32_t file_code(DType type) {
  return type == DType::kF32 ? 0 : type == DType::kF16 ? 1 : 32;
}

class Bytes {
 public:
  template <typename T>
  void number(T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    out_.append(bytes, sizeof(T));
  }
  void text(std::string_view value) {
    number(std::uint64_t{value.size()});
    out_.append(value);
  }
  void pad() { out_.resize((out_.size() + kAlignment - 1) / kAlignment * kAlignment, '\0'); }
  [[nodiscard]] const std::string& bytes() const { return out_; }
  void append(const std::string& bytes) { out_ += bytes; }

 private:
  std::string out_;
};

// Keys and their values.
class Keys {
 public:
  void text(std::string_view key, std::string_view value) {
    begin(key, Value::kString);
    out_.text(value);
  }
  void number(const std::string& key, std::int64_t value) {
    begin(key, Value::kU32);
    out_.number(static_cast<std::uint32_t>(value));
  }
  void real(const std::string& key, double value) {
    begin(key, Value::kF32);
    out_.number(static_cast<float>(value));
  }
  void flag(const std::string& key, bool value) {
    begin(key, Value::kBool);
    out_.number(static_cast<std::uint8_t>(value));
  }
  void texts(const std::string& key, const std::vector<std::string>& values) {
    array(key, Value::kString, values.size());
    for (const std::string& value : values) out_.text(value);
  }
  void kinds(const std::string& key, const std::vector<Token>& values) {
    array(key, Value::kI32, values.size());
    for (const Token value : values) out_.number(static_cast<std::int32_t>(value));
  }
  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] const std::string& bytes() const { return out_.bytes(); }

 private:
  void begin(std::string_view key, Value type) {
    ++count_;
    out_.text(key);
    out_.number(static_cast<std::uint32_t>(type));
  }
  void array(std::string_view key, Value type, std::size_t count) {
    begin(key, Value::kArray);
    out_.number(static_cast<std::uint32_t>(type));
    out_.number(std::uint64_t{count});
  }
  std::uint64_t count_ = 0;
  Bytes out_;
};

// The tensors, with offsets from the beginning of their data.
struct Plan {
  std::vector<ForeignTarget> targets;
  std::vector<Shape> shapes;
  std::uint64_t bytes = 0;
};

Plan plan(const Gpt2Source& from, DType weights) {
  Plan out;
  const auto add = [&](const StackedName& kind, const std::string& there, const std::string& here) {
    ForeignTarget target;
    target.name = there + kind.gguf;
    std::int64_t parts = 0;
    for (const char* const name : kind.ours) parts += name != nullptr ? 1 : 0;
    Shape shape;
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::string ours = here + kind.ours.at(static_cast<std::size_t>(part));
      shape = from.reader().tensors().at(ours).shape;
      target.parts.push_back({.ours = ours, .part = part, .parts = parts});
    }
    shape[0] *= parts;
    const bool narrow = shape.size() == 2 && target.name != kStackedFirst[1].gguf;
    target.type = narrow ? weights : DType::kF32;
    target.offset = out.bytes;
    const std::uint64_t bytes = checked_bytes(shape, target.type, target.name);
    out.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    out.targets.push_back(std::move(target));
    out.shapes.push_back(std::move(shape));
  };
  for (const StackedName& kind : kStackedFirst) add(kind, "", "");
  for (const StackedName& kind : kStackedLast) add(kind, "", "");
  for (std::int64_t layer = 0; layer < from.config().num_layers; ++layer) {
    for (const StackedName& kind : kStackedLayer)
      add(kind, cat("blk.", layer, "."), cat("layers.", layer, "."));
  }
  if (from.config().untie_embeddings_and_output_weights) add(kStackedHead, "", "");
  return out;
}

std::vector<std::string> merges_of(const std::string& text) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty() && !(at == 0 && line.starts_with("#version"))) out.push_back(std::move(line));
    at = end + 1;
  }
  return out;
}

void add_tokenizer(const Gpt2Source& from, Keys& keys) {
  const std::string& where = from.reader().directory();
  const std::string vocab = from.reader().file(kCarriedVocab);
  if (vocab.empty()) {
    throw DataError(
        cat(printable(where), ": no tokenizer travels with this model; GGUF needs one"));
  }
  const auto tokenizer = make_bpe_tokenizer({vocab, from.reader().file(kCarriedMerges)}, where);
  const auto size = static_cast<std::size_t>(from.config().vocab_size);
  std::vector<std::string> tokens(size);
  std::vector<Token> kinds(size, Token::kUnused);
  for (std::size_t i = 0; i < size; ++i) tokens[i] = cat("[PAD", i, "]");
  const Json entries = parse_json(vocab, where + ": vocab.json");
  for (const auto& [token, id] : entries.items()) {
    const auto at = id.get<std::size_t>();  // the tokenizer has checked them
    tokens.at(at) = token;
    kinds.at(at) = Token::kNormal;
  }
  const std::int32_t end = tokenizer->end_of_document();
  kinds.at(static_cast<std::size_t>(end)) = Token::kControl;
  keys.text("tokenizer.ggml.model", "gpt2");
  keys.text("tokenizer.ggml.pre", "gpt-2");
  keys.texts("tokenizer.ggml.tokens", tokens);
  keys.kinds("tokenizer.ggml.token_type", kinds);
  keys.texts("tokenizer.ggml.merges", merges_of(tokenizer->files().merges));
  for (const char* const name : {"bos", "eos", "unknown"}) {
    keys.number(cat("tokenizer.ggml.", name, "_token_id"), end);
  }
  keys.flag("tokenizer.ggml.add_bos_token", false);
}

Keys keys_of(const Gpt2Source& from, DType weights) {
  const ModelConfig& config = from.config();
  Keys keys;
  keys.text("general.architecture", "gpt2");
  keys.text("general.name", cat("gpt2 of ", config.parameter_count(), " parameters"));
  keys.number("general.file_type", file_code(weights));
  keys.number("general.quantization_version", 2);
  keys.number("gpt2.block_count", config.num_layers);
  keys.number("gpt2.context_length", config.max_position_embeddings);
  keys.number("gpt2.embedding_length", config.hidden_size);
  keys.number("gpt2.feed_forward_length", config.ffn_hidden_size);
  keys.number("gpt2.attention.head_count", config.num_attention_heads);
  keys.real("gpt2.attention.layer_norm_epsilon", config.layernorm_epsilon);
  add_tokenizer(from, keys);
  return keys;
}

// Everything before the tensors' data.
std::string head_of(const Plan& plan, const Keys& keys) {
  Bytes out;
  out.append("GGUF");
  out.number(kVersion);
  out.number(std::uint64_t{plan.targets.size()});
  out.number(keys.count());
  out.append(keys.bytes());
  for (std::size_t i = 0; i < plan.targets.size(); ++i) {
    const Shape& shape = plan.shapes[i];
    out.text(plan.targets[i].name);
    out.number(static_cast<std::uint32_t>(shape.size()));
    // The dimension that runs fastest comes first.
    for (std::size_t d = shape.size(); d-- > 0;) out.number(static_cast<std::uint64_t>(shape[d]));
    out.number(tensor_code(plan.targets[i].type));
    out.number(plan.targets[i].offset);
  }
  out.pad();
  return out.bytes();
}

}  // namespace

void export_gguf(const std::string& source, const std::string& destination,
                 const ExportSettings& settings) {
  const Gpt2Source from(source);
  const DType weights =
      settings.weights.value_or(from.stored("layers.0.self_attention.dense.weight"));
  Plan all = plan(from, weights);
  const std::string head = head_of(all, keys_of(from, weights));
  for (ForeignTarget& target : all.targets) target.offset += head.size();
  PendingFile file(destination, settings.replace ? PendingFile::Existing::kReplace
                                                 : PendingFile::Existing::kRefuse);
  file.write_at(0, head);
  from.write(all.targets, {{file.fd(), file.temporary_path()}}, destination, settings);
  // What aligns the end.
  const std::uint64_t size = head.size() + all.bytes;
  const std::uint64_t written = file_size(file.fd(), file.temporary_path());
  file.write_at(written, std::string(size - written, '\0'));
  file.commit();
  from.report(all.targets.size(), all.bytes, destination);
}

}  // namespace mt
