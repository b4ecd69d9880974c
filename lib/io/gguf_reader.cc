#include "io/gguf_reader.h"

#include <array>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "base/commit.h"
#include "base/error.h"
#include "base/log.h"

namespace mt {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint32_t kVersion = 3, kMostDimensions = 4;
constexpr std::uint64_t kDefaultAlignment = 32, kMostAlignment = std::uint64_t{1} << 20;
constexpr std::uint64_t kLongestName = 64;  // of a tensor
constexpr std::uint32_t kU32 = 4, kBool = 7, kText = 8, kArray = 9;
// Bytes of a value by its type; 0: text and arrays.
constexpr std::array<std::uint64_t, 13> kValueBytes{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr std::uint64_t kLeastKey = 8 + 1 + 4 + 1, kLeastTensor = 8 + 1 + 4 + 8 + 4 + 8;

class Cursor {
 public:
  Cursor(const MappedFile& file, std::string where) : file_(file), where_(std::move(where)) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(cat(where_, ": byte ", at_, ": ", what));
  }
  [[nodiscard]] std::uint64_t at() const { return at_; }
  [[nodiscard]] std::uint64_t left() const { return file_.bytes() - at_; }

  const std::byte* take(std::uint64_t bytes) {
    if (bytes > left()) fail(cat("truncated: ", bytes, " bytes expected, ", left(), " are left"));
    const std::byte* const here = file_.data() + at_;
    at_ += bytes;
    return here;
  }
  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  std::string text() {
    const auto bytes = number<std::uint64_t>();
    return {reinterpret_cast<const char*>(take(bytes)), bytes};
  }
  // A number of things that take at least so many bytes each.
  std::uint64_t count(const char* what, std::uint64_t least) {
    const auto value = number<std::uint64_t>();
    if (value > left() / least) fail(cat(value, " ", what, " do not fit into the file"));
    return value;
  }

 private:
  const MappedFile& file_;
  std::string where_;
  std::uint64_t at_ = 0;
};

std::uint64_t value_bytes(Cursor& cursor, std::uint32_t type, const std::string& key) {
  if (type >= kValueBytes.size()) {
    cursor.fail(cat("key ", printable(key), ": type ", type, " is unknown"));
  }
  return kValueBytes.at(type);
}

void skip_array(Cursor& cursor, const std::string& key) {
  const auto type = cursor.number<std::uint32_t>();
  const std::uint64_t bytes = value_bytes(cursor, type, key);
  if (type == kArray) cursor.fail(cat("key ", printable(key), ": an array of arrays"));
  const std::uint64_t count = cursor.count("elements", type == kText ? 8 : bytes);
  if (type != kText) {
    cursor.take(count * bytes);
    return;
  }
  for (std::uint64_t i = 0; i < count; ++i) cursor.take(cursor.number<std::uint64_t>());
}

DType type_of(Cursor& cursor, std::uint32_t code, const std::string& name) {
  switch (code) {
    case 0:
      return DType::kF32;
    case 1:
      return DType::kF16;
    case 30:
      return DType::kBf16;
    default:
      cursor.fail(cat("tensor ", printable(name), ": type ", code,
                      ", expected 0 (f32), 1 (f16) or 30 (bf16): others are not read"));
  }
}

struct Entry {
  std::string name;
  GgufTensor tensor;
  std::uint64_t offset = 0, bytes = 0;
};

Entry read_entry(Cursor& cursor) {
  Entry entry;
  entry.name = cursor.text();
  if (entry.name.empty() || entry.name.size() > kLongestName) {
    cursor.fail(
        cat("a tensor's name of ", entry.name.size(), " bytes, expected 1 to ", kLongestName));
  }
  const auto dimensions = cursor.number<std::uint32_t>();
  if (dimensions < 1 || dimensions > kMostDimensions) {
    cursor.fail(cat("tensor ", printable(entry.name), ": ", dimensions,
                    " dimensions, expected 1 to ", kMostDimensions));
  }
  unsigned __int128 elements = 1;
  for (std::uint32_t d = 0; d < dimensions; ++d) {
    const auto size = cursor.number<std::uint64_t>();
    elements *= size;
    if (size == 0 || size >> 62U != 0 || elements >> 60U != 0) {
      cursor.fail(cat("tensor ", printable(entry.name), ": a dimension of ", size));
    }
    entry.tensor.shape.insert(entry.tensor.shape.begin(), static_cast<std::int64_t>(size));
  }
  entry.tensor.type = type_of(cursor, cursor.number<std::uint32_t>(), entry.name);
  entry.offset = cursor.number<std::uint64_t>();
  entry.bytes = static_cast<std::uint64_t>(elements) * dtype_size(entry.tensor.type);
  return entry;
}

}  // namespace

