// What the rest of the suite asks of a tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace mt {

// The content of the files a tokenizer was made from, as they travel in token shards and
// checkpoints.
struct TokenizerFiles {
  std::string vocab;   // vocab.json
  std::string merges;  // merges.txt
  [[nodiscard]] bool empty() const { return vocab.empty(); }
};

// What messages call the two files.
struct TokenizerNames {
  std::string vocab, merges;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  [[nodiscard]] virtual const std::string& name() const = 0;  // "GPT2BPETokenizer"
  [[nodiscard]] virtual std::int32_t vocab_size() const = 0;
  [[nodiscard]] virtual std::int32_t end_of_document() const = 0;  // id of <|endoftext|>
  // Appends the ids of text. Special tokens spelled in the text are text. Any bytes are accepted
  // and decode(encode(x)) == x. Linear time. Not shared between threads (it keeps a bounded cache);
  // clone() for each thread.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) = 0;
  // The exact bytes. Throws DataError for an id outside the vocabulary.
  [[nodiscard]] virtual std::string decode(const std::int32_t* ids, std::size_t count) const = 0;
  [[nodiscard]] virtual std::unique_ptr<Tokenizer> clone() const = 0;
  // XXH3-128 over the tokens' bytes in id order (each after its length as u32 LE), then the merges,
  // then the special tokens: not over file bytes, so that two spellings of one vocabulary agree.
  // Format: mt-shards(5).
  [[nodiscard]] virtual Digest128 digest() const = 0;
  [[nodiscard]] virtual const TokenizerFiles& files() const = 0;
};

// GPT-2's byte-level BPE. Throws DataError for what is not a vocabulary: ids with gaps or repeated,
// a merge of unknown tokens, no <|endoftext|>, missing single bytes.
[[nodiscard]] std::unique_ptr<Tokenizer> make_bpe_tokenizer(TokenizerFiles files,
                                                            const TokenizerNames& names);
// Of files that travel inside `where`: they are called "WHERE: vocab.json", "WHERE: merges.txt".
[[nodiscard]] std::unique_ptr<Tokenizer> make_bpe_tokenizer(TokenizerFiles files,
                                                            const std::string& where);

// Replaces each maximal invalid part by U+FFFD, as WHATWG and Python do. Returns how many were
// replaced.
std::size_t replace_invalid_utf8(std::string_view bytes, std::string& out);

}  // namespace mt
