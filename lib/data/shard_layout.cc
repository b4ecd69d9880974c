#include "data/shard_layout.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "base/commit.h"
#include "base/error.h"

namespace mt {
namespace {

constexpr std::string_view kMagic = "\x89MTSHD\r\n";
constexpr std::size_t kPartsAt = 96;
constexpr std::size_t kPartEntry = 32;
constexpr std::size_t kHashAt = kShardUserBlock - 16;

// Little-endian numbers in a block of bytes.
class Fields {
 public:
  explicit Fields(std::string& bytes) : bytes_(&bytes) {}
  void put(std::size_t at, std::uint64_t value, int width) {
    for (int i = 0; i < width; ++i) {
      (*bytes_)[at + static_cast<std::size_t>(i)] = static_cast<char>(value >> (8 * i));
    }
  }
  void put(std::size_t at, const Digest128& digest) {
    put(at, digest.low, 8);
    put(at + 8, digest.high, 8);
  }

 private:
  std::string* bytes_;
};

std::uint64_t number_at(const std::string& bytes, std::size_t at, int width) {
  std::uint64_t value = 0;
  for (int i = width - 1; i >= 0; --i) {
    value = (value << 8) | static_cast<unsigned char>(bytes[at + static_cast<std::size_t>(i)]);
  }
  return value;
}

Digest128 digest_at(const std::string& bytes, std::size_t at) {
  return {number_at(bytes, at, 8), number_at(bytes, at + 8, 8)};
}

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw DataError(cat(path, ": ", what));
}

// No product here overflows: tokens and documents were compared with the size of the file first.
void check_sizes(const ShardLayout& layout, const std::string& path) {
  using enum ShardPart;
  const auto expect = [&](ShardPart p, std::uint64_t bytes) {
    if (layout[p].bytes != bytes) {
      fail(path, cat("user block: ", kShardPartNames[static_cast<std::size_t>(p)], " has ",
                     layout[p].bytes, " bytes, expected ", bytes));
    }
  };
  if (layout.token_bytes != (layout.vocab_size < kShardWideVocabulary ? 2U : 4U)) {
    fail(path, cat("user block: ", layout.token_bytes, " bytes a token for a vocabulary of ",
                   layout.vocab_size));
  }
  if (layout.vocab_size == 0 || layout.vocab_size > std::numeric_limits<std::int32_t>::max() ||
      layout.end_of_document >= layout.vocab_size) {
    fail(path, cat("user block: end-of-document token ", layout.end_of_document,
                   " in a vocabulary of ", layout.vocab_size));
  }
  if (layout.tokens == 0 || layout.tokens > layout.file_bytes || layout.documents == 0 ||
      layout.documents > layout.file_bytes) {
    fail(path, cat("user block: ", layout.tokens, " tokens and ", layout.documents,
                   " documents in a file of ", layout.file_bytes, " bytes"));
  }
  expect(kTokens, layout.tokens * layout.token_bytes);
  expect(kDocumentOffsets, (layout.documents + 1) * 8);
  expect(kBlockHashes, layout.blocks() * 16);
  if (layout[kDocumentSet].bytes != 0 || layout[kSetNames].bytes != 0) {
    expect(kDocumentSet, layout.documents * 4);
  }
  if (layout[kVocab].bytes == 0) fail(path, "user block: no tokenizer");
}

}  // namespace

std::string encode_user_block(const ShardLayout& layout) {
  std::string block(kShardUserBlock, '\0');
  std::copy(kMagic.begin(), kMagic.end(), block.begin());
  Fields fields(block);
  fields.put(8, kShardVersion, 4);
  fields.put(12, layout.token_bytes, 4);
  fields.put(16, layout.file_bytes, 8);
  fields.put(24, layout.tokens, 8);
  fields.put(32, layout.documents, 8);
  fields.put(40, layout.vocab_size, 4);
  fields.put(44, layout.end_of_document, 4);
  fields.put(48, layout.tokenizer);
  fields.put(64, kShardBlockBytes, 8);
  fields.put(72, layout.rest);
  for (std::size_t p = 0; p < kShardParts; ++p) {
    const std::size_t at = kPartsAt + p * kPartEntry;
    fields.put(at, layout.parts[p].offset, 8);
    fields.put(at + 8, layout.parts[p].bytes, 8);
    fields.put(at + 16, layout.parts[p].digest);
  }
  fields.put(kHashAt, xxh3_128(block.data(), kHashAt));
  return block;
}

