#include "comm/pulse.h"

#include <algorithm>
#include <cstring>

namespace mt {

const char* wait_name(Wait wait) {
  constexpr std::array<const char*, 11> kNames{
      "computing", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier",
      "send",      "receive",    "finish_sends",   "split",      "end"};
  return kNames.at(static_cast<std::size_t>(wait));
}

ShortText short_text(std::string_view text) {
  ShortText words{};
  std::memcpy(words.data(), text.data(), std::min(text.size(), sizeof(words) - 1));
  return words;
}

std::string to_string(const ShortText& text) {
  std::array<char, sizeof(ShortText) + 1> bytes{};
  std::memcpy(bytes.data(), text.data(), sizeof(text));
  return bytes.data();
}

}  // namespace mt
