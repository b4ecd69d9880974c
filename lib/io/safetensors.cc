#include "io/safetensors.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "base/commit.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/small_floats.h"

namespace mt {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kLongestHeader = 100'000'000;
constexpr std::uint64_t kLongestIndex = 100'000'000;
constexpr std::size_t kMostDims = 8;
constexpr std::size_t kMostFiles = 4096;
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

struct ForeignType {
  std::string_view name;
  std::uint64_t bits;
};
constexpr std::array<ForeignType, 17> kTypes = {{{"BOOL", 8},
                                                 {"U8", 8},
                                                 {"I8", 8},
                                                 {"F8_E5M2", 8},
                                                 {"F8_E4M3", 8},
                                                 {"F8_E8M0", 8},
                                                 {"I16", 16},
                                                 {"U16", 16},
                                                 {"F16", 16},
                                                 {"BF16", 16},
                                                 {"I32", 32},
                                                 {"U32", 32},
                                                 {"F32", 32},
                                                 {"F64", 64},
                                                 {"I64", 64},
                                                 {"U64", 64},
                                                 {"C64", 64}}};

// A file mapped for reading.
class Map {
 public:
  Map() = default;
  explicit Map(const std::string& path) {
    const FileDescriptor fd = open_regular(path);
    size_ = file_size(fd.get(), path);
    if (size_ == 0) {
      return;
    }
    void* const at = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (at == MAP_FAILED) {
      throw EnvironmentError(cat("cannot map ", path, ": ", std::strerror(errno)));
    }
    data_ = static_cast<const unsigned char*>(at);
  }
  ~Map() {
    if (data_ != nullptr) {
      ::munmap(const_cast<unsigned char*>(data_), size_);
    }
  }
  Map(Map&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Map& operator=(Map&&) = delete;

  [[nodiscard]] const unsigned char* data() const { return data_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }

 private:
  const unsigned char* data_ = nullptr;
  std::uint64_t size_ = 0;
};

// A list of counts, each below 2^63.
std::vector<std::uint64_t> read_counts(const Json& object, const std::string& key,
                                       const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array() || found->size() > kMostDims) {
    throw DataError(cat(where, ": ", key, ": expected a list of at most ", kMostDims, " counts"));
  }
  std::vector<std::uint64_t> counts;
  for (const Json& count : *found) {
    if (!count.is_number_unsigned() ||
        count.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      throw DataError(cat(where, ": ", key, ": expected counts, found ", json_line(count)));
    }
    counts.push_back(count.get<std::uint64_t>());
  }
  return counts;
}

std::uint64_t type_bits(const std::string& name, const std::string& where) {
  for (const ForeignType& type : kTypes) {
    if (type.name == name) {
      return type.bits;
    }
  }
  throw DataError(cat(where, ": dtype: unknown type \"", printable(name), "\""));
}

ForeignTensor read_entry(const Json& json, std::uint64_t data_bytes, const std::string& where) {
  ForeignTensor tensor;
  tensor.type = json_string(json, "dtype", where);
  std::uint64_t bytes = type_bits(tensor.type, where) / 8;
  bool empty = false;
  for (const std::uint64_t size : read_counts(json, "shape", where)) {
    // The product is taken as if no size were zero, so that strides are safe too.
    if (__builtin_mul_overflow(bytes, std::max<std::uint64_t>(size, 1), &bytes) ||
        bytes > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      throw DataError(cat(where, ": its shape is too large"));
    }
    empty = empty || size == 0;
    tensor.shape.push_back(static_cast<std::int64_t>(size));
  }
  tensor.bytes = empty ? 0 : bytes;
  const std::vector<std::uint64_t> offsets = read_counts(json, "data_offsets", where);
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes) {
    throw DataError(cat(where, ": data_offsets: expected two offsets in order within ", data_bytes,
                        " bytes of data, found ", json_line(json["data_offsets"])));
  }
  if (offsets[1] - offsets[0] != tensor.bytes) {
    throw DataError(cat(where, ": ", tensor.type, " ", shape_text(tensor.shape), " needs ",
                        tensor.bytes, " bytes, its data_offsets hold ", offsets[1] - offsets[0]));
  }
  tensor.offset = offsets[0];
  return tensor;
}

