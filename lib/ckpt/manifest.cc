#include "ckpt/manifest.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/log.h"

namespace mt {
namespace {

constexpr const char* kFormat = "mt-checkpoint";
constexpr std::int64_t kVersion = 1;
constexpr std::size_t kMostDims = 8;
constexpr std::size_t kMostBoxes = 65536;                   // of one tensor
constexpr std::size_t kMostCorners = std::size_t{1} << 20;  // of the boxes of one tensor
constexpr std::size_t kLongestName = 255;
constexpr std::string_view kHashKey = "\"manifest_xxh3_128\":\"";
constexpr std::size_t kHashDigits = 32;
constexpr std::string_view kHashEnd = "\"}\n";

// The last line, which holds the hash of all bytes before it.
std::string hash_line(std::string_view before) {
  return cat(kHashKey, to_hex(xxh3_128(before.data(), before.size())), kHashEnd);
}

// One member of an object: `"key":value`.
std::string member(const std::string& key, const Json& value) {
  return cat(json_line(key), ":", json_line(value));
}

Json to_json(const CheckpointLayout& layout) {
  return {{"tensor", layout.tensor},
          {"pipeline", layout.pipeline},
          {"data", layout.data},
          {"distributed_optimizer", layout.distributed_optimizer}};
}

Json to_json(const StoredTensor& tensor) {
  Json boxes = Json::array();
  for (const StoredBox& box : tensor.boxes) {
    boxes.push_back({{"file", box.file},
                     {"offset", box.offset},
                     {"extent", box.extent},
                     {"byte_offset", box.byte_offset},
                     {"bytes", box.bytes},
                     {"xxh3_128", to_hex(box.hash)}});
  }
  return {{"shape", tensor.shape},
          {"dtype", dtype_name(tensor.dtype)},
          {"kind", tensor.optimizer ? "optimizer" : "model"},
          {"digest", to_hex(tensor.digest)},
          {"boxes", boxes}};
}

// Lines of an object whose members are one line each.
template <typename Map, typename ToJson>
std::string lines(const Map& map, ToJson to_json) {
  std::string text = "{";
  for (const auto& [key, value] : map) {
    text += cat(text.size() > 1 ? ",\n" : "\n", member(key, to_json(value)));
  }
  return text + "\n}";
}

// ---- reading

const Json& at(const Json& object, const std::string& key, Json::value_t kind,
               const std::string& where) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end()) {
    throw DataError(cat(where, ": ", key, ": missing"));
  }
  if (found->type() != kind) {
    throw DataError(cat(where, ": ", key, ": expected another type, found ", found->type_name()));
  }
  return *found;
}

std::uint64_t count(const Json& object, const std::string& key, const std::string& where) {
  return static_cast<std::uint64_t>(json_count(object, key, where));
}

