#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/commit.h"
#include "base/error.h"
#include "data/load.h"
#include "data/megatron_index.h"
#include "data/shard_layout.h"
#include "data/token_shard.h"

namespace mt {
namespace {

// A whole file, mapped for reading.
class Mapping {
 public:
  Mapping(int fd, std::uint64_t bytes, const std::string& path) : bytes_(bytes) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
      throw EnvironmentError(cat("cannot map ", path, ": ", std::strerror(errno)));
    }
    data_ = static_cast<const char*>(at);
  }
  ~Mapping() { ::munmap(const_cast<char*>(data_), bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  [[nodiscard]] const char* at(std::uint64_t offset) const { return data_ + offset; }

 private:
  const char* data_;
  std::uint64_t bytes_;
};

// The largest id of a block, negative ones counted as the largest.
template <typename T>
std::uint32_t largest_id(const std::string& block) {
  std::uint32_t largest = 0;
  for (std::size_t at = 0; at < block.size(); at += sizeof(T)) {
    largest = std::max(largest, static_cast<std::uint32_t>(load<T>(block.data() + at)));
  }
  return largest;
}

}  // namespace

struct TokenShardReader::State {
  explicit State(const std::string& p)
      : path(p),
        file(open_regular(p)),
        layout(read_layout()),
        map(file.get(), layout.file_bytes, p),
        verified(std::make_unique<std::atomic<bool>[]>(layout.blocks())) {
    verify_parts();
    verify_offsets();
  }
  State(const std::string& prefix, const Tokenizer& tokenizer)
      : path(prefix + ".bin"),
        file(open_regular(path)),
        layout(layout_of_megatron(prefix, tokenizer)),
        map(file.get(), layout.file_bytes, path),
        verified(std::make_unique<std::atomic<bool>[]>(layout.blocks())),
        files(tokenizer.files()) {}

  [[nodiscard]] ShardLayout read_layout() const;
  [[nodiscard]] ShardLayout layout_of_megatron(const std::string& prefix,
                                               const Tokenizer& tokenizer);
  void verify_parts();
  void verify_offsets() const;
  void verify_block(std::uint64_t block) const;
  void check_size() const;
  [[nodiscard]] std::uint64_t offset_of(std::uint64_t document) const {
    if (hashed()) {
      return load<std::uint64_t>(map.at(layout[ShardPart::kDocumentOffsets].offset + document * 8));
    }
    return offsets[document];
  }
  [[nodiscard]] std::string describe(std::uint64_t block) const;
  // A shard of our own: Megatron-LM's have neither hashes nor offsets in the file.
  [[nodiscard]] bool hashed() const { return layout[ShardPart::kBlockHashes].bytes != 0; }

