// The tokenizer against the ids that six other programs agree on, against PCRE2's reading of the
// split rule, and on what is no vocabulary.
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <set>

#include "base/json.h"
#include "shared_data.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

#ifdef MT_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

namespace mt {
namespace {

using namespace mt::testing;

Tokenizer& gpt2() {
  static const std::unique_ptr<Tokenizer> tokenizer = make_bpe_tokenizer(gpt2_files(), "gpt2");
  return *tokenizer;
}

std::vector<std::int32_t> encode(Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

std::string decode(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  return tokenizer.decode(ids.data(), ids.size());
}

TEST(Bpe, GoldenEncode) {
  const auto lines = lines_of(data_path("tokenizer/gpt2_encode.jsonl"));
  ASSERT_EQ(lines.size(), 594U);
  for (const std::string& line : lines) {
    const Json json = parse_json(line, "golden");
    const auto text = json["text"].get<std::string>();
    const auto ids = encode(gpt2(), text);
    EXPECT_EQ(ids, json["ids"].get<std::vector<std::int32_t>>()) << line;
    EXPECT_EQ(decode(gpt2(), ids), text);
  }
}

TEST(Bpe, GoldenDecode) {
  const auto lines = lines_of(data_path("tokenizer/gpt2_decode.jsonl"));
  ASSERT_EQ(lines.size(), 86U);
  for (const std::string& line : lines) {
    const Json json = parse_json(line, "golden");
    const std::string bytes = decode(gpt2(), json["ids"].get<std::vector<std::int32_t>>());
    EXPECT_EQ(bytes, from_hex_bytes(json["bytes_hex"].get<std::string>()));
    std::string text;
    replace_invalid_utf8(bytes, text);
    EXPECT_EQ(text, json["text_errors_replace"].get<std::string>());
  }
}

TEST(Bpe, GoldenInvalidUtf8) {
  const auto lines = lines_of(data_path("tokenizer/gpt2_invalid_utf8.jsonl"));
  ASSERT_EQ(lines.size(), 20U);
  for (const std::string& line : lines) {
    const Json json = parse_json(line, "golden");
    const std::string bytes = from_hex_bytes(json["bytes_hex"].get<std::string>());
    std::string text;
    const std::size_t replaced = replace_invalid_utf8(bytes, text);
    EXPECT_EQ(text, json["text_errors_replace"].get<std::string>()) << line;
    EXPECT_EQ(replaced == 0, text == bytes);
    EXPECT_EQ(encode(gpt2(), text), json["ids_errors_replace"].get<std::vector<std::int32_t>>());
    EXPECT_EQ(decode(gpt2(), encode(gpt2(), bytes)), bytes) << line;
  }
}

// The cases that users of other tools reported as wrong.
TEST(Bpe, ReportedCases) {
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(encode(gpt2(), "a<|endoftext|>b"), (Ids{64, 27, 91, 437, 1659, 5239, 91, 29, 65}));
  EXPECT_EQ(encode(gpt2(), "   hello"), (Ids{220, 220, 23748}));
  EXPECT_EQ(encode(gpt2(), "hello   world"), (Ids{31373, 220, 220, 995}));
  EXPECT_EQ(encode(gpt2(), "I'LL go, we'll go"), (Ids{40, 6, 3069, 467, 11, 356, 1183, 467}));
  EXPECT_EQ(encode(gpt2(), "\xF0\x9F\x98\x80"), (Ids{47249, 222}));
  EXPECT_EQ(encode(gpt2(), ""), Ids{});
  EXPECT_EQ(gpt2().vocab_size(), 50257);
  EXPECT_EQ(gpt2().end_of_document(), 50256);
}

TEST(Bpe, WholeVocabulary) {
  std::string bytes;
  for (std::int32_t id = 0; id < 50256; ++id) {
    const std::string token = gpt2().decode(&id, 1);
    const auto n = static_cast<std::uint32_t>(token.size());
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(n >> shift));
    bytes += token;
  }
  EXPECT_EQ(sha256(bytes.data(), bytes.size()),
            "7cff19521369c7f5f5ed77ed7b730e7491800afb47d01d341e12b3ca740d8543");
  EXPECT_THROW(decode(gpt2(), {50257}), DataError);
  EXPECT_THROW(decode(gpt2(), {-1}), DataError);
}

TEST(Bpe, WholeCorpora) {
  const auto golden = shared_path("data/tokenizers/golden/gpt2_corpora.json");
  if (!golden) GTEST_SKIP() << "the shared corpora are absent";
  const Json files = parse_json(slurp(*golden), "golden")["files"];
  int checked = 0;
  for (const auto& [name, expected] : files.items()) {
    const auto path = shared_path("data/" + name);
    if (!path) continue;
    const std::string text = slurp(*path);
    for (int pass = 0; pass < 2; ++pass) {  // the second with a warm cache
      const auto ids = encode(gpt2(), text);
      EXPECT_EQ(ids.size(), expected["n_tokens"].get<std::size_t>()) << name;
      EXPECT_EQ(sha256_u16(ids), expected["sha256_uint16le"].get<std::string>()) << name;
      EXPECT_EQ(decode(gpt2(), ids), text);
    }
    ++checked;
  }
  EXPECT_GE(checked, 5);
}

TEST(Bpe, RandomBytesComeBack) {
  std::mt19937 random(3);
  std::unique_ptr<Tokenizer> other = gpt2().clone();
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 300, '\0');
    const unsigned kinds = random() % 3;
    for (char& c : bytes) {
      c = static_cast<char>(kinds == 0   ? random() % 256
                            : kinds == 1 ? "  'sl\tae1\xC3\xA9\xE2"[random() % 12]
                                         : 'a' + random() % 3);
    }
    const auto ids = encode(gpt2(), bytes);
    ASSERT_EQ(decode(gpt2(), ids), bytes);
    ASSERT_EQ(encode(*other, bytes), ids);  // another cache, the same ids
    for (const std::int32_t id : ids) ASSERT_LT(id, 50256);
  }
}

