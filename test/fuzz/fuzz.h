// What the fuzz targets share. A target gives a parser any bytes: it takes them or throws
// DataError; another exception, a fault that a sanitizer sees, or memory beyond the limit is a
// finding.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"

namespace mt {

inline std::string_view bytes_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

template <typename Parse>
void parse_hostile(const Parse& parse) {
  try {
    parse();
  } catch (const DataError&) {
  }
}

// A file in memory, for parsers that take a path; one for all inputs of a process.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("fuzz", 0)) {}
  void fill(std::string_view content) const {
    const auto size = static_cast<ssize_t>(content.size());
    if (fd_ < 0 || ::ftruncate(fd_, 0) != 0 ||
        ::pwrite(fd_, content.data(), content.size(), 0) != size) {
      std::abort();
    }
  }
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace mt
