#include "text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "text/unicode.h"

namespace mt {
namespace {

constexpr std::string_view kEndOfDocument = "<|endoftext|>";
constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 24;
constexpr std::size_t kMaxMerges = (std::size_t{1} << 24) - 1;  // as merge_table.h needs

// A token as it is shown in a message.
std::string shown(std::string_view token) {
  constexpr std::size_t kMost = 40;
  std::string text(token.substr(0, kMost));
  if (token.size() > kMost) text += "...";
  return "\"" + printable(text) + "\"";
}

// Reads the flat object {"token": id, ...}. A parser of its own because vocabularies are read at
// every start, and the general one looks through all earlier keys at every key.
class VocabParser {
 public:
  VocabParser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  template <typename Entry>
  void parse(const Entry& entry) {
    if (text_.substr(0, 3) == "\xEF\xBB\xBF") at_ = 3;
    expect('{', "an object of tokens and ids");
    if (peek() == '}') {
      ++at_;
    } else {
      for (;;) {
        std::string token = string();
        expect(':', "':'");
        const std::int64_t id = integer(token);
        entry(std::move(token), id);
        if (peek() == '}') break;
        expect(',', "',' or '}'");
      }
      ++at_;
    }
    if (peek() != '\0' || at_ < text_.size()) fail("the end of the file");
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    throw DataError(cat(where_, ": byte ", at_, ": expected ", expected));
  }

  char peek() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
      ++at_;
    }
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  void expect(char c, const char* what) {
    if (peek() != c || at_ >= text_.size()) fail(what);
    ++at_;
  }

  std::int64_t integer(const std::string& token) {
    peek();
    const std::size_t begin = at_;
    std::int64_t value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      value = value * 10 + (text_[at_] - '0');
      ++at_;
      if (value >= kMaxTokens) fail(cat("an id below ", kMaxTokens, " for token ", shown(token)));
    }
    const bool leading_zero = at_ - begin > 1 && text_[begin] == '0';
    const char next = peek();
    if (at_ == begin || leading_zero || (next != ',' && next != '}')) {
      fail(cat("a whole number from 0 as the id of token ", shown(token)));
    }
    return value;
  }

  std::uint32_t hex4() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = at_ < text_.size() ? text_[at_] : '\0';
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) fail("four hexadecimal digits after \\u");
      value = value * 16 + static_cast<std::uint32_t>(digit);
    }
    return value;
  }

  void escape(std::string& out) {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    ++at_;
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    const std::size_t known = kNames.find(c);
    if (c != '\0' && known != std::string_view::npos) {
      out.push_back(kValues[known]);
      return;
    }
    if (c != 'u') fail("a JSON escape");
    std::uint32_t unit = hex4();
    if (unit >= 0xD800 && unit <= 0xDFFF) {
      const bool pair = unit < 0xDC00 && text_.substr(at_, 2) == "\\u";
      if (!pair) fail("a pair of surrogates");
      at_ += 2;
      const std::uint32_t low = hex4();
      if (low < 0xDC00 || low > 0xDFFF) fail("a pair of surrogates");
      unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
    }
    append_utf8(unit, out);
  }

  std::string string() {
    expect('"', "a token in quotes");
    std::string out;
    for (;;) {
      if (at_ >= text_.size()) fail("a closing quote");
      const char c = text_[at_];
      if (static_cast<unsigned char>(c) < 0x20) fail("no control character inside a token");
      ++at_;
      if (c == '"') return out;
      if (c == '\\') {
        escape(out);
      } else {
        out.push_back(c);
      }
    }
  }

  std::string_view text_;
  const std::string& where_;
  std::size_t at_ = 0;
};

// GPT-2's bytes_to_unicode: printable Latin-1 stands for itself, the other bytes for U+0100 on, in
// order. Returns the code point of each byte.
std::array<std::uint32_t, 256> byte_characters() {
  std::array<std::uint32_t, 256> table{};
  std::uint32_t next = 0x100;
  for (std::uint32_t b = 0; b < 256; ++b) {
    const bool itself = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    table[b] = itself ? b : next++;
  }
  return table;
}

