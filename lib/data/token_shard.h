// Token shards: one HDF5 file of tokens and documents that is whole or absent, hashed by blocks,
// and read without libhdf5. Format: mt-shards(5).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/document_writer.h"
#include "text/tokenizer.h"

namespace mt {

// Writes PREFIX.h5. Tokens are spooled to an unlinked file beside it, so memory is bounded by the
// number of documents (12 bytes each). Equal documents, tokenizer and options give equal bytes.
class TokenShardWriter : public DocumentWriter {
 public:
  struct Settings {
    std::string path;  // final name
    bool replace = false;
    std::vector<std::pair<std::string, std::string>>
        options;  // what determines the content, kept as attributes
  };
  // Throws UsageError when the path exists (without replace), EnvironmentError when it cannot be
  // written. tokenizer must outlive the writer.
  TokenShardWriter(Settings settings, const Tokenizer& tokenizer);
  ~TokenShardWriter() override;
  void add_document(const std::int32_t* ids, std::size_t count, int set) override;
  [[nodiscard]] int set_id(std::string_view name) override;
  void close() override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Maps a shard, without libhdf5. Everything but the tokens is verified at open, each block of 4 MiB
// of tokens at first touch, which reads it through read(2), so that a failing disk is an error. A
// file that has another size than at open is refused at every read; only one that is cut during the
// very copy ends the process (SIGBUS).
class TokenShardReader {
 public:
  // Throws EnvironmentError (missing), DataError (not a shard, damaged, cut; names the block).
  explicit TokenShardReader(const std::string& path);
  // Megatron-LM's PREFIX.bin and .idx (data/megatron_index.h), read with the tokenizer that made
  // them. They have no hashes: the index is checked in itself, and every id of a block of tokens
  // against the vocabulary, at first touch. Memory: 8 bytes a document.
  TokenShardReader(const std::string& megatron_prefix, const Tokenizer& tokenizer);
  ~TokenShardReader();
  TokenShardReader(TokenShardReader&&) noexcept;

  [[nodiscard]] const std::string& path() const;
  [[nodiscard]] std::int64_t tokens() const;
  [[nodiscard]] std::int64_t documents() const;
  [[nodiscard]] std::int32_t vocab_size() const;
  [[nodiscard]] std::int32_t end_of_document() const;
  [[nodiscard]] Digest128 tokenizer_digest() const;
  [[nodiscard]] const TokenizerFiles& tokenizer_files() const;
  // Token position at which document d starts; d == documents() gives tokens().
  // Throws DataError if the file has shrunk since.
  [[nodiscard]] std::int64_t document_offset(std::int64_t d) const;
  // Copies tokens [begin, begin + count) to out, verifying the blocks that are touched first.
  // Throws DataError naming the damaged block, and for an id outside the vocabulary. Safe for
  // several threads.
  void read(std::int64_t begin, std::int64_t count, std::int32_t* out) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mt