ShardLayout decode_user_block(const std::string& block, std::uint64_t file_bytes,
                              const std::string& path) {
  if (std::string_view(block).substr(0, kMagic.size()) != kMagic) {
    fail(path, block.empty() ? "not a token shard: the file is empty"
                             : "not a token shard: it does not begin with the shard magic");
  }
  if (block.size() < kShardUserBlock) {
    fail(path,
         cat("truncated: ", file_bytes, " bytes, the user block alone has ", kShardUserBlock));
  }
  if (!(xxh3_128(block.data(), kHashAt) == digest_at(block, kHashAt))) {
    fail(path, "user block: its hash differs: the file is damaged");
  }
  const std::uint64_t version = number_at(block, 8, 4);
  if (version != kShardVersion) {
    fail(path, cat("token shard of version ", version, ", expected ", kShardVersion));
  }
  ShardLayout layout;
  layout.token_bytes = static_cast<std::uint32_t>(number_at(block, 12, 4));
  layout.file_bytes = number_at(block, 16, 8);
  layout.tokens = number_at(block, 24, 8);
  layout.documents = number_at(block, 32, 8);
  layout.vocab_size = static_cast<std::uint32_t>(number_at(block, 40, 4));
  layout.end_of_document = static_cast<std::uint32_t>(number_at(block, 44, 4));
  layout.tokenizer = digest_at(block, 48);
  layout.rest = digest_at(block, 72);
  if (layout.file_bytes != file_bytes) {
    fail(path, cat(file_bytes < layout.file_bytes ? "truncated: " : "something follows it: ",
                   file_bytes, " bytes, expected ", layout.file_bytes));
  }
  if (number_at(block, 64, 8) != kShardBlockBytes) {
    fail(path, cat("user block: hash blocks of ", number_at(block, 64, 8), " bytes, expected ",
                   kShardBlockBytes));
  }
  for (std::size_t p = 0; p < kShardParts; ++p) {
    const std::size_t at = kPartsAt + p * kPartEntry;
    ShardLayout::Part& part = layout.parts[p];
    part = {number_at(block, at, 8), number_at(block, at + 8, 8), digest_at(block, at + 16)};
    if (part.bytes == 0) continue;
    if (part.offset < kShardUserBlock || part.offset > file_bytes ||
        part.bytes > file_bytes - part.offset) {
      fail(path, cat("user block: ", kShardPartNames[p], " at ", part.offset, " with ", part.bytes,
                     " bytes in a file of ", file_bytes));
    }
  }
  check_sizes(layout, path);
  (void)rest_of_shard(layout, path);
  return layout;
}

std::vector<FileRange> rest_of_shard(const ShardLayout& layout, const std::string& path) {
  std::vector<FileRange> parts;
  for (const ShardLayout::Part& part : layout.parts) {
    if (part.bytes != 0) parts.push_back({part.offset, part.offset + part.bytes});
  }
  std::sort(parts.begin(), parts.end(),
            [](const FileRange& a, const FileRange& b) { return a.begin < b.begin; });
  std::vector<FileRange> rest;
  std::uint64_t at = kShardUserBlock;
  for (const FileRange& part : parts) {
    if (part.begin < at) fail(path, "user block: data sets overlap");
    if (part.begin > at) rest.push_back({at, part.begin});
    at = part.end;
  }
  if (at < layout.file_bytes) rest.push_back({at, layout.file_bytes});
  return rest;
}

Digest128 hash_rest(int fd, const ShardLayout& layout, const std::string& path) {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
  StreamHash hash;
  std::string buffer;
  for (FileRange range : rest_of_shard(layout, path)) {
    for (; range.begin < range.end; range.begin += buffer.size()) {
      buffer.resize(static_cast<std::size_t>(std::min(kPiece, range.end - range.begin)));
      read_fully_at(fd, buffer.data(), buffer.size(), range.begin, path);
      hash.update(buffer.data(), buffer.size());
    }
  }
  return hash.digest();
}

}  // namespace mt
