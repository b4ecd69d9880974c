// Stop strings across the borders of tokens, and the stream of whole characters.
#include "infer/text_stream.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace mt {
namespace {

// What comes out of `text` in pieces of `step` bytes; at most `slack` bytes are ever held back.
std::string through(const std::vector<std::string>& stops, const std::string& text,
                    std::size_t step, std::size_t slack) {
  StopText filter(stops);
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += step) {
    if (filter.push(std::string_view(text).substr(at, step), out)) return out + "|";
    EXPECT_LE(std::min(at + step, text.size()) - out.size(), slack);
  }
  return out + filter.finish();
}

TEST(StopText, is_a_function_of_the_text_whatever_the_pieces) {
  struct Case {
    std::vector<std::string> stops;
    std::string text, expected;
  };
  for (const Case& c : std::vector<Case>{{{}, "abc", "abc"},
                                         {{"b"}, "abc", "a|"},
                                         {{"abc"}, "ababab", "ababab"},
                                         {{"abc"}, "abababcab", "abab|"},
                                         {{"aab"}, "aaaaab", "aaa|"},
                                         {{"abcd", "bc"}, "xabcd", "xa|"},  // complete first
                                         {{"bc", "abc"}, "xabcd", "x|"},    // the longer of equals
                                         {{"\n\n"}, "a\nb\n", "a\nb\n"},
                                         {{"\n\n"}, "a\nb\n\nc", "a\nb|"},
                                         {{"\xF0\x9F\x98\x80"}, "x\xF0\x9F\x98\x80y", "x|"},
                                         {{"abcabd"}, "abcabcabd", "abc|"}}) {
    for (std::size_t step = 1; step <= c.text.size(); ++step) {
      EXPECT_EQ(through(c.stops, c.text, step, 5), c.expected) << c.text << " by " << step;
    }
  }
}

TEST(StopText, holds_back_only_what_may_become_a_stop) {
  StopText filter({"END"});
  std::string out;
  EXPECT_FALSE(filter.push("the E", out));
  EXPECT_EQ(out, "the ");
  EXPECT_FALSE(filter.push("N", out));
  EXPECT_EQ(out, "the ");
  EXPECT_FALSE(filter.push("T", out));
  EXPECT_EQ(out, "the ENT");
  EXPECT_FALSE(filter.push("E", out));
  EXPECT_EQ(filter.finish(), "E");
  EXPECT_EQ(filter.finish(), "");
}

TEST(StopText, refuses_what_is_no_stop) {
  EXPECT_THROW(StopText({"a", ""}), UsageError);
  EXPECT_THROW(StopText({std::string(1025, 'x')}), UsageError);
  EXPECT_NO_THROW(StopText({std::string(1024, 'x')}));
}

TEST(CharacterStream, gives_out_whole_characters) {
  CharacterStream stream;
  EXPECT_EQ(stream.push("a"), "a");
  EXPECT_EQ(stream.push("\xF0\x9F"), "");
  EXPECT_EQ(stream.push("\x98"), "");
  EXPECT_EQ(stream.push("\x80\xC3"), "\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.push("\xA9!"), "\xC3\xA9!");
  EXPECT_EQ(stream.finish(), "");
}

TEST(CharacterStream, loses_no_byte_whatever_comes) {
  const std::string bytes =
      "\x80\xBF x\xE4\xBD\xA0\xE4\xBD \xFF\xF0\x9F\x98\xC3\xA9\xF4\x8F\xBF\xBF\xE0\xF0";
  for (std::size_t step = 1; step <= bytes.size(); ++step) {
    CharacterStream stream;
    std::string out;
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      const std::string piece = stream.push(std::string_view(bytes).substr(at, step));
      out += piece;
      EXPECT_LE(at + step - out.size(), step + 3);
    }
    EXPECT_EQ(stream.finish(), "\xF0") << step;
    EXPECT_EQ(out + "\xF0", bytes) << step;
  }
}

TEST(CharacterStream, an_unfinished_character_comes_at_the_end) {
  CharacterStream stream;
  EXPECT_EQ(stream.push("ab\xE4\xBD"), "ab");
  EXPECT_EQ(stream.finish(), "\xE4\xBD");
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace mt
