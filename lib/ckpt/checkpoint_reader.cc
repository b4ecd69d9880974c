#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "ckpt/checkpoint.h"
#include "ckpt/manifest.h"
#include "ckpt/stored_file.h"

namespace mt {
namespace {

constexpr std::uint64_t kLargestManifest = std::uint64_t{256} << 20;  // bytes
constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;  // bytes read and hashed while in cache

std::string read_manifest(const OpenDirectory& directory) {
  const std::string path = directory.path() + "/" + kManifestName;
  const FileDescriptor fd = directory.open(kManifestName);
  const std::uint64_t bytes = file_size(fd.get(), path);
  if (bytes > kLargestManifest) {
    throw DataError(cat(path, ": expected at most ", kLargestManifest, " bytes, found ", bytes));
  }
  std::string text(bytes, '\0');
  read_fully_at(fd.get(), text.data(), text.size(), 0, path);
  return text;
}

// The part of a stored box that a caller wants, copied piece by piece while the box is hashed.
class Copier {
 public:
  // All boxes are inside one global tensor; `out` is dense with the wanted extent.
  Copier(const StoredBox& box, const Shape& offset, const Shape& extent, std::size_t element,
         std::byte* out)
      : box_(box), offset_(offset), extent_(extent), element_(element), out_(out) {}

  // True if the two boxes share an element.
  [[nodiscard]] bool meets() const;
  // Where the box goes as a whole, if it lies dense in the output; else null.
  [[nodiscard]] std::byte* whole_place() const;
  // Bytes [begin, begin + bytes) of the box, whole elements.
  void copy(const std::byte* piece, std::uint64_t begin, std::uint64_t bytes) const;

 private:
  // Byte position in the output of a row (a run along the last dimension) of the box, or -1.
  [[nodiscard]] std::int64_t row_place(std::uint64_t row) const;

  const StoredBox& box_;
  const Shape &offset_, &extent_;
  std::size_t element_;
  std::byte* out_;
};

bool Copier::meets() const {
  for (std::size_t d = 0; d < offset_.size(); ++d) {
    if (std::max(offset_[d], box_.offset[d]) >=
        std::min(offset_[d] + extent_[d], box_.offset[d] + box_.extent[d])) {
      return false;
    }
  }
  return true;
}

std::byte* Copier::whole_place() const {
  std::int64_t row = 1;  // elements of a row of the first dimension
  for (std::size_t d = 1; d < offset_.size(); ++d) {
    if (box_.offset[d] != offset_[d] || box_.extent[d] != extent_[d]) {
      return nullptr;
    }
    row *= extent_[d];
  }
  if (offset_.empty()) {
    return out_;
  }
  const std::int64_t first = box_.offset[0] - offset_[0];
  return first >= 0 && box_.extent[0] <= extent_[0] - first
             ? out_ + first * row * static_cast<std::int64_t>(element_)
             : nullptr;
}

std::int64_t Copier::row_place(std::uint64_t row) const {
  std::int64_t rest = static_cast<std::int64_t>(row);
  std::int64_t stride = extent_.back();
  std::int64_t place = 0;
  for (std::size_t d = offset_.size() - 1; d-- > 0;) {
    const std::int64_t at = rest % box_.extent[d] + box_.offset[d] - offset_[d];
    rest /= box_.extent[d];
    if (at < 0 || at >= extent_[d]) {
      return -1;
    }
    place += at * stride;
    stride *= extent_[d];
  }
  return place;
}

void Copier::copy(const std::byte* piece, std::uint64_t begin, std::uint64_t bytes) const {
  if (offset_.empty()) {
    std::memcpy(out_, piece, bytes);
    return;
  }
  const std::int64_t columns = box_.extent.back();
  const std::int64_t shift = box_.offset.back() - offset_.back();  // box column 0 in the output
  std::int64_t at = static_cast<std::int64_t>(begin / element_);   // element of the box
  const std::int64_t end = at + static_cast<std::int64_t>(bytes / element_);
  while (at < end) {
    const std::int64_t row = at / columns;
    const std::int64_t first = at - row * columns;
    const std::int64_t last = std::min(columns, first + end - at);
    const std::int64_t from = std::max(first, -shift);
    const std::int64_t to = std::min(last, extent_.back() - shift);
    const std::int64_t place = from < to ? row_place(static_cast<std::uint64_t>(row)) : -1;
    if (place >= 0) {
      std::memcpy(out_ + static_cast<std::size_t>(place + from + shift) * element_,
                  piece + static_cast<std::size_t>(row * columns + from) * element_ - begin,
                  static_cast<std::size_t>(to - from) * element_);
    }
    at += last - first;
  }
}

}  // namespace

struct CheckpointReader::State {
  OpenDirectory directory;
  Manifest manifest;
  std::map<std::string, TensorInfo> tensors;