Shape read_shape(const Json& object, const std::string& key, const std::string& where) {
  const Json& list = at(object, key, Json::value_t::array, where);
  if (list.size() > kMostDims) {
    throw DataError(
        cat(where, ": ", key, ": expected at most ", kMostDims, " sizes, found ", list.size()));
  }
  Shape shape;
  for (const Json& size : list) {
    const bool fits = size.is_number_integer() &&
                      (!size.is_number_unsigned() ||
                       size.get<std::uint64_t>() <=
                           static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
    if (!fits || size.get<std::int64_t>() < 0) {
      throw DataError(cat(where, ": ", key, ": expected sizes, found ", json_line(list)));
    }
    shape.push_back(size.get<std::int64_t>());
  }
  return shape;
}

Digest128 read_hash(const Json& object, const std::string& key, const std::string& where) {
  return from_hex(json_string(object, key, where), cat(where, ": ", key));
}

DType read_dtype(const Json& object, const std::string& where) {
  const std::string name = json_string(object, "dtype", where);
  for (const DType dtype :
       {DType::kF32, DType::kBf16, DType::kF16, DType::kI32, DType::kU16, DType::kU8}) {
    if (name == dtype_name(dtype)) {
      return dtype;
    }
  }
  throw DataError(cat(where, ": dtype: unknown type \"", printable(name), "\""));
}

StoredBox read_box(const Json& json, const StoredTensor& tensor, const std::string& where) {
  StoredBox box;
  box.file = json_string(json, "file", where);
  box.offset = read_shape(json, "offset", where);
  box.extent = read_shape(json, "extent", where);
  box.byte_offset = count(json, "byte_offset", where);
  box.bytes = count(json, "bytes", where);
  box.hash = read_hash(json, "xxh3_128", where);
  bool inside =
      box.offset.size() == tensor.shape.size() && box.extent.size() == tensor.shape.size();
  for (std::size_t d = 0; inside && d < tensor.shape.size(); ++d) {
    inside = box.extent[d] <= tensor.shape[d] && box.offset[d] <= tensor.shape[d] - box.extent[d];
  }
  if (!inside) {
    throw DataError(cat(where, ": box at ", shape_text(box.offset), " of extent ",
                        shape_text(box.extent), " does not lie in ", shape_text(tensor.shape)));
  }
  if (const std::uint64_t bytes = checked_bytes(box.extent, tensor.dtype, where);
      bytes != box.bytes) {
    throw DataError(cat(where, ": bytes: expected ", bytes, ", found ", box.bytes));
  }
  return box;
}

bool overlap(const StoredBox& a, const StoredBox& b) {
  for (std::size_t d = 0; d < a.offset.size(); ++d) {
    if (a.offset[d] >= b.offset[d] + b.extent[d] || b.offset[d] >= a.offset[d] + a.extent[d]) {
      return false;
    }
  }
  return true;
}

// A corner of a box, and its sign: that of the lowest is 1 and changes along each edge.
struct Corner {
  std::array<std::int64_t, kMostDims> at{};
  int sign = 1;
};

void add_corners(const Shape& offset, const Shape& extent, int sign, std::vector<Corner>& out) {
  for (unsigned upper = 0; upper < 1U << offset.size(); ++upper) {
    Corner corner{{}, std::popcount(upper) % 2 == 0 ? sign : -sign};
    for (std::size_t d = 0; d < offset.size(); ++d) {
      corner.at[d] = offset[d] + ((upper >> d & 1U) != 0 ? extent[d] : 0);
    }
    out.push_back(corner);
  }
}

// True if each element lies in exactly one box. How many boxes an element lies in is the sum of the
// signed corners below it in every dimension, so two sets of boxes count alike just if their
// corners do, wherever they are. n log n, whatever the boxes are.
bool corners_cancel(const Shape& shape, const std::vector<const StoredBox*>& boxes) {
  std::vector<Corner> corners;
  corners.reserve((boxes.size() + 1) << shape.size());
  add_corners(Shape(shape.size(), 0), shape, -1, corners);
  for (const StoredBox* box : boxes) add_corners(box->offset, box->extent, 1, corners);
  std::sort(corners.begin(), corners.end(),
            [](const Corner& a, const Corner& b) { return a.at < b.at; });
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < corners.size(); ++i) {
    sum += corners[i].sign;
    const bool last = i + 1 == corners.size() || corners[i + 1].at != corners[i].at;
    if (last && sum != 0) return false;
    if (last) sum = 0;
  }
  return true;
}

// Names two boxes that overlap if they are soon found.
[[noreturn]] void refuse_overlap(const std::vector<const StoredBox*>& boxes,
                                 const std::string& where) {
  constexpr std::size_t kMostTries = std::size_t{1} << 22;
  std::size_t tries = 0;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = i + 1; j < boxes.size() && tries < kMostTries; ++j, ++tries) {
      if (overlap(*boxes[i], *boxes[j])) {
        throw DataError(cat(where, ": the boxes at ", shape_text(boxes[i]->offset), " and ",
                            shape_text(boxes[j]->offset), " overlap"));
      }
    }
  }
  throw DataError(cat(where, ": some of its ", boxes.size(), " boxes overlap"));
}

// Each element of the tensor lies in exactly one box.
void check_cover(const StoredTensor& tensor, const std::string& where) {
  const std::uint64_t bytes = checked_bytes(tensor.shape, tensor.dtype, where);
  std::uint64_t covered = 0;
  for (const StoredBox& box : tensor.boxes) {
    if (__builtin_add_overflow(covered, box.bytes, &covered)) {
      throw DataError(cat(where, ": its boxes hold too many bytes"));
    }
  }
  if (covered != bytes) {
    throw DataError(cat(where, ": its boxes hold ", covered, " bytes, expected ", bytes));
  }
  std::vector<const StoredBox*> boxes;
  for (const StoredBox& box : tensor.boxes) {
    if (box.bytes > 0) boxes.push_back(&box);
  }
  if (boxes.size() > kMostCorners >> tensor.shape.size()) {
    throw DataError(cat(where, ": expected at most ", kMostCorners >> tensor.shape.size(),
                        " boxes of ", tensor.shape.size(), " dimensions, found ", boxes.size()));
  }
  if (boxes.size() > 1 && !corners_cancel(tensor.shape, boxes)) refuse_overlap(boxes, where);
}