// The tensors follow each other without overlap or hole up to the end of the file.
void check_cover(const std::map<std::string, ForeignTensor>& tensors, std::uint64_t data_bytes,
                 const std::string& path) {
  std::vector<std::pair<const std::string*, const ForeignTensor*>> order;
  for (const auto& [name, tensor] : tensors) {
    order.emplace_back(&name, &tensor);
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->offset, a.second->bytes) <
           std::pair(b.second->offset, b.second->bytes);
  });
  std::uint64_t end = 0;
  for (const auto& [name, tensor] : order) {
    if (tensor->offset != end) {
      throw DataError(cat(path, ": tensor ", printable(*name), ": begins at byte ", tensor->offset,
                          " of the data, expected ", end,
                          tensor->offset < end ? " (overlap)" : " (hole)"));
    }
    end += tensor->bytes;
  }
  if (end != data_bytes) {
    throw DataError(
        cat(path, ": the tensors hold ", end, " bytes, the file has ", data_bytes, " of data"));
  }
}

// The tensors of one file; offsets from the beginning of the file.
std::map<std::string, ForeignTensor> read_header(const Map& map, const std::string& path) {
  if (map.size() < kLengthBytes) {
    throw DataError(cat(path, ": not a safetensors file: ", map.size(), " bytes"));
  }
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) {
    length = length << 8 | map.data()[i];
  }
  if (length > kLongestHeader || length > map.size() - kLengthBytes) {
    throw DataError(cat(path, ": not a safetensors file, or truncated: its header of ", length,
                        " bytes does not fit into ", map.size() - kLengthBytes, " bytes (limit ",
                        kLongestHeader, ")"));
  }
  const std::string_view header(reinterpret_cast<const char*>(map.data()) + kLengthBytes, length);
  if (header.empty() || header.front() != '{') {
    throw DataError(cat(path, ": header: expected a JSON object"));
  }
  const Json json = parse_json(header, path + ": header");
  const std::uint64_t data = kLengthBytes + length;
  std::map<std::string, ForeignTensor> tensors;
  for (const auto& [name, entry] : json.items()) {
    if (name != "__metadata__") {
      tensors[name] = read_entry(entry, map.size() - data, cat(path, ": tensor ", printable(name)));
    }
  }
  check_cover(tensors, map.size() - data, path);
  for (auto& [name, tensor] : tensors) {
    tensor.offset += data;
  }
  return tensors;
}

// A name in the directory itself, and not a hidden one.
void check_plain(const std::string& name, const std::string& where) {
  if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos || !name.ends_with(".safetensors")) {
    throw DataError(
        cat(where, ": \"", printable(name), "\": expected the plain name of a .safetensors file"));
  }
}

// Tensor -> file name.
std::map<std::string, std::string> read_index(const std::string& path) {
  const Json json = parse_json(read_file(path, kLongestIndex), path);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object()) {
    throw DataError(cat(path, ": weight_map: expected an object"));
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string()) {
      throw DataError(cat(path, ": tensor ", printable(name), ": expected a file name"));
    }
    check_plain(file.get<std::string>(), path);
    files[name] = file.get<std::string>();
  }
  return files;
}

}  // namespace

struct SafetensorsReader::State {
  std::vector<std::string> files;
  std::vector<Map> maps;
  std::map<std::string, ForeignTensor> tensors;

  // Maps the file and returns its tensors.
  std::map<std::string, ForeignTensor> open(const std::string& path) {
    maps.emplace_back(path);
    files.push_back(path);
    auto found = read_header(maps.back(), path);
    for (auto& [name, tensor] : found) {
      tensor.file = files.size() - 1;
    }
    return found;
  }
  void open_indexed(const std::string& directory);
};