  explicit State(const std::string& path)
      : directory(path),
        manifest(Manifest::parse(read_manifest(directory), path + "/" + kManifestName)) {}
  [[nodiscard]] std::string path_of(const std::string& file) const {
    return directory.path() + "/" + file;
  }
  void verify_outside(const std::string& file, const std::vector<const StoredBox*>& boxes) const;
  // The tensor of a request that fits it.
  [[nodiscard]] const StoredTensor& find(const Request& request) const;
  void read_box(const std::string& name, const StoredBox& box, const Copier& copier) const;
};

void CheckpointReader::State::verify_outside(const std::string& file,
                                             const std::vector<const StoredBox*>& boxes) const {
  const StoredFile& expected = manifest.files.at(file);
  const FileDescriptor fd = directory.open(file, expected.bytes);
  const Digest128 hash = hash_outside(fd.get(), path_of(file), expected.bytes, boxes);
  if (hash != expected.hash) {
    throw DataError(cat(path_of(file), ": damaged", boxes.empty() ? "" : " outside its tensors",
                        ": expected hash ", to_hex(expected.hash), ", found ", to_hex(hash)));
  }
}

void CheckpointReader::State::read_box(const std::string& name, const StoredBox& box,
                                       const Copier& copier) const {
  const std::string path = path_of(box.file);
  const FileDescriptor fd = directory.open(box.file, manifest.files.at(box.file).bytes);
  Digest128 hash;
  if (std::byte* const place = copier.whole_place(); place != nullptr) {
    StreamHash stream;
    for (std::uint64_t at = 0; at < box.bytes; at += kPiece) {
      const std::uint64_t bytes = std::min(kPiece, box.bytes - at);
      read_fully_at(fd.get(), place + at, bytes, box.byte_offset + at, path);
      stream.update(place + at, bytes);
    }
    hash = stream.digest();
  } else {
    StreamHash stream;
    std::vector<std::byte> piece(std::min(kPiece, box.bytes));
    for (std::uint64_t at = 0; at < box.bytes; at += piece.size()) {
      const std::uint64_t bytes = std::min<std::uint64_t>(piece.size(), box.bytes - at);
      read_fully_at(fd.get(), piece.data(), bytes, box.byte_offset + at, path);
      stream.update(piece.data(), bytes);
      copier.copy(piece.data(), at, bytes);
    }
    hash = stream.digest();
  }
  check_box(path, name, box, hash);
}

CheckpointReader::CheckpointReader(const std::string& directory)
    : state_(std::make_unique<State>(directory)) {
  auto boxes = state_->manifest.boxes_by_file();
  for (const auto& [name, file] : state_->manifest.files) {
    state_->verify_outside(name, boxes[name]);
  }
  for (const auto& [name, tensor] : state_->manifest.tensors) {
    state_->tensors[name] = {tensor.shape, tensor.dtype, tensor.digest, tensor.optimizer};
  }
}

CheckpointReader::~CheckpointReader() = default;
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;

const std::string& CheckpointReader::directory() const {
  return state_->directory.path();
}
std::int64_t CheckpointReader::iteration() const {
  return state_->manifest.iteration;
}
const Manifest& CheckpointReader::manifest() const {
  return state_->manifest;
}
FileDescriptor CheckpointReader::open(const std::string& file) const {
  return state_->directory.open(file, state_->manifest.files.at(file).bytes);
}
const CheckpointLayout& CheckpointReader::layout() const {
  return state_->manifest.layout;
}
const Json& CheckpointReader::model() const {
  return state_->manifest.model;
}
const Json& CheckpointReader::training() const {
  return state_->manifest.training;
}
const std::map<std::string, CheckpointReader::TensorInfo>& CheckpointReader::tensors() const {
  return state_->tensors;
}
const std::string& CheckpointReader::tokenizer_digest() const {
  return state_->manifest.tokenizer_digest;
}

void CheckpointReader::read(const std::string& name, const Shape& global_shape, const Shape& offset,
                            const Shape& extent, DType dtype, void* out) const {
  const Request request{name, global_shape, offset, extent, dtype, out};
  read(std::span(&request, 1));
}

void CheckpointReader::read(std::span<const Request> requests) const {
  struct Piece {
    const Request* request;
    const StoredBox* box;
    [[nodiscard]] Copier copier() const {
      return {*box, request->offset, request->extent, dtype_size(request->dtype),
              static_cast<std::byte*>(request->out)};
    }
  };
  std::vector<Piece> pieces;
  for (const Request& request : requests) {
    const StoredTensor& tensor = state_->find(request);
    for (const StoredBox& box : tensor.boxes) {
      const Piece piece{&request, &box};
      if (box.bytes > 0 && piece.copier().meets()) pieces.push_back(piece);
    }
  }
  // The largest first, so that threads end together.
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.box->bytes > b.box->bytes; });
  run_parts_or_throw(static_cast<std::int64_t>(pieces.size()), threads(), [&](std::int64_t part) {
    const Piece& piece = pieces[static_cast<std::size_t>(part)];
    state_->read_box(piece.request->name, *piece.box, piece.copier());
  });
}