GgufReader::GgufReader(const std::string& path) : file_(path) {
  const std::string where = printable(path);
  Cursor cursor(file_, where);
  if (std::memcmp(cursor.take(kMagic.size()), kMagic.data(), kMagic.size()) != 0) {
    throw DataError(cat(where, ": byte 0: the magic GGUF is not there"));
  }
  if (const auto version = cursor.number<std::uint32_t>(); version != kVersion) {
    cursor.fail(cat("version ", version, ", expected ", kVersion));
  }
  const std::uint64_t count = cursor.count("tensors", kLeastTensor);
  const std::uint64_t keys = cursor.count("keys", kLeastKey);
  std::uint64_t alignment = kDefaultAlignment;
  std::set<std::string> known;
  for (std::uint64_t i = 0; i < keys; ++i) {
    const std::string key = cursor.text();
    if (!known.insert(key).second) cursor.fail(cat("key ", printable(key), " is there twice"));
    const auto type = cursor.number<std::uint32_t>();
    const std::uint64_t bytes = value_bytes(cursor, type, key);
    if (key == "general.alignment") {
      if (type != kU32) cursor.fail("general.alignment: expected a number of 32 bits");
      alignment = cursor.number<std::uint32_t>();
      if (alignment == 0 || alignment % 8 != 0 || alignment > kMostAlignment) {
        cursor.fail(cat("general.alignment: ", alignment, ", expected a multiple of 8"));
      }
    } else if (type == kText) {
      texts_[key] = cursor.text();
    } else if (type == kArray) {
      skip_array(cursor, key);
    } else {
      const std::byte* const value = cursor.take(bytes);
      if (type == kBool && std::to_integer<unsigned>(*value) > 1) {
        cursor.fail(cat("key ", printable(key), ": no truth value"));
      }
    }
  }
  std::vector<Entry> entries;
  for (std::uint64_t i = 0; i < count; ++i) entries.push_back(read_entry(cursor));
  const std::uint64_t begin = (cursor.at() + alignment - 1) / alignment * alignment;
  std::map<std::uint64_t, const Entry*> places;
  for (Entry& entry : entries) {
    const std::string what = cat(where, ": tensor ", printable(entry.name), ": ");
    const std::uint64_t room = file_.bytes() < begin ? 0 : file_.bytes() - begin;
    if (entry.offset > room || entry.bytes > room - entry.offset) {
      throw DataError(cat(what, "bytes ", entry.offset, " to ", entry.offset, " + ", entry.bytes,
                          " of ", room, " bytes of data"));
    }
    if (entry.offset % alignment != 0) {
      throw DataError(cat(what, "begins at ", entry.offset, ", no multiple of ", alignment));
    }
    entry.tensor.data = file_.data() + begin + entry.offset;
    if (!places.emplace(entry.offset, &entry).second) {
      throw DataError(cat(what, "begins where another does"));
    }
    if (!tensors_.emplace(entry.name, entry.tensor).second) {
      throw DataError(cat(what, "is there twice"));
    }
  }
  std::uint64_t end = 0;
  for (const auto& [offset, entry] : places) {
    if (offset < end) {
      throw DataError(cat(where, ": tensor ", printable(entry->name), ": overlaps another"));
    }
    end = offset + entry->bytes;
  }
}

bool is_gguf(const std::string& path) {
  if (!is_file(path)) return false;
  const FileDescriptor fd = open_regular(path);
  std::array<char, kMagic.size()> magic{};
  if (file_size(fd.get(), path) < magic.size()) return false;
  read_fully_at(fd.get(), magic.data(), magic.size(), 0, path);
  return std::string_view(magic.data(), magic.size()) == kMagic;
}

}  // namespace mt
