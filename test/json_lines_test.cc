// Every odd line of the shared collection against what is expected of it, and more.
#include <gtest/gtest.h>

#include "base/json.h"
#include "io/json_lines.h"
#include "io/line_reader.h"
#include "shared_data.h"
#include "text/tokenizer.h"

namespace mt {
namespace {

using namespace mt::testing;

JsonLine parse(const std::string& line, JsonDocument& out, const std::string& key = "text") {
  static JsonLineParser parser("text", replace_invalid_utf8);
  const std::string padded = line + std::string(LineReader::kPadding, '"');
  const std::string_view view(padded.data(), line.size());
  if (key == "text") return parser.parse(view, out);
  return JsonLineParser(key, replace_invalid_utf8).parse(view, out);
}

std::string text_of(const std::string& line) {
  JsonDocument out;
  EXPECT_EQ(parse(line, out), JsonLine::kDocument) << line << ": " << out.reason;
  return out.text;
}

TEST(JsonLines, MalformedFile) {
  const auto truth = lines_of(data_path("pile/malformed.truth.jsonl"));
  LineReader reader(data_path("pile/malformed.jsonl"));
  JsonLineParser parser("text", replace_invalid_utf8);
  JsonDocument out;
  std::string_view line;
  std::map<std::string, int> counts;
  std::uint64_t replaced = 0;
  for (const std::string& t : truth) {
    ASSERT_TRUE(reader.next(line));
    // A lone surrogate stands in no expected text.
    const Json expected = parse_json(t, "truth");
    const auto wanted = expected["expect"].get<std::string>();
    const JsonLine kind = parser.parse(line, out);
    replaced += out.replaced;
    const bool document = kind == JsonLine::kDocument;
    if (wanted == "skip") {
      EXPECT_EQ(kind, JsonLine::kBlank) << t;
    } else if (wanted == "bad") {
      EXPECT_TRUE(!document && kind != JsonLine::kBlank) << t;
      EXPECT_FALSE(out.reason.empty()) << t;
    } else {
      EXPECT_TRUE(document || wanted == "doc_or_bad") << t << out.reason;
      if (document && expected.contains("text")) {
        EXPECT_EQ(out.text, expected["text"].get<std::string>()) << t;
      }
    }
    ++counts[document ? "document" : kind == JsonLine::kBlank ? "blank" : "bad"];
  }
  EXPECT_FALSE(reader.next(line));
  EXPECT_EQ(counts["document"] + counts["blank"] + counts["bad"], 41);
  EXPECT_EQ(counts["blank"], 2);
  EXPECT_EQ(counts["bad"], 16);
  EXPECT_GT(replaced, 4U);
}

TEST(JsonLines, RepairsAreCounted) {
  JsonDocument out;
  ASSERT_EQ(parse("{\"text\": \"a\xFFz\xE2\x82\"}", out), JsonLine::kDocument);
  EXPECT_EQ(out.text, "a\xEF\xBF\xBDz\xEF\xBF\xBD");
  EXPECT_EQ(out.replaced, 2U);
  ASSERT_EQ(parse(R"({"text": "\ud83d|\ude00|\ud83d\ude00|\\ud83d|\uD800\uD83D\uDE00"})", out),
            JsonLine::kDocument);
  EXPECT_EQ(out.text,
            "\xEF\xBF\xBD|\xEF\xBF\xBD|\xF0\x9F\x98\x80|\\ud83d|\xEF\xBF\xBD\xF0\x9F\x98\x80");
  EXPECT_EQ(out.replaced, 3U);
  ASSERT_EQ(parse("{\"text\": \"\\ud83d \xFF\", \"n\": 1e999}", out), JsonLine::kDocument);
  EXPECT_EQ(out.text, "\xEF\xBF\xBD \xEF\xBF\xBD");
  EXPECT_EQ(out.replaced, 2U);
  ASSERT_EQ(parse("{\"text\": \"plain\"}", out), JsonLine::kDocument);
  EXPECT_EQ(out.replaced, 0U);
}

TEST(JsonLines, NumbersOfAnySize) {
  EXPECT_EQ(
      text_of(R"({"n": 123456789012345678901234567890, "text": "a 99999999999999999999999 -"})"),
      "a 99999999999999999999999 -");
  EXPECT_EQ(text_of(R"({"n": [1e400, -1E+999, 0.5e-999], "text": "\"1e400", "m": -0})"), "\"1e400");
  JsonDocument out;
  for (const char* bad : {"01", "1.", ".5", "+1", "1e", "-", "1e400x", "99999999999999999999999.",
                          "0x10", "--1", "1 2", "- 1"}) {
    const std::string line = cat("{\"big\": 1e999, \"n\": ", bad, ", \"text\": \"a\"}");
    EXPECT_EQ(parse(line, out), JsonLine::kNotJson) << line;
  }
}

TEST(JsonLines, KindsOfBadLines) {
  JsonDocument out;
  EXPECT_EQ(parse("", out), JsonLine::kBlank);
  EXPECT_EQ(parse(" \t\r", out), JsonLine::kBlank);
  EXPECT_EQ(parse("\xEF\xBB\xBF", out), JsonLine::kBlank);
  EXPECT_EQ(parse("[\"text\"]", out), JsonLine::kNotObject);
  EXPECT_EQ(parse("{\"text\": 5}", out), JsonLine::kNotString);
  EXPECT_EQ(parse("{\"text\": \"a\"} {}", out), JsonLine::kNotJson);
  EXPECT_EQ(parse("{\"text\": \"a", out), JsonLine::kNotJson);
  EXPECT_EQ(parse("{\"content\": 1, \"meta\": {\"text\": \"x\"}}", out), JsonLine::kMissingKey);
  EXPECT_EQ(out.keys, (std::vector<std::string>{"content", "meta"}));
  EXPECT_EQ(parse("{\"content\": \"c\"}", out, "content"), JsonLine::kDocument);
  EXPECT_EQ(out.text, "c");
  std::string many = "{";
  for (int i = 0; i < 100; ++i) many += cat("\"k", i, "\\n\": 1, ");
  EXPECT_EQ(parse(many + "\"z\": 1}", out), JsonLine::kMissingKey);
  EXPECT_EQ(out.keys.size(), 16U);
  EXPECT_EQ(out.keys[0].find('\n'), std::string::npos);
}

TEST(JsonLines, DeepNesting) {
  JsonDocument out;
  for (const int depth : {1000000, 100000, 2000}) {
    const auto n = static_cast<std::size_t>(depth);
    const std::string line =
        "{\"text\": \"a\", \"deep\": " + std::string(n, '[') + std::string(n, ']') + "}";
    EXPECT_EQ(parse(line, out), JsonLine::kNotJson);
    EXPECT_EQ(parse("{\"text\": " + std::string(n, '['), out), JsonLine::kNotJson);
  }
  EXPECT_EQ(
      text_of("{\"text\": \"a\", \"deep\": " + std::string(900, '[') + std::string(900, ']') + "}"),
      "a");
}

TEST(JsonLines, SetNames) {
  JsonDocument out;
  (void)parse(R"({"meta": {"pile_set_name": "ArXiv"}, "text": "a"})", out);
  EXPECT_TRUE(out.has_set);
  EXPECT_EQ(out.set, "ArXiv");
  for (const char* none : {R"({"text": "a"})", R"({"text": "a", "meta": 5})",
                           R"({"text": "a", "meta": {"pile_set_name": 5}})",
                           R"({"text": "a", "meta": {}})", R"({"text": "a", "meta": null})"}) {
    ASSERT_EQ(parse(none, out), JsonLine::kDocument);
    EXPECT_FALSE(out.has_set) << none;
  }
}

}  // namespace
}  // namespace mt
