#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "base/commit.h"
#include "base/error.h"
#include "ckpt/checkpoint.h"
#include "ckpt/manifest.h"
#include "ckpt/stored_file.h"
#include "io/hdf5.h"

namespace mt {
namespace {

constexpr const char* kModelFile = "model-pp00-tp00.h5";
constexpr const char* kOptimizerFile = "optim-pp00-tp00-dp00.h5";
constexpr const char* kIndexFile = "index.h5";

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
  Saver(std::string folder, Manifest& manifest) : folder_(std::move(folder)), manifest_(manifest) {}

  // One HDF5 file of boxes, each hashed in memory before it is written.
  void write_boxes(const std::string& file, const std::vector<Box>& boxes, bool optimizer);
  // The HDF5 file that shows every tensor whole.
  void write_index();
  void write_file(const std::string& name, const std::string& content);
  void write_manifest();

 private:
  // Synchronises a file that HDF5 finished and takes its bytes outside the boxes into the manifest.
  void finish(FileDescriptor& fd, const std::string& file,
              const std::vector<const StoredBox*>& boxes);
  void describe(Hdf5Writer& writer) const;

  std::string folder_;
  Manifest& manifest_;
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

void Saver::write_boxes(const std::string& file, const std::vector<Box>& boxes, bool optimizer) {
  const std::string path = folder_ + "/" + file;
  FileDescriptor fd = new_file(path);
  Hdf5Writer writer(fd.get(), path, 0);
  describe(writer);
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
    stored.hash = xxh3_128(box.data, stored.bytes);
    tensor.digest = tensor.digest +
                    tensor_digest(box.data, box.dtype, box.global_shape, box.offset, box.extent);
    std::string name = group_of(optimizer) + box.name;
    if (!is_new) {
      name += cat("@", tensor.boxes.size());
    }
    writer.write(name, file_type(box.dtype), box.extent, box.data);
    if (!box.extent.empty()) {
      writer.attribute(name, "global_shape", box.global_shape);
      writer.attribute(name, "offset", box.offset);
    }
    stored.byte_offset = writer.range(name).offset;
    tensor.boxes.push_back(stored);
    parts_[box.name].push_back({file, name, box.offset, box.extent});
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
                     const Communicator& world, bool replace) {
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
  Saver saver(pending.path(), manifest);
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