  std::string path;
  std::vector<std::uint64_t> offsets;  // of documents, of Megatron-LM's data
  FileDescriptor file;
  ShardLayout layout;
  Mapping map;
  std::unique_ptr<std::atomic<bool>[]> verified;  // by block
  TokenizerFiles files;
};

ShardLayout TokenShardReader::State::read_layout() const {
  const std::uint64_t bytes = file_size(file.get(), path);
  std::string block(static_cast<std::size_t>(std::min(bytes, kShardUserBlock)), '\0');
  read_fully_at(file.get(), block.data(), block.size(), 0, path);
  return decode_user_block(block, bytes, path);
}

// The tokens are the whole file.
ShardLayout TokenShardReader::State::layout_of_megatron(const std::string& prefix,
                                                        const Tokenizer& tokenizer) {
  ShardLayout out;
  out.file_bytes = file_size(file.get(), path);
  MegatronIndex index = read_megatron_index(prefix, out.file_bytes);
  out.token_bytes = index.token_bytes;
  out.tokens = index.tokens;
  out.documents = index.offsets.size() - 1;
  out.vocab_size = static_cast<std::uint32_t>(tokenizer.vocab_size());
  out.end_of_document = static_cast<std::uint32_t>(tokenizer.end_of_document());
  out.tokenizer = tokenizer.digest();
  out[ShardPart::kTokens].bytes = out.file_bytes;
  offsets = std::move(index.offsets);
  return out;
}

// Everything but the tokens, through read(2).
void TokenShardReader::State::verify_parts() {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
  std::string buffer;
  for (std::size_t p = 0; p < kShardParts; ++p) {
    const ShardLayout::Part& part = layout.parts[p];
    if (static_cast<ShardPart>(p) == ShardPart::kTokens || part.bytes == 0) continue;
    std::string* const keep = static_cast<ShardPart>(p) == ShardPart::kVocab    ? &files.vocab
                              : static_cast<ShardPart>(p) == ShardPart::kMerges ? &files.merges
                                                                                : nullptr;
    StreamHash hash;
    for (std::uint64_t at = 0; at < part.bytes; at += buffer.size()) {
      buffer.resize(static_cast<std::size_t>(std::min(kPiece, part.bytes - at)));
      read_fully_at(file.get(), buffer.data(), buffer.size(), part.offset + at, path);
      hash.update(buffer.data(), buffer.size());
      if (keep != nullptr) keep->append(buffer);
    }
    if (!(hash.digest() == part.digest)) {
      throw DataError(cat(path, ": ", kShardPartNames[p], " (bytes ", part.offset, " to ",
                          part.offset + part.bytes - 1, "): hash differs: the file is damaged"));
    }
  }
  if (!(hash_rest(file.get(), layout, path) == layout.rest)) {
    throw DataError(
        cat(path, ": HDF5 structure outside the data sets: hash differs: the file is damaged"));
  }
}

void TokenShardReader::State::verify_offsets() const {
  std::uint64_t before = 0;
  for (std::uint64_t d = 0; d <= layout.documents; ++d) {
    const std::uint64_t offset = offset_of(d);
    if ((d == 0 && offset != 0) || offset < before || offset > layout.tokens) {
      throw DataError(cat(path, ": /document_offsets: entry ", d, " is ", offset, ", after ",
                          before, ", with ", layout.tokens, " tokens"));
    }
    before = offset;
  }
  if (before != layout.tokens) {
    throw DataError(
        cat(path, ": /document_offsets ends at ", before, ", expected ", layout.tokens, " tokens"));
  }
}

// A mapped page beyond the end of a file that shrank would end the process.
void TokenShardReader::State::check_size() const {
  const std::uint64_t bytes = file_size(file.get(), path);
  if (bytes != layout.file_bytes) {
    throw DataError(cat(path, ": changed while in use: ", bytes, " bytes, ", layout.file_bytes,
                        " when it was opened"));
  }
}

// "block 3 of /tokens (tokens 6291456 to 8388607, documents 17 to 20)".
std::string TokenShardReader::State::describe(std::uint64_t block) const {
  const std::uint64_t block_tokens = kShardBlockBytes / layout.token_bytes;
  const std::uint64_t first = block * block_tokens;
  const std::uint64_t last = std::min(first + block_tokens, layout.tokens) - 1;
  const auto document = [&](std::uint64_t token) {  // the last one that starts at or before it
    std::uint64_t low = 0, high = layout.documents;
    while (high - low > 1) {
      const std::uint64_t middle = low + (high - low) / 2;
      (offset_of(middle) <= token ? low : high) = middle;
    }
    return low;
  };
  return cat("block ", block, " of /tokens (tokens ", first, " to ", last, ", documents ",
             document(first), " to ", document(last), ")");
}

void TokenShardReader::State::verify_block(std::uint64_t block) const {
  const ShardLayout::Part& tokens = layout[ShardPart::kTokens];
  const std::uint64_t begin = block * kShardBlockBytes;
  std::string bytes(static_cast<std::size_t>(std::min(kShardBlockBytes, tokens.bytes - begin)),
                    '\0');
  read_fully_at(file.get(), bytes.data(), bytes.size(), tokens.offset + begin, path);
  if (hashed()) {
    const char* const hash = map.at(layout[ShardPart::kBlockHashes].offset + block * 16);
    const Digest128 expected{load<std::uint64_t>(hash), load<std::uint64_t>(hash + 8)};
    if (!(xxh3_128(bytes.data(), bytes.size()) == expected)) {
      throw DataError(cat(path, ": ", describe(block), ": hash differs: the file is damaged"));
    }
  }
  const std::uint32_t largest =
      layout.token_bytes == 2 ? largest_id<std::uint16_t>(bytes) : largest_id<std::uint32_t>(bytes);
  if (largest >= layout.vocab_size) {
    throw DataError(cat(path, ": ", describe(block), ": token id ", largest,
                        " is outside the vocabulary of ", layout.vocab_size));
  }
  // Two threads may verify one block at once; both come to the same end.
  verified[block].store(true, std::memory_order_release);
}

TokenShardReader::TokenShardReader(const std::string& path)
    : state_(std::make_unique<State>(path)) {}
TokenShardReader::TokenShardReader(const std::string& megatron_prefix, const Tokenizer& tokenizer)
    : state_(std::make_unique<State>(megatron_prefix, tokenizer)) {}
TokenShardReader::~TokenShardReader() = default;
TokenShardReader::TokenShardReader(TokenShardReader&&) noexcept = default;

const std::string& TokenShardReader::path() const {
  return state_->path;
}
std::int64_t TokenShardReader::tokens() const {
  return static_cast<std::int64_t>(state_->layout.tokens);
}
std::int64_t TokenShardReader::documents() const {
  return static_cast<std::int64_t>(state_->layout.documents);
}
std::int32_t TokenShardReader::vocab_size() const {
  return static_cast<std::int32_t>(state_->layout.vocab_size);
}
std::int32_t TokenShardReader::end_of_document() const {
  return static_cast<std::int32_t>(state_->layout.end_of_document);
}
Digest128 TokenShardReader::tokenizer_digest() const {
  return state_->layout.tokenizer;
}
const TokenizerFiles& TokenShardReader::tokenizer_files() const {
  return state_->files;
}

std::int64_t TokenShardReader::document_offset(std::int64_t d) const {
  MT_ASSERT(d >= 0 && d <= documents());
  state_->check_size();
  return static_cast<std::int64_t>(state_->offset_of(static_cast<std::uint64_t>(d)));
}

void TokenShardReader::read(std::int64_t begin, std::int64_t count, std::int32_t* out) const {
  MT_ASSERT(begin >= 0 && count >= 0 && begin <= tokens() && count <= tokens() - begin);
  if (count == 0) return;
  const State& s = *state_;
  s.check_size();
  const std::uint64_t width = s.layout.token_bytes;
  const std::uint64_t first = static_cast<std::uint64_t>(begin) * width;
  const std::uint64_t last = first + static_cast<std::uint64_t>(count) * width - 1;
  for (std::uint64_t b = first / kShardBlockBytes; b <= last / kShardBlockBytes; ++b) {
    if (!s.verified[b].load(std::memory_order_acquire)) s.verify_block(b);
  }
  const char* const from = s.map.at(s.layout[ShardPart::kTokens].offset + first);
  if (width == 4) {
    std::memcpy(out, from, static_cast<std::size_t>(count) * 4);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) out[i] = load<std::uint16_t>(from + i * 2);
}

}  // namespace mt
