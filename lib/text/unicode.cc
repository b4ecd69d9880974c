#include "text/unicode.h"

#include <utf8proc.h>

#include <array>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace mt {
namespace {

// No letter, number or space lies at or above plane 4.
constexpr std::uint32_t kTableEnd = 0x40000;

CharClass class_from_library(std::uint32_t code_point) {
  if ((code_point >= 9 && code_point <= 13) || code_point == 0x85) return CharClass::kSpace;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass::kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::kNumber;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return CharClass::kSpace;
    default:
      return CharClass::kOther;
  }
}

std::vector<CharClass> make_table() {
  std::vector<CharClass> table(kTableEnd);
  for (std::uint32_t c = 0; c < kTableEnd; ++c) table[c] = class_from_library(c);
  return table;
}

// The range of the second byte and the length, by first byte (Unicode 15, table 3-7).
struct Lead {
  std::uint8_t length, low, high;
};

constexpr Lead lead_of(unsigned byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte >= 0xC2 && byte <= 0xDF) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

unsigned byte_at(const char* p) {
  return static_cast<unsigned char>(*p);
}

// How many bytes at p form a valid sequence, or (`valid` false) the maximal prefix of one, at least
// 1.
int maximal_part(const char* p, const char* end, bool& valid) {
  const Lead lead = lead_of(byte_at(p));
  valid = lead.length == 1;
  if (lead.length <= 1) return 1;
  if (end - p < 2 || byte_at(p + 1) < lead.low || byte_at(p + 1) > lead.high) return 1;
  for (int i = 2; i < lead.length; ++i) {
    if (end - p <= i || (byte_at(p + i) & 0xC0U) != 0x80U) return i;
  }
  valid = true;
  return lead.length;
}

}  // namespace

CharClass char_class(std::uint32_t code_point) {
  static const std::vector<CharClass> table = make_table();
  return code_point < kTableEnd ? table[code_point] : CharClass::kOther;
}

int decode_utf8(const char* p, const char* end, std::uint32_t& code_point) {
  bool valid = false;
  const int length = maximal_part(p, end, valid);
  if (!valid) return 0;
  constexpr std::array<std::uint8_t, 5> kLeadMask = {0, 0x7F, 0x1F, 0x0F, 0x07};
  code_point = byte_at(p) & kLeadMask[static_cast<std::size_t>(length)];
  for (int i = 1; i < length; ++i) code_point = (code_point << 6) | (byte_at(p + i) & 0x3FU);
  return length;
}

Character next_character(const char* p, const char* end) {
  std::uint32_t code_point = 0;
  const int length = decode_utf8(p, end, code_point);
  if (length == 0) return {CharClass::kOther, 1};
  return {char_class(code_point), static_cast<std::uint8_t>(length)};
}

void append_utf8(std::uint32_t code_point, std::string& out) {
  const auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
    return;
  }
  if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
  } else {
    if (code_point < 0x10000) {
      put(0xE0 | (code_point >> 12));
    } else {
      put(0xF0 | (code_point >> 18));
      put(0x80 | ((code_point >> 12) & 0x3F));
    }
    put(0x80 | ((code_point >> 6) & 0x3F));
  }
  put(0x80 | (code_point & 0x3F));
}

std::size_t replace_invalid_utf8(std::string_view bytes, std::string& out) {
  std::size_t replaced = 0;
  const char* const end = bytes.data() + bytes.size();
  const char* copied = bytes.data();
  const char* p = bytes.data();
  while (p < end) {
    if (byte_at(p) < 0x80) {
      ++p;
      continue;
    }
    bool valid = false;
    const int length = maximal_part(p, end, valid);
    if (!valid) {
      out.append(copied, p);
      out.append("\xEF\xBF\xBD");
      ++replaced;
      copied = p + length;
    }
    p += length;
  }
  out.append(copied, end);
  return replaced;
}

}  // namespace mt
