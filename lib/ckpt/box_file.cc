#include "ckpt/box_file.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "ckpt/stored_file.h"
#include "io/hdf5.h"

namespace mt {
namespace {

constexpr std::uint64_t kWriteBack = std::uint64_t{16} << 20;  // bytes of a file

}  // namespace

std::string data_set_name(const std::string& tensor, bool optimizer, std::size_t index) {
  const std::string first = cat(optimizer ? "/optimizer/" : "/model/", tensor);
  return index == 0 ? first : cat(first, "@", index);
}

void describe_file(Hdf5Writer& writer, std::int64_t iteration) {
  writer.attribute("/", "format", "mt-checkpoint");
  writer.attribute("/", "version", std::int64_t{1});
  writer.attribute("/", "iteration", iteration);
}

FileDescriptor create_file(const std::string& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd.valid()) {
    throw EnvironmentError(cat("cannot create ", path, ": ", std::strerror(errno)));
  }
  return fd;
}

BoxFile::BoxFile(const std::string& folder, std::string name, std::int64_t iteration,
                 std::vector<BoxPlace> boxes)
    : name_(std::move(name)),
      path_(folder + "/" + name_),
      fd_(create_file(path_)),
      boxes_(std::move(boxes)),
      written_(boxes_.size()) {
  std::sort(boxes_.begin(), boxes_.end(), [](const BoxPlace& a, const BoxPlace& b) {
    return std::tie(a.name, a.offset, a.extent) < std::tie(b.name, b.offset, b.extent);
  });
  Hdf5Writer writer(fd_.get(), path_, 0);
  describe_file(writer, iteration);
  std::size_t index = 0;  // among the boxes of one tensor
  for (std::size_t i = 0; i < boxes_.size(); ++i) {
    const BoxPlace& box = boxes_[i];
    check_tensor_name(box.name, path_);
    index = i > 0 && boxes_[i - 1].name == box.name ? index + 1 : 0;
    const std::string data_set = data_set_name(box.name, box.optimizer, index);
    writer.create(data_set, file_type(box.dtype), box.extent);
    if (!box.extent.empty()) {
      writer.attribute(data_set, "global_shape", box.global_shape);
      writer.attribute(data_set, "offset", box.offset);
    }
    written_[i].bytes = checked_bytes(box.extent, box.dtype, box.name);
    written_[i].byte_offset = writer.range(data_set).offset;
  }
  writer.close();
}

void BoxFile::append(std::size_t box, const void* data, std::size_t bytes) {
  Written& written = written_[box];
  MT_ASSERT(bytes <= written.bytes - written.done);
  written.hash.update(data, bytes);
  write_fully_at(fd_.get(), data, bytes, written.byte_offset + written.done, path_);
  written.done += bytes;
  // Boxes may be many and small, so what waits is counted by file; length 0 is all of it.
  if (waiting_.fetch_add(bytes, std::memory_order_relaxed) + bytes >= kWriteBack) {
    waiting_.store(0, std::memory_order_relaxed);
    start_writing_back(fd_.get(), 0, 0);
  }
}

void BoxFile::finish(Manifest& manifest) {
  sync_file(fd_.get(), path_);
  std::vector<StoredBox> stored;
  for (std::size_t i = 0; i < boxes_.size(); ++i) {
    const BoxPlace& box = boxes_[i];
    const Written& written = written_[i];
    MT_ASSERT(written.done == written.bytes);
    stored.push_back(
        {name_, box.offset, box.extent, written.byte_offset, written.bytes, written.hash.digest()});
  }
  std::vector<const StoredBox*> in_order;
  for (const StoredBox& box : stored) {
    if (box.bytes > 0) in_order.push_back(&box);
  }
  std::sort(in_order.begin(), in_order.end(),
            [](const auto* a, const auto* b) { return a->byte_offset < b->byte_offset; });
  const std::uint64_t bytes = file_size(fd_.get(), path_);
  manifest.files[name_] = {bytes, hash_outside(fd_.get(), path_, bytes, in_order)};
  fd_.close(path_);
  for (std::size_t i = 0; i < boxes_.size(); ++i) {
    const BoxPlace& box = boxes_[i];
    const auto [found, is_new] = manifest.tensors.try_emplace(box.name);
    StoredTensor& tensor = found->second;
    if (is_new) {
      tensor.shape = box.global_shape;
      tensor.dtype = box.dtype;
      tensor.optimizer = box.optimizer;
    }
    MT_ASSERT(tensor.shape == box.global_shape && tensor.dtype == box.dtype &&
              tensor.optimizer == box.optimizer);
    tensor.boxes.push_back(std::move(stored[i]));
  }
}

}  // namespace mt