CheckpointLayout read_layout(const Json& json, const std::string& where) {
  CheckpointLayout layout;
  const auto size = [&](const char* key) {
    const std::int64_t found = json_int(json, key, where);
    if (found < 1) throw DataError(cat(where, ": ", key, ": expected 1 or more, found ", found));
    return found;
  };
  layout.tensor = size("tensor");
  layout.pipeline = size("pipeline");
  layout.data = size("data");
  layout.distributed_optimizer = json_bool(json, "distributed_optimizer", where);
  return layout;
}

StoredTensor read_tensor(const Json& json, const std::string& where, Manifest::Scope scope) {
  StoredTensor tensor;
  tensor.shape = read_shape(json, "shape", where);
  tensor.dtype = read_dtype(json, where);
  tensor.digest = read_hash(json, "digest", where);
  const std::string kind = json_string(json, "kind", where);
  if (kind != "model" && kind != "optimizer") {
    throw DataError(
        cat(where, ": kind: expected model or optimizer, found \"", printable(kind), "\""));
  }
  tensor.optimizer = kind == "optimizer";
  const Json& boxes = at(json, "boxes", Json::value_t::array, where);
  if (boxes.size() > kMostBoxes) {
    throw DataError(cat(where, ": expected at most ", kMostBoxes, " boxes, found ", boxes.size()));
  }
  for (const Json& box : boxes) {
    tensor.boxes.push_back(read_box(box, tensor, where));
  }
  if (scope == Manifest::Scope::kWhole) check_cover(tensor, where);
  return tensor;
}

// Boxes lie inside files that the manifest lists, without overlap.
void check_files(const Manifest& manifest, const std::string& where) {
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const StoredBox& box : tensor.boxes) {
      const auto file = manifest.files.find(box.file);
      if (file == manifest.files.end()) {
        throw DataError(cat(where, ": tensor ", name, ": its file \"", printable(box.file),
                            "\" is not among the files"));
      }
      if (box.byte_offset > file->second.bytes ||
          box.bytes > file->second.bytes - box.byte_offset) {
        throw DataError(cat(where, ": tensor ", name, ": ", box.bytes, " bytes at ",
                            box.byte_offset, " do not lie in ", box.file, " of ",
                            file->second.bytes, " bytes"));
      }
    }
  }
  for (const auto& [file, boxes] : manifest.boxes_by_file()) {
    std::uint64_t end = 0;
    for (const StoredBox* box : boxes) {
      if (box->byte_offset < end) {
        throw DataError(cat(where, ": ", file, ": boxes overlap at byte ", box->byte_offset));
      }
      end = box->byte_offset + box->bytes;
    }
  }
}

// The text before the last line, whose hash is right.
std::string_view check_own_hash(std::string_view text, const std::string& where) {
  const std::size_t line = kHashKey.size() + kHashDigits + kHashEnd.size();
  if (text.size() < line) {
    throw DataError(cat(where, ": truncated: ", text.size(), " bytes"));
  }
  const std::string_view before = text.substr(0, text.size() - line);
  const std::string_view last = text.substr(before.size());
  if (!last.starts_with(kHashKey) || !last.ends_with(kHashEnd)) {
    throw DataError(
        cat(where, ": damaged or not a manifest: expected a last line ", kHashKey, "...\"}"));
  }
  if (const std::string expected = hash_line(before); last != expected) {
    throw DataError(cat(where, ": damaged: its hash is ", expected.substr(kHashKey.size(), 32),
                        ", its last line says ",
                        printable(std::string(last.substr(kHashKey.size(), kHashDigits)))));
  }
  return before;
}

}  // namespace

void check_file_name(const std::string& name, const std::string& where) {
  const std::size_t slash = name.find('/');
  const std::string folder = slash == std::string::npos ? "" : name.substr(0, slash);
  const std::string file = slash == std::string::npos ? name : name.substr(slash + 1);
  const auto plain = [](const std::string& part) {
    return !part.empty() && part.size() <= kLongestName && part.front() != '.' &&
           std::all_of(part.begin(), part.end(),
                       [](char c) { return c > ' ' && c < '\x7f' && c != '/' && c != '\\'; });
  };
  if (!plain(file) || (slash != std::string::npos && !plain(folder)) || name == kManifestName) {
    throw DataError(
        cat(where, ": \"", printable(name), "\" is no name for a file of a checkpoint"));
  }
}

void check_tensor_name(const std::string& name, const std::string& where) {
  const bool plain = !name.empty() && name.size() <= kLongestName && name.front() != '.' &&
                     std::all_of(name.begin(), name.end(), [](char c) {
                       return c > ' ' && c < '\x7f' && c != '/' && c != '\\' && c != '@';
                     });
  if (!plain) {
    throw DataError(cat(where, ": \"", printable(name), "\" is no name for a tensor"));
  }
}

