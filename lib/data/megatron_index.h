// Token data as Megatron-LM stores it: PREFIX.bin, the tokens of all sequences one after the other,
// and PREFIX.idx, which says where they begin and which sequences make a document (megatron/core/
// datasets/indexed_dataset.py, "MMIDIDX" version 1). The format has no hash and no tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/document_writer.h"
#include "text/tokenizer.h"

namespace mt {

// What an index says, checked against itself and the size of the tokens.
struct MegatronIndex {
  std::uint32_t token_bytes = 0;       // 2: u16, 4: i32
  std::uint64_t tokens = 0;            // at least one
  std::vector<std::uint64_t> offsets;  // in tokens: document d is [offsets[d], offsets[d + 1])
};

// The prefix of the two files that `path` means: path itself, without .bin or .idx, or with
// _text_document behind it; "" if no .idx is there.
[[nodiscard]] std::string find_megatron_prefix(const std::string& path);

// Reads PREFIX.idx, in pieces; bin_bytes is the size of PREFIX.bin. Memory: 8 bytes a document.
// Nothing in it is trusted. Throws EnvironmentError, DataError naming the file, the entry, what was
// found and what was expected.
[[nodiscard]] MegatronIndex read_megatron_index(const std::string& prefix, std::uint64_t bin_bytes);

// Writes the two files, u16 for a vocabulary below 65,500, else i32; each document is one sequence.
// Memory: 4 bytes a document. The index appears last, and an old one goes first, so that no reader
// ever sees the index of other tokens: a process that is killed in between leaves PREFIX.bin
// without one.
class MegatronWriter : public DocumentWriter {
 public:
  // Throws UsageError when one of the files exists (without replace), EnvironmentError. tokenizer
  // must outlive the writer.
  MegatronWriter(std::string prefix, bool replace, const Tokenizer& tokenizer);
  ~MegatronWriter() override;
  void add_document(const std::int32_t* ids, std::size_t count, int set) override;
  [[nodiscard]] int set_id(std::string_view name) override;  // the format has no place for sets
  void close() override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mt