class ByteDecoder {
 public:
  ByteDecoder() : bytes_(0x200, -1) {
    const auto characters = byte_characters();
    for (std::size_t b = 0; b < 256; ++b) bytes_[characters[b]] = static_cast<int>(b);
  }
  // False if a character stands for no byte.
  bool operator()(std::string_view text, std::string& out) const {
    out.clear();
    const char* p = text.data();
    const char* const end = p + text.size();
    while (p < end) {
      std::uint32_t c = 0;
      const int length = decode_utf8(p, end, c);
      if (length == 0 || c >= bytes_.size() || bytes_[c] < 0) return false;
      out.push_back(static_cast<char>(bytes_[c]));
      p += length;
    }
    return true;
  }

 private:
  std::vector<int> bytes_;
};

// Slots for open addressing: half of them stay free.
std::size_t slots_for(std::size_t entries) {
  return std::bit_ceil(entries * 2 + 2);
}

// From a token's bytes to its id. A slot has the hash beside the id, so that a look touches the
// bytes of the right token only: this and the set of pairs are most of a start.
class TokenIds {
 public:
  static constexpr std::int32_t kNone = -1;

  // `tokens` stays where and as it is. Returns the id of the first token that stands there twice,
  // or kNone.
  std::int32_t fill(const std::vector<std::string>& tokens) {
    tokens_ = &tokens;
    slots_.assign(slots_for(tokens.size()), {});
    for (std::size_t id = 0; id < tokens.size(); ++id) {
      const std::uint64_t h = hash(tokens[id]);
      Slot& slot = slots_[place(tokens[id], h)];
      if (slot.id != kNone) return static_cast<std::int32_t>(id);
      slot = {static_cast<std::uint32_t>(h >> 32), static_cast<std::int32_t>(id)};
    }
    return kNone;
  }
  [[nodiscard]] std::int32_t find(std::string_view token) const {
    return slots_[place(token, hash(token))].id;
  }

 private:
  struct Slot {
    std::uint32_t hash = 0;
    std::int32_t id = kNone;
  };

  static std::uint64_t hash(std::string_view token) {
    std::uint64_t h = token.size();
    const auto mix = [&](std::size_t at, std::size_t bytes) {
      std::uint64_t word = 0;
      std::memcpy(&word, token.data() + at, bytes);
      h = (h ^ word) * 0x9E3779B97F4A7C15U;
      h ^= h >> 32;
    };
    std::size_t at = 0;
    for (; at + 8 <= token.size(); at += 8) mix(at, 8);
    if (at < token.size()) mix(at, token.size() - at);
    return h * 0xC2B2AE3D27D4EB4FU;
  }
  // The slot of the token, or the free one where it would be.
  [[nodiscard]] std::size_t place(std::string_view token, std::uint64_t h) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = h >> 20 & mask;
    for (; slots_[at].id != kNone; at = (at + 1) & mask) {
      if (slots_[at].hash == static_cast<std::uint32_t>(h >> 32) &&
          (*tokens_)[static_cast<std::size_t>(slots_[at].id)] == token) {
        break;
      }
    }
    return at;
  }

  const std::vector<std::string>* tokens_ = nullptr;
  std::vector<Slot> slots_;
};

// The pairs of ids that were seen.
class Pairs {
 public:
  // False if it was there.
  bool insert(std::int32_t left, std::int32_t right) {
    const std::uint64_t pair =
        (static_cast<std::uint64_t>(left) << 32) | static_cast<std::uint32_t>(right);
    if (slots_for(count_ + 1) > slots_.size()) grow();
    std::uint64_t& slot = slots_[place(pair)];
    if (slot == pair) return false;
    slot = pair;
    ++count_;
    return true;
  }

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};  // no id is negative

  [[nodiscard]] std::size_t place(std::uint64_t pair) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = pair * 0x9E3779B97F4A7C15U >> 20 & mask;
    while (slots_[at] != kFree && slots_[at] != pair) at = (at + 1) & mask;
    return at;
  }
  void grow() {
    std::vector<std::uint64_t> old(slots_.size() * 4, kFree);
    old.swap(slots_);
    for (const std::uint64_t pair : old) {
      if (pair != kFree) slots_[place(pair)] = pair;
    }
  }

  std::vector<std::uint64_t> slots_ = std::vector<std::uint64_t>(std::size_t{1} << 15, kFree);
  std::size_t count_ = 0;
};

