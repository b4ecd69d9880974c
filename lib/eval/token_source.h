// What is evaluated, as a stream of tokens: a text, encoded piece by piece, or a token shard.
// Memory does not grow with its length.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "infer/text_stream.h"
#include "text/tokenizer.h"

namespace mt {

// Words are what white space (Unicode's property) separates.
class WordCounter {
 public:
  void push(std::string_view bytes);
  void end_text();  // a word that has begun ends here
  [[nodiscard]] std::int64_t words() const { return words_; }

 private:
  void count(std::string_view bytes);
  CharacterStream stream_;
  std::int64_t words_ = 0;
  bool inside_ = false;
};

class TokenSource {
 public:
  struct Counts {
    std::int64_t tokens = 0;
    std::int64_t words = 0;
    std::int64_t bytes = 0;     // of the text as it was given
    std::int64_t replaced = 0;  // sequences that were not UTF-8, read as U+FFFD
  };
  virtual ~TokenSource() = default;
  // Appends further tokens to ids; false when there are none.
  virtual bool read_more(std::vector<std::int32_t>& ids) = 0;
  // Of what was read until now.
  [[nodiscard]] virtual Counts counts() const = 0;
  [[nodiscard]] virtual const std::string& name() const = 0;
};

// A plain text file, "-" for stdin. The text is cut for encoding only where GPT-2's split rule ends
// a piece whatever stands further on (before white space that follows something else, between
// letters, numbers and signs), so the tokens are those of the whole text. Throws EnvironmentError,
// and DataError for what is plainly not text (a shard, a compressed file) and for more than
// limits.longest_piece without such a place. tokenizer must outlive the source.
struct TextLimits {
  std::size_t block = 1U << 20;           // bytes read at once
  std::size_t longest_piece = 64U << 20;  // most bytes held without a place to cut
};
[[nodiscard]] std::unique_ptr<TokenSource> open_text(const std::string& path, Tokenizer& tokenizer,
                                                     const TextLimits& limits = {});

// A token shard in its stored order, documents joined by their end-of-document tokens. Those tokens
// are scored but add no words or bytes. `tokenizer` is the model's, or null if it has none; with
// one, the shard's must have the same digest (DataError naming both); without, at most vocab_size
// entries.
[[nodiscard]] std::unique_ptr<TokenSource> open_shard(const std::string& path,
                                                      const Tokenizer* tokenizer,
                                                      std::int64_t vocab_size);

}  // namespace mt
