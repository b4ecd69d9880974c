// A number that lies in bytes at any alignment, in this machine's order.
#pragma once

#include <cstring>

namespace mt {

template <typename T>
[[nodiscard]] T load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

}  // namespace mt
