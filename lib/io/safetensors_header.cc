#include "io/safetensors_header.h"

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

namespace mt {
namespace {

constexpr std::uint64_t kLengthBytes = 8, kAlignment = 8;

const char* type_name(DType type) {
  switch (type) {
    case DType::kF32:
      return "F32";
    case DType::kBf16:
      return "BF16";
    case DType::kF16:
      return "F16";
    default:
      throw UsageError(cat("safetensors: ", dtype_name(type), ": expected f32, bf16 or f16"));
  }
}

std::uint64_t bytes_of(const SafetensorsEntry& entry) {
  unsigned __int128 bytes = dtype_size(entry.type);
  for (const std::int64_t size : entry.shape) {
    bytes *= static_cast<std::uint64_t>(size);
    if (bytes >> 62U != 0) throw DataError(cat("tensor ", entry.name, ": its size overflows"));
  }
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace

SafetensorsHeader safetensors_header(const std::vector<SafetensorsEntry>& entries) {
  SafetensorsHeader out;
  Json header = Json::object();
  header["__metadata__"] = {{"format", "pt"}};
  std::uint64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    const std::uint64_t begin = end;
    end += bytes_of(entry);
    header[entry.name] = {
        {"dtype", type_name(entry.type)}, {"shape", entry.shape}, {"data_offsets", {begin, end}}};
    out.offsets.push_back(begin);
  }
  std::string text = json_line(header);
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  for (std::uint64_t i = 0; i < kLengthBytes; ++i) {
    out.bytes.push_back(static_cast<char>(text.size() >> (8 * i) & 0xFFU));
  }
  out.bytes += text;
  for (std::uint64_t& offset : out.offsets) offset += out.bytes.size();
  out.size = out.bytes.size() + end;
  return out;
}

}  // namespace mt