void SafetensorsReader::State::open_indexed(const std::string& directory) {
  const std::string index = directory + "/" + kIndexFile;
  std::map<std::string, std::map<std::string, ForeignTensor>> opened;
  for (const auto& [name, file] : read_index(index)) {
    if (!opened.contains(file)) {
      if (opened.size() >= kMostFiles) {
        throw DataError(cat(index, ": expected at most ", kMostFiles, " files"));
      }
      opened[file] = open(directory + "/" + file);
    }
    auto& inside = opened[file];
    const auto found = inside.find(name);
    if (found == inside.end()) {
      throw DataError(cat(index, ": tensor ", printable(name), ": ", file, " has none"));
    }
    tensors[name] = found->second;
    inside.erase(found);
  }
  for (const auto& [file, rest] : opened) {
    if (!rest.empty()) {
      throw DataError(cat(index, ": tensor ", printable(rest.begin()->first), " of ", file,
                          " is not listed there"));
    }
  }
}

SafetensorsReader::SafetensorsReader(const std::string& path) : state_(std::make_unique<State>()) {
  const std::string single = path + "/" + kSingleFile;
  if (exists(single)) {
    state_->tensors = state_->open(single);
  } else if (exists(path + "/" + kIndexFile)) {
    state_->open_indexed(path);
  } else {
    state_->tensors = state_->open(path);
  }
}

SafetensorsReader::~SafetensorsReader() = default;
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;

const std::map<std::string, ForeignTensor>& SafetensorsReader::tensors() const {
  return state_->tensors;
}

const std::vector<std::string>& SafetensorsReader::files() const {
  return state_->files;
}

const ForeignTensor& SafetensorsReader::info(const std::string& name) const {
  const auto found = state_->tensors.find(name);
  if (found == state_->tensors.end()) {
    throw DataError(cat(state_->files.empty() ? "" : state_->files.front(), ": tensor ",
                        printable(name), ": there is none"));
  }
  return found->second;
}

const unsigned char* SafetensorsReader::data(const std::string& name) const {
  const ForeignTensor& tensor = info(name);
  return state_->maps[tensor.file].data() + tensor.offset;
}

void SafetensorsReader::read_f32(const std::string& name, std::int64_t first, std::int64_t rows,
                                 float* out) const {
  const ForeignTensor& tensor = info(name);
  const std::int64_t all_rows = tensor.shape.empty() ? 1 : tensor.shape[0];
  MT_ASSERT(first >= 0 && rows >= 0 && first <= all_rows - rows);
  const std::uint64_t element = type_bits(tensor.type, name) / 8;
  const std::uint64_t row_bytes =
      all_rows == 0 ? 0 : tensor.bytes / static_cast<std::uint64_t>(all_rows);
  const unsigned char* const from = data(name) + static_cast<std::uint64_t>(first) * row_bytes;
  const std::uint64_t count = static_cast<std::uint64_t>(rows) * row_bytes / element;
  if (tensor.type == "F64") {
    for (std::uint64_t i = 0; i < count; ++i) {
      double value = 0;
      std::memcpy(&value, from + i * sizeof(value), sizeof(value));
      out[i] = static_cast<float>(value);
    }
  } else if (tensor.type == "F32" || tensor.type == "BF16" || tensor.type == "F16") {
    const DType stored = tensor.type == "F32"    ? DType::kF32
                         : tensor.type == "BF16" ? DType::kBf16
                                                 : DType::kF16;
    convert_floats(from, stored, out, DType::kF32, count);
  } else {
    throw DataError(cat(state_->files[tensor.file], ": tensor ", printable(name),
                        ": expected F32, BF16, F16 or F64, found ", tensor.type));
  }
}

std::vector<float> SafetensorsReader::read_f32(const std::string& name) const {
  const ForeignTensor& tensor = info(name);
  std::vector<float> values(tensor.bytes / (type_bits(tensor.type, name) / 8));
  read_f32(name, 0, tensor.shape.empty() ? 1 : tensor.shape[0], values.data());
  return values;
}

}  // namespace mt