void read_tokens(std::string_view text, const TokenizerNames& names, BpeVocabulary& out,
                 TokenIds& ids) {
  const ByteDecoder decode;
  std::vector<std::pair<std::int64_t, std::string>> entries;
  VocabParser(text, names.vocab).parse([&](std::string token, std::int64_t id) {
    if (token == kEndOfDocument) out.end_of_document = static_cast<std::int32_t>(id);
    std::string bytes;
    if (token.empty() || !decode(token, bytes)) {
      throw DataError(cat(names.vocab, ": token ", shown(token), " (id ", id,
                          ") is not written in byte-level characters"));
    }
    entries.emplace_back(id, std::move(bytes));
  });
  const auto count = static_cast<std::int64_t>(entries.size());
  out.tokens.resize(entries.size());
  std::vector<bool> seen(entries.size());
  for (auto& [id, bytes] : entries) {
    if (id >= count) {
      throw DataError(cat(names.vocab, ": id ", id, " of token ", shown(bytes), " among ", count,
                          " tokens: the ids must run from 0 without gaps"));
    }
    const auto at = static_cast<std::size_t>(id);
    if (seen[at]) throw DataError(cat(names.vocab, ": two tokens have the id ", id));
    seen[at] = true;
    out.tokens[at] = std::move(bytes);
  }
  if (const std::int32_t twice = ids.fill(out.tokens); twice != TokenIds::kNone) {
    throw DataError(cat(names.vocab, ": token ", shown(out.tokens[static_cast<std::size_t>(twice)]),
                        " stands there twice"));
  }
  if (out.end_of_document < 0) {
    throw DataError(cat(names.vocab, ": no token ", kEndOfDocument));
  }
  for (unsigned b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    const std::int32_t found = ids.find(std::string_view(&byte, 1));
    if (found == TokenIds::kNone) {
      throw DataError(cat(names.vocab, ": no token for the single byte ", b,
                          ": it is not a byte-level vocabulary"));
    }
    out.byte_ids[b] = found;
  }
}

void read_merges(std::string_view text, const TokenizerNames& names, const TokenIds& ids,
                 BpeVocabulary& out) {
  const ByteDecoder decode;
  Pairs pairs;
  std::string left, right, joined;
  std::size_t line_number = 0;
  const auto fail = [&](std::string_view line, const std::string& why) {
    throw DataError(cat(names.merges, ": line ", line_number, " ", shown(line), ": ", why));
  };
  while (!text.empty()) {
    const std::size_t length = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    ++line_number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    // A comment only there: "# #" is a merge.
    if (line.empty() || (line_number == 1 && line.substr(0, 8) == "#version")) continue;
    const std::size_t blank = line.find(' ');
    if (blank == std::string_view::npos || blank == 0 || blank + 1 == line.size() ||
        line.find(' ', blank + 1) != std::string_view::npos) {
      fail(line, "expected two tokens with one blank between them");
    }
    if (!decode(line.substr(0, blank), left) || !decode(line.substr(blank + 1), right)) {
      fail(line, "not written in byte-level characters");
    }
    joined.assign(left).append(right);
    const std::int32_t a = ids.find(left), b = ids.find(right), result = ids.find(joined);
    if (a == TokenIds::kNone) fail(line, "the left token is not in vocab.json");
    if (b == TokenIds::kNone) fail(line, "the right token is not in vocab.json");
    if (result == TokenIds::kNone) fail(line, "the joined token is not in vocab.json");
    if (result == out.end_of_document) fail(line, "it would make a special token of text");
    if (!pairs.insert(a, b)) fail(line, "the same merge stands further up");
    if (out.merges.size() + 1 >= kMaxMerges) {
      fail(line, cat("expected less than ", kMaxMerges, " merges"));
    }
    out.merges.push_back({a, b, result});
  }
}

}  // namespace

BpeVocabulary read_bpe_vocabulary(const TokenizerFiles& files, const TokenizerNames& names) {
  const auto check_size = [](const std::string& text, const std::string& name) {
    if (text.size() > kMaxFileBytes) {
      throw DataError(cat(name, ": ", text.size(), " bytes; at most ", kMaxFileBytes, " are read"));
    }
  };
  check_size(files.vocab, names.vocab);
  check_size(files.merges, names.merges);
  BpeVocabulary out;
  TokenIds ids;  // views into out.tokens, which stays as it is
  read_tokens(files.vocab, names, out, ids);
  read_merges(files.merges, names, ids, out);
  return out;
}

}  // namespace mt
