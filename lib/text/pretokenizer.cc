#include "text/pretokenizer.h"

#include <array>
#include <bit>
#include <cstdint>

#include "text/unicode.h"

namespace mt {
namespace {

constexpr std::array<CharClass, 128> make_ascii() {
  std::array<CharClass, 128> table{};
  for (unsigned c = 0; c < 128; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool space = c == ' ' || (c >= 9 && c <= 13);
    table[c] = letter                 ? CharClass::kLetter
               : c >= '0' && c <= '9' ? CharClass::kNumber
               : space                ? CharClass::kSpace
                                      : CharClass::kOther;
  }
  return table;
}
constexpr std::array<CharClass, 128> kAscii = make_ascii();

Character character_at(const char* p, const char* end) {
  const auto byte = static_cast<unsigned char>(*p);
  if (byte < 128) return {kAscii[byte], 1};
  return next_character(p, end);
}

// How many of the eight bytes at p are ASCII letters before the first that is none: eight at once
// in a word, where sums of 7 bits carry nothing over.
std::size_t letters_of_8(const char* p) {
  constexpr std::uint64_t kOnes = 0x0101010101010101U;
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < 8; ++i) {  // one load; the lowest byte is the first
    word |= static_cast<std::uint64_t>(static_cast<unsigned char>(p[i])) << (8 * i);
  }
  const std::uint64_t lower = (word | 0x20 * kOnes) & 0x7F * kOnes;
  const std::uint64_t from_a = lower + (0x80 - 'a') * kOnes;
  const std::uint64_t beyond_z = lower + (0x80 - 'z' - 1) * kOnes;
  const std::uint64_t others = (~from_a | beyond_z | word) & 0x80 * kOnes;
  return others == 0 ? 8 : static_cast<std::size_t>(std::countr_zero(others)) / 8;
}

// The end of the run of characters of one class.
const char* run_end(const char* p, const char* end, CharClass kind) {
  if (kind == CharClass::kLetter) {
    while (end - p >= 8) {
      const std::size_t letters = letters_of_8(p);
      p += letters;
      if (letters == 8) continue;
      if (static_cast<unsigned char>(*p) < 128) return p;
      break;
    }
  }
  while (p < end) {
    const Character c = character_at(p, end);
    if (c.kind != kind) break;
    p += c.bytes;
  }
  return p;
}

// The length of 's 't 'm 'd 're 've 'll at p, or 0.
int contraction(const char* p, const char* end) {
  if (end - p < 2) return 0;
  const char a = p[1];
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if (end - p < 3) return 0;
  const char b = p[2];
  return (b == 'e' && (a == 'r' || a == 'v')) || (a == 'l' && b == 'l') ? 3 : 0;
}

// A run of white space keeps its last character for what follows it, unless it is the whole run or
// the text ends there.
const char* space_end(const char* p, const char* end) {
  const char* last = p;
  const char* q = p;
  while (q < end) {
    const Character c = character_at(q, end);
    if (c.kind != CharClass::kSpace) return last == p ? q : last;
    last = q;
    q += c.bytes;
  }
  return q;
}

}  // namespace

const char* piece_end(const char* p, const char* end) {
  const Character first = character_at(p, end);
  if (first.kind == CharClass::kSpace) {
    if (*p == ' ' && p + 1 < end) {
      const Character second = character_at(p + 1, end);
      if (second.kind != CharClass::kSpace) return run_end(p + 1 + second.bytes, end, second.kind);
    }
    return space_end(p, end);
  }
  if (*p == '\'') {
    const int length = contraction(p, end);
    if (length != 0) return p + length;
  }
  return run_end(p + first.bytes, end, first.kind);
}

}  // namespace mt
