#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "base/commit.h"
#include "base/error.h"
#include "base/threads.h"
#include "ckpt/checkpoint.h"
#include "ckpt/manifest.h"
#include "ckpt/stored_file.h"
#include "io/hdf5.h"

namespace mt {
namespace {

constexpr const char* kModelFile = "model-pp00-tp00.h5";
constexpr const char* kOptimizerFile = "optim-pp00-tp00-dp00.h5";
constexpr const char* kIndexFile = "index.h5";
constexpr std::uint64_t kBlock = std::uint64_t{1} << 20;  // bytes hashed and written while in cache
constexpr std::uint64_t kWriteBack = std::uint64_t{16} << 20;  // bytes handed to the disk at once

FileDescriptor new_file(const std::string& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd.valid()) {
    throw EnvironmentError(cat("cannot create ", path, ": ", std::strerror(errno)));
  }
  return fd;
}

void new_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0) {
    throw EnvironmentError(cat("cannot create ", path, ": ", std::strerror(errno)));
  }
}

// Writes the files of one checkpoint into a folder and notes in the manifest what it wrote.
class Saver {
 public:
  Saver(std::string folder, Manifest& manifest, int threads)
      : folder_(std::move(folder)), manifest_(manifest), threads_(threads) {}

  // One HDF5 file of boxes. HDF5 lays it out; the elements are hashed and written in one pass, box
  // beside box.
  void write_boxes(const std::string& file, const std::vector<Box>& boxes, bool optimizer);
  // The HDF5 file that shows every tensor whole.
  void write_index();
  void write_file(const std::string& name, const std::string& content);
  void write_manifest();

 private:
  // A box, and where it goes.
  struct Placed {
    const Box* box = nullptr;
    StoredTensor* tensor = nullptr;
    std::size_t index = 0;  // in tensor->boxes
    Digest128 digest;
  };
  // Writes the elements of a box that has its place; notes its hash and digest.
  void write_elements(int fd, const std::string& path, Placed& placed) const;
  // Synchronises a file that HDF5 finished and takes its bytes outside the boxes into the manifest.
  void finish(FileDescriptor& fd, const std::string& file,
              const std::vector<const StoredBox*>& boxes);
  void describe(Hdf5Writer& writer) const;

  std::string folder_;
  Manifest& manifest_;
  int threads_;
  std::map<std::string, std::vector<VirtualPart>> parts_;  // by tensor
};

std::string group_of(bool optimizer) {
  return optimizer ? "/optimizer/" : "/model/";
}

void Saver::describe(Hdf5Writer& writer) const {
  writer.attribute("/", "format", "mt-checkpoint");
  writer.attribute("/", "version", std::int64_t{1});
  writer.attribute("/", "iteration", manifest_.iteration);
}

void Saver::finish(FileDescriptor& fd, const std::string& file,
                   const std::vector<const StoredBox*>& boxes) {
  const std::string path = folder_ + "/" + file;
  sync_file(fd.get(), path);
  const std::uint64_t bytes = file_size(fd.get(), path);
  manifest_.files[file] = {bytes, hash_outside(fd.get(), path, bytes, boxes)};
  fd.close(path);
}

void Saver::write_elements(int fd, const std::string& path, Placed& placed) const {
  const Box& box = *placed.box;
  StoredBox& stored = placed.tensor->boxes[placed.index];
  const auto* const data = static_cast<const std::byte*>(box.data);
  StreamHash hash;
  BoxDigest digest(box.dtype, box.global_shape, box.offset, box.extent);
  std::uint64_t handed = 0;  // to the disk
  for (std::uint64_t at = 0; at < stored.bytes;) {
    const std::uint64_t bytes = std::min(kBlock, stored.bytes - at);
    hash.update(data + at, bytes);
    digest.update(data + at, bytes);
    write_fully_at(fd, data + at, bytes, stored.byte_offset + at, path);
    at += bytes;
    if (at - handed >= kWriteBack) {
      start_writing_back(fd, stored.byte_offset + handed, at - handed);
      handed = at;
    }
  }
  stored.hash = hash.digest();
  placed.digest = digest.digest();
}

