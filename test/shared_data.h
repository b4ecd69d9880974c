// Where tests find their data: copies under test/data, and the larger files of ../shared, which may
// be absent.
#pragma once

#include <sys/stat.h>
#include <unistd.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/tokenizer.h"

namespace mt::testing {

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw EnvironmentError("cannot read " + path);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void spill(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  if (!out.flush()) throw EnvironmentError("cannot write " + path);
}

inline std::string data_path(const std::string& name) {
  return std::string(MT_TEST_DATA) + "/" + name;
}

// A file of the shared folder ($MT_SHARED, or ../shared beside the source), if it is there.
inline std::optional<std::string> shared_path(const std::string& name) {
  const char* folder = std::getenv("MT_SHARED");
  const std::string path =
      (folder != nullptr ? std::string(folder) : std::string(MT_TEST_DATA) + "/../../../shared") +
      "/" + name;
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? std::optional(path) : std::nullopt;
}

inline std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream in(path, std::ios::binary);
  if (!in) throw EnvironmentError("cannot read " + path);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

inline std::string from_hex_bytes(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// A folder that goes away with the object.
class Scratch {
 public:
  Scratch() {
    std::string name = "scratch.XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw EnvironmentError("no scratch folder");
    char* real = ::realpath(name.c_str(), nullptr);
    path_ = real;
    std::free(real);
  }
  ~Scratch() { [[maybe_unused]] const int rc = std::system(("rm -rf '" + path_ + "'").c_str()); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// SHA-256 of bytes, by the system's sha256sum.
inline std::string sha256(const void* data, std::size_t bytes) {
  const Scratch scratch;
  spill(scratch / "x", std::string(static_cast<const char*>(data), bytes));
  FILE* pipe = ::popen(("sha256sum < " + (scratch / "x")).c_str(), "r");
  std::string out(64, ' ');
  const std::size_t got = std::fread(out.data(), 1, 64, pipe);
  ::pclose(pipe);
  if (got != 64) throw EnvironmentError("sha256sum does not run");
  return out;
}

inline std::string sha256_u16(const std::vector<std::int32_t>& ids) {
  std::vector<std::uint16_t> narrow(ids.begin(), ids.end());
  return sha256(narrow.data(), narrow.size() * 2);
}

inline TokenizerFiles gpt2_files() {
  return {slurp(data_path("tokenizer/gpt2/vocab.json")),
          slurp(data_path("tokenizer/gpt2/merges.txt"))};
}

// The smallest byte-level vocabulary: 256 bytes, then `extra` tokens, then <|endoftext|>.
inline TokenizerFiles byte_level_files(const std::vector<std::string>& extra = {},
                                       const std::string& merges = "#version: 0.2\n") {
  std::string vocab = "{";
  unsigned next = 0x100;
  for (unsigned b = 0; b < 256; ++b) {
    const bool itself = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    char text[16];
    std::snprintf(text, sizeof text, "\"\\u%04x\": ", itself ? b : next++);
    vocab += text + std::to_string(b) + ", ";
  }
  std::size_t id = 256;
  for (const std::string& token : extra)
    vocab += "\"" + token + "\": " + std::to_string(id++) + ", ";
  vocab += "\"<|endoftext|>\": " + std::to_string(id) + "}";
  return {vocab, merges};
}

}  // namespace mt::testing
