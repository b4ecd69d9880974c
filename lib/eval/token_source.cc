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

constexpr std::size_t kTextBlock = 1U << 20;
constexpr std::int64_t kShardBlock = 1 << 16;  // tokens

bool is_space_byte(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

// True if the character that ends at text[end] is none that any rule calls white space.
bool word_ends_at(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 &&
         (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U) {
    --begin;
  }
  std::uint32_t code_point = 0;
  const char* const last = text.data() + end;
  const int bytes = decode_utf8(text.data() + begin, last, code_point);
  if (bytes == 0 || begin + static_cast<std::size_t>(bytes) != end) return true;  // not UTF-8
  return char_class(code_point) != CharClass::kSpace && code_point >= 0x20;
}

// The last place in (from, text.size()) between a word and white space, or 0.
std::size_t find_cut(std::string_view text, std::size_t from) {
  for (std::size_t i = text.size(); i-- > std::max<std::size_t>(from, 1);) {
    if (is_space_byte(text[i]) && word_ends_at(text, i)) return i;
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
  TextSource(const std::string& path, Tokenizer& tokenizer)
      : name_(path == "-" ? "standard input" : printable(path)), tokenizer_(tokenizer) {
    if (path != "-") file_ = open_regular(path);
    fd_ = path == "-" ? STDIN_FILENO : file_.get();
  }

  bool read_more(std::vector<std::int32_t>& ids) override {
    while (!done_) {
      const std::size_t before = held_.size();
      done_ = !read_block();
      if (counts_.bytes == 0 && !held_.empty()) refuse_what_is_no_text(held_, name_);
      const std::size_t cut = done_ ? held_.size() : find_cut(held_, before);
      if (cut == 0) continue;
      encode(std::string_view(held_).substr(0, cut), ids);
      held_.erase(0, cut);
      return true;
    }
    return false;
  }
  [[nodiscard]] Counts counts() const override { return counts_; }
  [[nodiscard]] const std::string& name() const override { return name_; }

 private:
  // Appends a block to what is held; false at the end of the file.
  bool read_block() {
    const std::size_t before = held_.size();
    held_.resize(before + kTextBlock);
    ssize_t got = -1;
    do {
      got = ::read(fd_, held_.data() + before, kTextBlock);
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

std::unique_ptr<TokenSource> open_text(const std::string& path, Tokenizer& tokenizer) {
  return std::make_unique<TextSource>(path, tokenizer);
}

std::unique_ptr<TokenSource> open_shard(const std::string& path, const Tokenizer* tokenizer,
                                        std::int64_t vocab_size) {
  return std::make_unique<ShardSource>(path, tokenizer, vocab_size);
}

}  // namespace mt