void Saver::write_boxes(const std::string& file, const std::vector<Box>& boxes, bool optimizer) {
  const std::string path = folder_ + "/" + file;
  FileDescriptor fd = new_file(path);
  Hdf5Writer writer(fd.get(), path, 0);
  describe(writer);
  std::vector<Placed> placed;
  for (const Box& box : boxes) {
    check_tensor_name(box.name, path);
    const auto [found, is_new] = manifest_.tensors.try_emplace(box.name);
    StoredTensor& tensor = found->second;
    if (is_new) {
      tensor.shape = box.global_shape;
      tensor.dtype = box.dtype;
      tensor.optimizer = optimizer;
    }
    MT_ASSERT(tensor.shape == box.global_shape && tensor.dtype == box.dtype &&
              tensor.optimizer == optimizer);
    StoredBox stored{file, box.offset, box.extent, 0, 0, {}};
    stored.bytes = checked_bytes(box.extent, box.dtype, box.name);
    std::string name = group_of(optimizer) + box.name;
    if (!is_new) {
      name += cat("@", tensor.boxes.size());
    }
    writer.create(name, file_type(box.dtype), box.extent);
    if (!box.extent.empty()) {
      writer.attribute(name, "global_shape", box.global_shape);
      writer.attribute(name, "offset", box.offset);
    }
    stored.byte_offset = writer.range(name).offset;
    placed.push_back({&box, &tensor, tensor.boxes.size(), {}});
    tensor.boxes.push_back(stored);
    parts_[box.name].push_back({file, name, box.offset, box.extent});
  }
  // The largest first, so that threads end together.
  std::stable_sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return a.tensor->boxes[a.index].bytes > b.tensor->boxes[b.index].bytes;
  });
  run_parts_or_throw(static_cast<std::int64_t>(placed.size()), threads_, [&](std::int64_t part) {
    write_elements(fd.get(), path, placed[static_cast<std::size_t>(part)]);
  });
  for (const Placed& each : placed) {
    each.tensor->digest = each.tensor->digest + each.digest;
  }
  writer.close();
  finish(fd, file, manifest_.boxes_by_file()[file]);
}

void Saver::write_index() {
  const std::string path = folder_ + "/" + kIndexFile;
  FileDescriptor fd = new_file(path);
  Hdf5Writer writer(fd.get(), path, 0);
  describe(writer);
  for (const auto& [name, tensor] : manifest_.tensors) {
    writer.write_virtual(group_of(tensor.optimizer) + name, file_type(tensor.dtype), tensor.shape,
                         parts_[name]);
  }
  writer.close();
  finish(fd, kIndexFile, {});
}

void Saver::write_file(const std::string& name, const std::string& content) {
  const std::string path = folder_ + "/" + name;
  FileDescriptor fd = new_file(path);
  write_fully_at(fd.get(), content.data(), content.size(), 0, path);
  sync_file(fd.get(), path);
  fd.close(path);
  manifest_.files[name] = {content.size(), xxh3_128(content.data(), content.size())};
}

void Saver::write_manifest() {
  const std::string path = folder_ + "/" + kManifestName;
  const std::string text = manifest_.text();
  // What would not be read is not committed.
  static_cast<void>(Manifest::parse(text, path));
  FileDescriptor fd = new_file(path);
  write_fully_at(fd.get(), text.data(), text.size(), 0, path);
  sync_file(fd.get(), path);
  fd.close(path);
}

}  // namespace

void save_checkpoint(const std::string& directory, const CheckpointContent& content,
                     const Communicator& world, bool replace, int most_threads) {
  if (world.size() != 1) {
    throw UsageError(cat("cannot write ", directory, ": expected one rank, found ", world.size()));
  }
  const std::size_t end = directory.find_last_not_of('/');
  const std::size_t slash = directory.rfind('/', end);
  if (slash != std::string::npos && slash > 0 && end != std::string::npos) {
    if (const std::string parent = directory.substr(0, slash); !exists(parent)) {
      make_directories(parent);
    }
  }
  PendingDirectory pending(
      directory, replace ? PendingFile::Existing::kReplace : PendingFile::Existing::kRefuse);
  Manifest manifest;
  manifest.iteration = content.iteration;
  manifest.model = content.model;
  manifest.training = content.training;
  manifest.tokenizer_digest = content.tokenizer_digest;
  Saver saver(pending.path(), manifest, most_threads);
  saver.write_boxes(kModelFile, content.weights, false);
  if (!content.optimizer.empty()) {
    saver.write_boxes(kOptimizerFile, content.optimizer, true);
  }
  saver.write_index();
  std::set<std::string> folders;
  for (const auto& [name, text] : content.files) {
    check_file_name(name, directory);
    if (const std::size_t deep = name.find('/'); deep != std::string::npos) {
      folders.insert(name.substr(0, deep));
    }
  }
  for (const std::string& folder : folders) {
    new_folder(pending.path() + "/" + folder);
  }
  for (const auto& [name, text] : content.files) {
    saver.write_file(name, text);
  }
  for (const std::string& folder : folders) {
    sync_directory(pending.path() + "/" + folder);
  }
  saver.write_manifest();
  pending.commit();
}

}  // namespace mt
