// A complaint about our options, in the words of another format.
#pragma once

#include <cstring>
#include <span>
#include <string>

namespace mt {

struct Renamed {
  const char *ours, *theirs;
};

[[nodiscard]] inline std::string renamed(std::string message, std::span<const Renamed> words) {
  for (const auto& [ours, theirs] : words) {
    for (std::size_t at = 0; (at = message.find(ours, at)) != std::string::npos;) {
      message.replace(at, std::strlen(ours), theirs);
    }
  }
  return message;
}

}  // namespace mt
