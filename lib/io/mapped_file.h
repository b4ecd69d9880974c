// A file mapped for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace mt {

class MappedFile {
 public:
  // A regular file of at least one byte. Throws EnvironmentError, DataError (empty).
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] const std::byte* data() const { return static_cast<const std::byte*>(data_); }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  void* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// True if a regular file has that name, maybe by way of links; false if nothing has or another
// kind. Throws EnvironmentError where that cannot be found out.
[[nodiscard]] bool is_file(const std::string& path);

}  // namespace mt
