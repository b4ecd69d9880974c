// The user block of a token shard: what a reader needs to verify and map the file without libhdf5.
// Format: mt-shards(5).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/hash.h"

namespace mt {

// The data sets of a shard, in the order of the user block.
enum class ShardPart : std::uint8_t {
  kTokens,
  kDocumentOffsets,
  kDocumentSet,
  kSetNames,
  kVocab,
  kMerges,
  kBlockHashes
};
constexpr std::size_t kShardParts = 7;
constexpr std::array<const char*, kShardParts> kShardPartNames = {
    "/tokens",      "/document_offsets",     "/document_set",
    "/set_names",   "/tokenizer/vocab.json", "/tokenizer/merges.txt",
    "/block_hashes"};

constexpr std::uint64_t kShardUserBlock = 4096;
constexpr std::uint32_t kShardVersion = 1;
constexpr std::uint64_t kShardBlockBytes = std::uint64_t{4} << 20;
// From this vocabulary size on, tokens are stored as i32 (Megatron-LM's limit).
constexpr std::int64_t kShardWideVocabulary = 65500;

struct ShardLayout {
  struct Part {
    std::uint64_t offset = 0, bytes = 0;  // both 0: absent
    Digest128 digest;  // of its bytes; of /tokens: zero, its blocks have their own
  };
  std::uint32_t token_bytes = 0;  // 2: u16, 4: i32
  std::uint64_t file_bytes = 0;
  std::uint64_t tokens = 0, documents = 0;
  std::uint32_t vocab_size = 0, end_of_document = 0;
  Digest128 tokenizer;
  Digest128 rest;  // of the bytes outside the user block and all parts, in file order
  std::array<Part, kShardParts> parts;

  [[nodiscard]] Part& operator[](ShardPart p) { return parts[static_cast<std::size_t>(p)]; }
  [[nodiscard]] const Part& operator[](ShardPart p) const {
    return parts[static_cast<std::size_t>(p)];
  }
  [[nodiscard]] std::uint64_t blocks() const {
    return (parts[0].bytes + kShardBlockBytes - 1) / kShardBlockBytes;
  }
};

// kShardUserBlock bytes.
[[nodiscard]] std::string encode_user_block(const ShardLayout& layout);

// Checks magic, version, hash, every size and place against each other and the size of the file.
// Throws DataError naming `path` and what is wrong. `block` holds the first bytes of the file, at
// most kShardUserBlock.
[[nodiscard]] ShardLayout decode_user_block(const std::string& block, std::uint64_t file_bytes,
                                            const std::string& path);

// The bytes outside the user block and all parts. Throws DataError naming `path` if parts overlap.
struct FileRange {
  std::uint64_t begin = 0, end = 0;
};
[[nodiscard]] std::vector<FileRange> rest_of_shard(const ShardLayout& layout,
                                                   const std::string& path);
// Their hash.
[[nodiscard]] Digest128 hash_rest(int fd, const ShardLayout& layout, const std::string& path);

}  // namespace mt