const StoredTensor& CheckpointReader::State::find(const Request& request) const {
  const auto& [name, global_shape, offset, extent, dtype, out] = request;
  const std::string where = cat(directory.path(), ": tensor ", printable(name));
  const auto found = manifest.tensors.find(name);
  if (found == manifest.tensors.end()) {
    throw DataError(cat(where, ": there is none"));
  }
  const StoredTensor& tensor = found->second;
  if (tensor.shape != global_shape || tensor.dtype != dtype) {
    throw DataError(cat(where, ": expected ", dtype_name(dtype), " ", shape_text(global_shape),
                        ", found ", dtype_name(tensor.dtype), " ", shape_text(tensor.shape)));
  }
  MT_ASSERT(offset.size() == tensor.shape.size() && extent.size() == tensor.shape.size());
  for (std::size_t d = 0; d < extent.size(); ++d) {
    MT_ASSERT(offset[d] >= 0 && extent[d] >= 0 && offset[d] <= tensor.shape[d] - extent[d]);
  }
  return tensor;
}

void CheckpointReader::check_carried() const {
  for (const auto& [name, stored] : state_->manifest.files) {
    if (!name.ends_with(".h5")) static_cast<void>(file(name));
  }
}

std::string CheckpointReader::file(const std::string& name) const {
  const auto found = state_->manifest.files.find(name);
  if (found == state_->manifest.files.end()) {
    return "";
  }
  const std::string path = state_->path_of(name);
  const FileDescriptor fd = state_->directory.open(name, found->second.bytes);
  std::string content(found->second.bytes, '\0');
  read_fully_at(fd.get(), content.data(), content.size(), 0, path);
  if (xxh3_128(content.data(), content.size()) != found->second.hash) {
    throw DataError(cat(path, ": damaged, or not a file that is carried whole"));
  }
  return content;
}

}  // namespace mt
