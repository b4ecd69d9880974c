#include "infer/text_stream.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace mt {
namespace {

constexpr std::size_t kLongestStop = 1024;  // bytes

// How many bytes the character that `lead` begins has; 1 for what begins none.
std::size_t character_bytes(unsigned char lead) {
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 1;
}

// Bytes at the end of text that are the beginning of a character and no more.
std::size_t unfinished(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0U) != 0x80U) return character_bytes(byte) > back ? back : 0;
  }
  return 0;
}

}  // namespace

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    if (stop.empty() || stop.size() > kLongestStop) {
      throw UsageError(
          cat("--stop: expected a text of 1 to ", kLongestStop, " bytes, found ", stop.size()));
    }
    longest_ = std::max(longest_, stop.size());
  }
}

bool StopText::push(std::string_view bytes, std::string& out) {
  const std::size_t known = held_.size();
  held_ += bytes;
  const std::string_view text = held_;
  for (std::size_t end = known + 1; end <= text.size(); ++end) {
    std::size_t found = 0;
    for (const std::string& stop : stops_) {
      if (text.substr(0, end).ends_with(stop)) found = std::max(found, stop.size());
    }
    if (found == 0) continue;
    out += text.substr(0, end - found);
    held_.clear();
    return true;
  }
  // The longest end of the text that begins a stop string stays.
  std::size_t from = text.size() - std::min(text.size(), longest_ == 0 ? 0 : longest_ - 1);
  const auto may_stop = [&] {
    return std::any_of(stops_.begin(), stops_.end(), [&](const std::string& stop) {
      return std::string_view(stop).starts_with(text.substr(from));
    });
  };
  while (from < text.size() && !may_stop()) ++from;
  out += text.substr(0, from);
  held_.erase(0, from);
  return false;
}

std::string StopText::finish() {
  return std::exchange(held_, {});
}

std::string CharacterStream::push(std::string_view bytes) {
  std::string out = std::exchange(held_, {});
  out += bytes;
  const std::size_t keep = unfinished(out);
  held_ = out.substr(out.size() - keep);
  out.resize(out.size() - keep);
  return out;
}

std::string CharacterStream::finish() {
  return std::exchange(held_, {});
}

}  // namespace mt