// The definition, slowly: among all pairs the one of lowest rank, the leftmost of equals.
std::vector<std::int32_t> encode_slowly(const std::vector<std::string>& merges,
                                        const std::string& piece) {
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  for (;;) {
    std::size_t best_rank = merges.size(), best = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto at = std::find(merges.begin(), merges.end(), parts[i] + " " + parts[i + 1]);
      const auto rank = static_cast<std::size_t>(at - merges.begin());
      if (rank < best_rank) {
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank == merges.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  std::vector<std::int32_t> ids;
  for (const std::string& part : parts) {
    ids.push_back(part.size() == 1 ? static_cast<unsigned char>(part[0])
                                   : -static_cast<int>(part.size()));
  }
  return ids;
}

TEST(Bpe, LongAndShortPiecesFollowTheDefinition) {
  // Ranks out of the order in which merges become possible, too.
  const std::vector<std::string> merges = {"aab c", "b c",   "a a",   "aa b",
                                           "a b",   "aa aa", "ab ab", "c a"};
  std::string text = "#version: 0.2\n";
  std::vector<std::string> extra;
  for (const std::string& m : merges) {
    text += m + "\n";
    extra.push_back(m.substr(0, m.find(' ')) + m.substr(m.find(' ') + 1));
  }
  const auto tokenizer = make_bpe_tokenizer(byte_level_files(extra, text), "test");
  std::mt19937 random(5);
  for (int round = 0; round < 600; ++round) {
    std::string piece(1 + random() % 200, 'a');
    for (char& c : piece) c = "aaabbc"[random() % 6];
    auto ids = encode(*tokenizer, piece);
    std::string whole;
    for (std::int32_t& id : ids) {
      const std::string token = tokenizer->decode(&id, 1);
      if (token.size() > 1) id = -static_cast<int>(token.size());
      whole += token;
    }
    ASSERT_EQ(whole, piece);
    ASSERT_EQ(ids, encode_slowly(merges, piece)) << piece;
  }
}

TEST(Bpe, LongPiecesAreNotQuadratic) {
  for (const std::string unit : {"a", " ", "\n", "ab", "=", "7", "\xE4\xB8\xAD", "\xFF", "'"}) {
    std::string text;
    while (text.size() < (1U << 20)) text += unit;
    const auto start = std::chrono::steady_clock::now();
    const auto ids = encode(gpt2(), text);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_LT(took.count(), 5.0) << unit;  // seconds; some 0.3 s on a quiet machine
    EXPECT_EQ(decode(gpt2(), ids), text);
  }
}

#ifdef MT_HAVE_PCRE2
class Pcre2Split {
 public:
  Pcre2Split() {
    int error = 0;
    PCRE2_SIZE at = 0;
    const char* rule =
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    code_ = pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(rule), PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
    match_ = pcre2_match_data_create_from_pattern_8(code_, nullptr);
  }
  ~Pcre2Split() {
    pcre2_match_data_free_8(match_);
    pcre2_code_free_8(code_);
  }
  Pcre2Split(const Pcre2Split&) = delete;
  Pcre2Split& operator=(const Pcre2Split&) = delete;
  [[nodiscard]] std::size_t end(const std::string& text, std::size_t begin) const {
    const int rc = pcre2_match_8(code_, reinterpret_cast<PCRE2_SPTR8>(text.data()), text.size(),
                                 begin, 0, match_, nullptr);
    const PCRE2_SIZE* found = pcre2_get_ovector_pointer_8(match_);
    return rc < 1 || found[0] != begin ? std::string::npos : found[1];
  }

 private:
  pcre2_code_8* code_;
  pcre2_match_data_8* match_;
};

bool known_to_pcre2(std::uint32_t code_point) {
  static const std::vector<bool> assigned = [] {
    int error = 0;
    PCRE2_SIZE at = 0;
    pcre2_code_8* code =
        pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>("\\p{Cn}"), PCRE2_ZERO_TERMINATED,
                        PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
    pcre2_match_data_8* match = pcre2_match_data_create_from_pattern_8(code, nullptr);
    std::vector<bool> out(0x110000, false);
    for (std::uint32_t c = 0; c < 0x110000; ++c) {
      if (c >= 0xD800 && c <= 0xDFFF) continue;
      std::string text;
      append_utf8(c, text);
      out[c] = pcre2_match_8(code, reinterpret_cast<PCRE2_SPTR8>(text.data()), text.size(), 0, 0,
                             match, nullptr) < 1;
    }
    pcre2_match_data_free_8(match);
    pcre2_code_free_8(code);
    return out;
  }();
  return assigned[code_point];
}

// Every code point that PCRE2's Unicode version knows has the same class there.
TEST(Split, ClassesOfAllCodePointsEqualPcre2) {
  const Pcre2Split oracle;
  std::size_t compared = 0;
  for (std::uint32_t c = 0; c < 0x110000; ++c) {
    if (!known_to_pcre2(c)) continue;
    std::string text;
    append_utf8(c, text);
    text += "a1=";
    const char* const begin = text.data();
    ASSERT_EQ(static_cast<std::size_t>(piece_end(begin, begin + text.size()) - begin),
              oracle.end(text, 0))
        << std::hex << c;
    ++compared;
  }
  EXPECT_GT(compared, 140000U);
}

TEST(Split, RandomTextEqualsPcre2) {
  const Pcre2Split oracle;
  std::mt19937 random(7);
  const std::vector<std::uint32_t> often = {
      ' ', ' ', '\n', '\t', '\'',   's',    't',  'r',   'e',  'v',     'l',    'd',    'm',
      'S', '1', '.',  0xA0, 0x2003, 0x4E2D, 0xBD, 0x301, 0x85, 0x1F600, 0x200B, 0x3000, 0xE9};
  std::size_t pieces = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (unsigned n = 1 + random() % 24; n > 0; --n) {
      std::uint32_t c = often[random() % often.size()];
      if (random() % 4 == 0) c = random() % (random() % 2 == 0 ? 0x3000U : 0x110000U);
      if (c == 0 || !known_to_pcre2(c)) c = 'x';
      append_utf8(c, text);
    }
    const char* const begin = text.data();
    for (std::size_t at = 0; at < text.size(); ++pieces) {
      const auto end = static_cast<std::size_t>(piece_end(begin + at, begin + text.size()) - begin);
      ASSERT_EQ(end, oracle.end(text, at)) << text;
      at = end;
    }
  }
  EXPECT_GT(pieces, 100000U);
}
#endif

// What a message must contain.
void expect_refused(const TokenizerFiles& files, const std::string& part) {
  try {
    (void)make_bpe_tokenizer(files, "here");
    ADD_FAILURE() << "accepted; expected " << part;
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).rfind("here: ", 0), 0U) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
  }
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Vocabulary, HostileVocabularies) {
  const TokenizerFiles good = byte_level_files({"ab", "abc"}, "#version: 0.2\na b\nab c\n");
  ASSERT_EQ(make_bpe_tokenizer(good, "here")->vocab_size(), 259);
  const auto vocab = [&](const std::string& from, const std::string& to) {
    return TokenizerFiles{replaced(good.vocab, from, to), good.merges};
  };
  expect_refused({"", ""}, "expected an object");
  expect_refused({"[]", ""}, "expected an object");
  expect_refused({"{}", ""}, "<|endoftext|>");
  expect_refused({"{\"<|endoftext|>\": 0}", ""}, "single byte 0");
  expect_refused(vocab("\"ab\": 256", "\"ab\": 255"), "two tokens have the id 255");
  expect_refused(vocab("\"ab\": 256", "\"ab\": 300"), "without gaps");
  expect_refused(vocab("\"ab\": 256", "\"ab\": -1"), "whole number");
  expect_refused(vocab("\"ab\": 256", "\"ab\": 256.5"), "whole number");
  expect_refused(vocab("\"ab\": 256", "\"ab\": 0256"), "whole number");
  expect_refused(vocab("\"ab\": 256", "\"ab\": \"256\""), "whole number");
  expect_refused(vocab("\"ab\": 256", "\"ab\": 99999999999999999999999"), "an id below");
  expect_refused(vocab("\"ab\": 256", "\"ab\" 256"), "expected ':'");
  expect_refused(vocab("\"ab\": 256", "ab: 256"), "quotes");
  expect_refused(vocab("\"ab\": 256", "\"abc\": 256"), "stands there twice");
  expect_refused(vocab("\"ab\": 256", "\"\\ud800\": 256"), "surrogates");
  expect_refused(vocab("\"ab\": 256", "\"\\x\": 256"), "escape");
  expect_refused(vocab("\"ab\": 256", "\"\u4e2d\": 256"), "byte-level");
  expect_refused(vocab("\"ab\": 256", "\"\": 256"), "byte-level");
  expect_refused({good.vocab + "x", good.merges}, "end of the file");
  for (std::size_t cut = 0; cut < good.vocab.size(); cut += 7) {
    expect_refused({good.vocab.substr(0, cut), good.merges}, "expected");
  }
  const auto merges = [&](const std::string& text) { return TokenizerFiles{good.vocab, text}; };
  expect_refused(merges("a b\na b\n"), "line 2");
  expect_refused(merges("#version: 0.2\na zz\n"), "the right token is not");
  expect_refused(merges("zz a\n"), "the left token is not");
  expect_refused(merges("a c\n"), "the joined token is not");
  expect_refused(merges("a  b\n"), "one blank");
  expect_refused(merges("ab\n"), "one blank");
  expect_refused(merges("a b c\n"), "one blank");
  const TokenizerFiles special = byte_level_files({"<|endoftext|"}, "<|endoftext| >\n");
  expect_refused(special, "special token");
}

TEST(Vocabulary, DigestKnowsTheContentAndNotTheSpelling) {
  const std::string merges = "#version: 0.2\na b\nab c\n";
  const auto digest = [](const TokenizerFiles& f) { return make_bpe_tokenizer(f, "t")->digest(); };
  const TokenizerFiles a = byte_level_files({"ab", "abc"}, merges);
  EXPECT_EQ(digest(a), digest({replaced(a.vocab, "\"ab\": 256", "\n \"\\u0061b\" : 256"), merges}));
  EXPECT_EQ(digest(a), digest({a.vocab, "a b\r\nab c"}));
  EXPECT_NE(digest(a), digest({a.vocab, "a b\n"}));
  EXPECT_NE(digest(a), digest({a.vocab, "ab c\na b\n"}));
  EXPECT_NE(digest(a), digest(byte_level_files({"abc", "ab"}, merges)));
}

}  // namespace
}  // namespace mt