std::uint64_t checked_bytes(const Shape& shape, DType dtype, const std::string& where) {
  std::int64_t bytes = static_cast<std::int64_t>(dtype_size(dtype));
  for (const std::int64_t size : shape) {
    // The product is taken as if no size were zero, so that strides are safe too.
    if (size < 0 || __builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes)) {
      throw DataError(cat(where, ": shape ", shape_text(shape), " is too large"));
    }
  }
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  return empty ? 0 : static_cast<std::uint64_t>(bytes);
}

std::string Manifest::text() const {
  std::string text = "{" + member("format", kFormat) + ",\n";
  text += member("version", kVersion) + ",\n";
  text += member("iteration", iteration) + ",\n";
  text += member("layout", to_json(layout)) + ",\n";
  text += member("model", model) + ",\n";
  text += member("training", training) + ",\n";
  text += member("tokenizer_digest", tokenizer_digest) + ",\n";
  text += "\"tensors\":";
  text += lines(tensors, [](const StoredTensor& tensor) { return to_json(tensor); });
  text += ",\n\"files\":";
  text += lines(files, [](const StoredFile& file) {
    return Json{{"bytes", file.bytes}, {"xxh3_128", to_hex(file.hash)}};
  });
  text += ",\n";
  return text + hash_line(text);
}

Manifest Manifest::parse(const std::string& text, const std::string& where, Scope scope) {
  check_own_hash(text, where);
  const Json json = parse_json(text, where);
  Manifest manifest;
  if (const std::string format = json_string(json, "format", where); format != kFormat) {
    throw DataError(
        cat(where, ": format: expected ", kFormat, ", found \"", printable(format), "\""));
  }
  if (const std::int64_t version = json_int(json, "version", where); version != kVersion) {
    throw DataError(cat(where, ": version: expected ", kVersion, ", found ", version));
  }
  manifest.iteration = json_count(json, "iteration", where);
  if (const auto layout = json.find("layout"); layout != json.end()) {
    manifest.layout = read_layout(*layout, cat(where, ": layout"));
  }
  manifest.model = at(json, "model", Json::value_t::object, where);
  if (const auto training = json.find("training");
      training == json.end() || !(training->is_null() || training->is_object())) {
    throw DataError(cat(where, ": training: expected an object or null"));
  } else {
    manifest.training = *training;
  }
  manifest.tokenizer_digest = json_string(json, "tokenizer_digest", where);
  if (!manifest.tokenizer_digest.empty()) {
    static_cast<void>(from_hex(manifest.tokenizer_digest, cat(where, ": tokenizer_digest")));
  }
  for (const auto& [name, file] : at(json, "files", Json::value_t::object, where).items()) {
    check_file_name(name, cat(where, ": files"));
    const std::string here = cat(where, ": files: ", name);
    manifest.files[name] = {count(file, "bytes", here), read_hash(file, "xxh3_128", here)};
  }
  for (const auto& [name, tensor] : at(json, "tensors", Json::value_t::object, where).items()) {
    check_tensor_name(name, cat(where, ": tensors"));
    manifest.tensors[name] = read_tensor(tensor, cat(where, ": tensor ", name), scope);
  }
  check_files(manifest, where);
  return manifest;
}

void Manifest::merge(Manifest part) {
  for (auto& [name, tensor] : part.tensors) {
    const auto [found, is_new] = tensors.try_emplace(name, tensor);
    if (is_new) continue;
    StoredTensor& mine = found->second;
    MT_ASSERT(mine.shape == tensor.shape && mine.dtype == tensor.dtype &&
              mine.optimizer == tensor.optimizer);
    mine.digest = mine.digest + tensor.digest;
    mine.boxes.insert(mine.boxes.end(), tensor.boxes.begin(), tensor.boxes.end());
  }
  for (const auto& [name, file] : part.files) {
    const bool is_new = files.try_emplace(name, file).second;
    MT_ASSERT(is_new);
  }
}

std::map<std::string, std::vector<const StoredBox*>> Manifest::boxes_by_file() const {
  std::map<std::string, std::vector<const StoredBox*>> files;
  for (const auto& [name, tensor] : tensors) {
    for (const StoredBox& box : tensor.boxes) {
      if (box.bytes > 0) {
        files[box.file].push_back(&box);
      }
    }
  }
  for (auto& [name, boxes] : files) {
    std::sort(boxes.begin(), boxes.end(),
              [](const auto* a, const auto* b) { return a->byte_offset < b->byte_offset; });
  }
  return files;
}

}  // namespace mt
