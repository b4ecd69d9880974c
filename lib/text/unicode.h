// UTF-8 and the character classes that GPT-2's split rule asks for. The classes are those of
// utf8proc's Unicode version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace mt {

// \p{L}, \p{N}, \s (the property White_Space) and everything else.
enum class CharClass : std::uint8_t { kOther = 0, kLetter = 1, kNumber = 2, kSpace = 3 };

struct Character {
  CharClass kind;
  std::uint8_t bytes;  // 1 to 4
};

// The class of a code point. Unassigned ones and surrogates are kOther.
[[nodiscard]] CharClass char_class(std::uint32_t code_point);

// The number of bytes of the valid UTF-8 sequence at p (p < end), and its code point; 0 if the
// bytes there are no such sequence (overlong forms, surrogates and values over U+10FFFF are none).
[[nodiscard]] int decode_utf8(const char* p, const char* end, std::uint32_t& code_point);

// The character at p, p < end. A byte that is not part of valid UTF-8 is a character of its own, of
// class kOther, so that any bytes can be split.
[[nodiscard]] Character next_character(const char* p, const char* end);

// Appends the code point, which must be a valid scalar value.
void append_utf8(std::uint32_t code_point, std::string& out);

}  // namespace mt
