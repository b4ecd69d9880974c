// Lines of a file or of stdin, plain, zstd or gzip, in bounded memory. The kind is told by the
// first bytes, not by the name. A compressed stream that is cut, damaged or followed by something
// else is an error, never a short text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace mt {

class LineReader {
 public:
  // Bytes behind a line that may be read (what is in them means nothing).
  static constexpr std::size_t kPadding = 64;
  static constexpr std::uint64_t kLineLimit = std::uint64_t{1} << 30;

  // path "-" is stdin. Throws EnvironmentError if the file cannot be opened or is a directory.
  explicit LineReader(const std::string& path, std::uint64_t line_limit = kLineLimit);
  ~LineReader();
  LineReader(LineReader&&) noexcept;

  // The next line without its "\n", valid until the next call; false at the end. A last line
  // without "\n" is a line. Throws DataError for a damaged stream, a line over the limit, a zstd
  // window over 128 MiB, and at the end for a regular file whose size is no longer what it was when
  // it was opened; EnvironmentError if reading fails.
  [[nodiscard]] bool next(std::string_view& line);
  // Overwrites `text` with all that is left. Throws as next() does; DataError over the limit.
  void rest(std::string& text);

  [[nodiscard]] std::uint64_t line_number() const;  // of the latest line, from 1
  [[nodiscard]] const std::string& name() const;    // the path, or "stdin"
  // Bytes of the file as it is stored (of a compressed one: compressed) that were taken so far.
  [[nodiscard]] std::uint64_t stored_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mt
