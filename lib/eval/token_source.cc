#include "eval/token_source.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/commit.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/token_shard.h"
#include "text/unicode.h"

namespace mt {
namespace {

constexpr std::int64_t kShardBlock = 1 << 16;  // tokens

bool is_space_byte(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

// The character that ends at text[end], end > 0, and whether its bytes are UTF-8.
struct LastCharacter {
  CharClass kind = CharClass::kOther;
  std::uint32_t code_point = 0;
  bool valid = false;
};
LastCharacter character_before(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 &&
         (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U) {
    --begin;
  }
  LastCharacter last;
  const int bytes = decode_utf8(text.data() + begin, text.data() + end, last.code_point);
  last.valid = bytes > 0 && begin + static_cast<std::size_t>(bytes) == end;
  if (last.valid) last.kind = char_class(last.code_point);
  return last;
}

// True if GPT-2's rule ends a piece at text[at] whatever follows, 0 < at < text.size(): between
// what no rule calls white space and white space, and between letters, numbers and other signs,
// except after an apostrophe, which may begin a piece ('s) or end one (.'), and after white space.
bool piece_ends_at(std::string_view text, std::size_t at) {
  const LastCharacter before = character_before(text, at);
  if (is_space_byte(text[at])) {
    return !before.valid || (before.kind != CharClass::kSpace && before.code_point >= 0x20);
  }
  if (!before.valid || before.kind == CharClass::kSpace || before.code_point < 0x20) return false;
  std::uint32_t code_point = 0;
  if (decode_utf8(text.data() + at, text.data() + text.size(), code_point) == 0) return false;
  const CharClass after = char_class(code_point);
  return after != CharClass::kSpace && after != before.kind && before.code_point != '\'';
}

// The last place in (from, text.size()) where a piece ends, or 0.
std::size_t find_cut(std::string_view text, std::size_t from) {
  constexpr std::size_t kSeam = 4;  // a character that was cut by the end of what was there before
  const std::size_t first = from > kSeam ? from - kSeam : 1;
  for (std::size_t i = text.size(); i-- > first;) {
    if (piece_ends_at(text, i)) return i;
  }
  return 0;
}

void refuse_what_is_no_text(std::string_view begin, const std::string& name) {
  struct Magic {
    std::string_view bytes;
    const char* what;
  };
  constexpr Magic kMagics[] = {
      {"\x28\xB5\x2F\xFD", "zstd-compressed; give it through a pipe and --valid-data -"},
      {"\x1F\x8B", "gzip-compressed; give it through a pipe and --valid-data -"},
      {"\x89MTSHD\r\n", "a token shard; its name must end in .h5"},
      {"\x89HDF\r\n\x1A\n", "an HDF5 file; a token shard is told by a name that ends in .h5"},
  };
  for (const Magic& magic : kMagics) {
    if (begin.starts_with(magic.bytes)) {
      throw DataError(cat(name, ": expected plain text, found what is ", magic.what));
    }
  }
}

class TextSource : public TokenSource {
 public:
  TextSource(const std::string& path, Tokenizer& tokenizer, const TextLimits& limits)
      : name_(path == "-" ? "standard input" : printable(path)),
        tokenizer_(tokenizer),
        limits_(limits) {
    if (path != "-") file_ = open_regular(path);
    fd_ = path == "-" ? STDIN_FILENO : file_.get();
  }

  bool read_more(std::vector<std::int32_t>& ids) override {
    while (!done_) {
      const std::size_t before = held_.size();
      done_ = !read_block();
      if (counts_.bytes == 0 && !held_.empty()) refuse_what_is_no_text(held_, name_);
      const std::size_t cut = done_ ? held_.size() : find_cut(held_, before);
      if (cut == 0) {
        if (held_.size() > limits_.longest_piece) refuse_endless_piece();
        continue;
      }
      encode(std::string_view(held_).substr(0, cut), ids);
      held_.erase(0, cut);
      return true;
    }
    return false;
  }
  [[nodiscard]] Counts counts() const override { return counts_; }
  [[nodiscard]] const std::string& name() const override { return name_; }

 private:
  [[noreturn]] void refuse_endless_piece() const {
    throw DataError(cat(name_, ": from byte ", counts_.bytes, " on more than ",
                        limits_.longest_piece >> 20,
                        " MiB of one kind of characters (letters, numbers, signs or white space) "
                        "follow each other, which the tokenizer can only take as a whole"));
  }
  // Appends a block to what is held; false at the end of the file.
  bool read_block() {
    const std::size_t before = held_.size();
    held_.resize(before + limits_.block);
    ssize_t got = -1;
    do {
      got = ::read(fd_, held_.data() + before, limits_.block);
    } while (got < 0 && errno == EINTR);
    if (got < 0) throw EnvironmentError(cat(name_, ": reading: ", std::strerror(errno)));
    held_.resize(before + static_cast<std::size_t>(got));
    return got > 0;
  }

  void encode(std::string_view piece, std::vector<std::int32_t>& ids) {
    std::string text;
    counts_.replaced += static_cast<std::int64_t>(replace_invalid_utf8(piece, text));
    counts_.bytes += static_cast<std::int64_t>(piece.size());
    words_.push(text);
    if (done_) words_.end_text();
    counts_.words = words_.words();
    const std::size_t before = ids.size();
    tokenizer_.encode(text, ids);
    counts_.tokens += static_cast<std::int64_t>(ids.size() - before);
  }

  std::string name_;
  Tokenizer& tokenizer_;
  TextLimits limits_;
  FileDescriptor file_;
  int fd_ = -1;
  std::string held_;  // read, not yet encoded
  bool done_ = false;
  Counts counts_;
  WordCounter words_;
};

class ShardSource : public TokenSource {
 public:
  ShardSource(const std::string& path, const Tokenizer* tokenizer, std::int64_t vocab_size)
      : name_(printable(path)), reader_(path) {
    if (tokenizer == nullptr && reader_.vocab_size() > vocab_size) {
      throw DataError(cat(name_, ": a vocabulary of ", reader_.vocab_size(),
                          " entries, the model has only ", vocab_size));
    }
    if (tokenizer != nullptr && tokenizer->digest() != reader_.tokenizer_digest()) {
      throw DataError(cat(name_, ": made with the tokenizer ", to_hex(reader_.tokenizer_digest()),
                          ", the model with ", to_hex(tokenizer->digest())));
    }
    tokenizer_ = make_bpe_tokenizer(reader_.tokenizer_files(), name_);
  }

  bool read_more(std::vector<std::int32_t>& ids) override {
    const std::int64_t count = std::min(kShardBlock, reader_.tokens() - counts_.tokens);
    if (count <= 0) return false;
    const std::size_t before = ids.size();
    ids.resize(before + static_cast<std::size_t>(count));
    reader_.read(counts_.tokens, count, ids.data() + before);
    counts_.tokens += count;
    count_text(ids.data() + before, ids.data() + ids.size());
    if (counts_.tokens == reader_.tokens()) words_.end_text();
    counts_.words = words_.words();
    return true;
  }
  [[nodiscard]] Counts counts() const override { return counts_; }
  [[nodiscard]] const std::string& name() const override { return name_; }

 private:
  void count_text(const std::int32_t* begin, const std::int32_t* end) {
    const std::int32_t stop = reader_.end_of_document();
    while (begin != end) {
      const std::int32_t* const next = std::find(begin, end, stop);
      const std::string text = tokenizer_->decode(begin, static_cast<std::size_t>(next - begin));
      counts_.bytes += static_cast<std::int64_t>(text.size());
      words_.push(text);
      if (next != end) words_.end_text();
      begin = next == end ? end : next + 1;
    }
  }

  std::string name_;
  TokenShardReader reader_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Counts counts_;
  WordCounter words_;
};

}  // namespace

void WordCounter::push(std::string_view bytes) {
  count(stream_.push(bytes));
}

void WordCounter::end_text() {
  count(stream_.finish());
  inside_ = false;
}

void WordCounter::count(std::string_view bytes) {
  const char* p = bytes.data();
  const char* const end = p + bytes.size();
  while (p < end) {
    const Character character = next_character(p, end);
    const bool space = character.kind == CharClass::kSpace;
    if (!space && !inside_) ++words_;
    inside_ = !space;
    p += character.bytes;
  }
}

std::unique_ptr<TokenSource> open_text(const std::string& path, Tokenizer& tokenizer,
                                       const TextLimits& limits) {
  return std::make_unique<TextSource>(path, tokenizer, limits);
}

std::unique_ptr<TokenSource> open_shard(const std::string& path, const Tokenizer* tokenizer,
                                        std::int64_t vocab_size) {
  return std::make_unique<ShardSource>(path, tokenizer, vocab_size);
}

}  // namespace mt
