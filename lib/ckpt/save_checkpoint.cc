// Saving: every rank its files, rank 0 the rest and the commit.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/threads.h"
#include "ckpt/box_file.h"
#include "ckpt/checkpoint_files.h"
#include "ckpt/common_failure.h"
#include "ckpt/pending_save.h"
#include "ckpt/stored_file.h"
#include "comm/texts.h"
#include "io/hdf5.h"

namespace mt {
namespace {

constexpr const char* kIndexFile = "index.h5";
constexpr std::uint64_t kBlock = std::uint64_t{256}
                                 << 10;  // bytes hashed and written while in cache

std::string two_digits(int number) {
  return cat(number < 10 ? "0" : "", number);
}

void new_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0) {
    throw EnvironmentError(cat("cannot create ", path, ": ", std::strerror(errno)));
  }
}

void make_parent(const std::string& directory) {
  const std::size_t end = directory.find_last_not_of('/');
  const std::size_t slash = directory.rfind('/', end);
  if (slash == std::string::npos || slash == 0 || end == std::string::npos) return;
  if (const std::string parent = directory.substr(0, slash); !exists(parent)) {
    make_directories(parent);
  }
}

// A file of boxes that is written but not yet on the disk, and the digests of its boxes.
struct WrittenBoxes {
  std::unique_ptr<BoxFile> file;
  std::vector<std::pair<std::string, Digest128>> digests;  // by tensor

  // Waits for the disk.
  void finish(Manifest& manifest) {
    file->finish(manifest);
    for (const auto& [name, digest] : digests) {
      Digest128& sum = manifest.tensors.at(name).digest;
      sum = sum + digest;
    }
  }
};

// Writes a file of boxes from memory.
WrittenBoxes write_boxes(const std::string& folder, const std::string& name, std::int64_t iteration,
                         const std::vector<Box>& boxes, bool optimizer, int most_threads) {
  std::vector<BoxPlace> places;
  std::map<std::pair<std::string, Shape>, const Box*> sources;
  for (const Box& box : boxes) {
    places.push_back({box.name, box.global_shape, box.offset, box.extent, box.dtype, optimizer});
    sources[{box.name, box.offset}] = &box;
  }
  MT_ASSERT(sources.size() == boxes.size());
  WrittenBoxes written{std::make_unique<BoxFile>(folder, name, iteration, std::move(places)), {}};
  BoxFile& file = *written.file;
  struct Part {
    std::size_t index = 0;
    const Box* box = nullptr;
    std::uint64_t bytes = 0;
    Digest128 digest;
  };
  std::vector<Part> parts;
  for (std::size_t i = 0; i < file.boxes().size(); ++i) {
    const Box* const box = sources.at({file.boxes()[i].name, file.boxes()[i].offset});
    parts.push_back({i, box, checked_bytes(box->extent, box->dtype, box->name), {}});
  }
  // The largest first, so that threads end together.
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.bytes > b.bytes; });
  run_parts_or_throw(static_cast<std::int64_t>(parts.size()), most_threads, [&](std::int64_t i) {
    Part& part = parts[static_cast<std::size_t>(i)];
    const Box& box = *part.box;
    const auto* const data = static_cast<const std::byte*>(box.data);
    BoxDigest digest(box.dtype, box.global_shape, box.offset, box.extent);
    for (std::uint64_t at = 0; at < part.bytes; at += kBlock) {
      const std::uint64_t bytes = std::min(kBlock, part.bytes - at);
      digest.update(data + at, bytes);
      file.append(part.index, data + at, bytes);
    }
    part.digest = digest.digest();
  });
  for (const Part& part : parts) written.digests.emplace_back(part.box->name, part.digest);
  return written;
}

void write_file(const std::string& folder, const std::string& name, const std::string& content,
                Manifest& manifest) {
  const std::string path = folder + "/" + name;
  FileDescriptor fd = create_file(path);
  write_fully_at(fd.get(), content.data(), content.size(), 0, path);
  sync_file(fd.get(), path);
  fd.close(path);
  manifest.files[name] = {content.size(), xxh3_128(content.data(), content.size())};
}

// The files that are carried, in their folders.
void write_carried(const std::string& folder, const std::map<std::string, std::string>& files,
                   const std::string& where, Manifest& manifest) {
  std::set<std::string> folders;
  for (const auto& [name, text] : files) {
    check_file_name(name, where);
    if (const std::size_t deep = name.find('/'); deep != std::string::npos) {
      folders.insert(name.substr(0, deep));
    }
  }
  for (const std::string& each : folders) new_folder(folder + "/" + each);
  for (const auto& [name, text] : files) write_file(folder, name, text, manifest);
  for (const std::string& each : folders) sync_directory(folder + "/" + each);
}

// The HDF5 file that shows every tensor whole.
void write_index(const std::string& folder, Manifest& manifest) {
  const std::string path = folder + "/" + kIndexFile;
  FileDescriptor fd = create_file(path);
  Hdf5Writer writer(fd.get(), path, 0);
  describe_file(writer, manifest.iteration);
  for (const auto& [name, tensor] : manifest.tensors) {
    std::map<std::string, std::size_t> seen;  // boxes of the tensor, by file
    std::vector<VirtualPart> parts;
    for (const StoredBox& box : tensor.boxes) {
      parts.push_back({box.file, data_set_name(name, tensor.optimizer, seen[box.file]++),
                       box.offset, box.extent});
    }
    writer.write_virtual(data_set_name(name, tensor.optimizer, 0), file_type(tensor.dtype),
                         tensor.shape, parts);
  }
  writer.close();
  sync_file(fd.get(), path);
  const std::uint64_t bytes = file_size(fd.get(), path);
  manifest.files[kIndexFile] = {bytes, hash_outside(fd.get(), path, bytes, {})};
  fd.close(path);
}

void write_manifest(const std::string& folder, const Manifest& manifest) {
  const std::string path = folder + "/" + kManifestName;
  const std::string text = manifest.text();
  // What would not be read is not committed.
  static_cast<void>(Manifest::parse(text, path));
  FileDescriptor fd = create_file(path);
  write_fully_at(fd.get(), text.data(), text.size(), 0, path);
  sync_file(fd.get(), path);
  fd.close(path);
}

}  // namespace

std::string model_file_name(const GridPlace& place) {
  return cat("model-pp", two_digits(place.pipeline), "-tp", two_digits(place.tensor), ".h5");
}

std::string optimizer_file_name(const GridPlace& place) {
  return cat("optim-pp", two_digits(place.pipeline), "-tp", two_digits(place.tensor), "-dp",
             two_digits(place.data), ".h5");
}

void write_shared_files(const std::string& folder, const CheckpointContent& content,
                        const std::string& where, Manifest& manifest) {
  manifest.iteration = content.iteration;
  manifest.layout = content.layout;
  manifest.model = content.model;
  manifest.training = content.training;
  manifest.tokenizer_digest = content.tokenizer_digest;
  for (auto& [name, tensor] : manifest.tensors) {
    // Whoever wrote which box, and when it was told.
    std::sort(tensor.boxes.begin(), tensor.boxes.end(), [](const StoredBox& a, const StoredBox& b) {
      return std::tie(a.offset, a.extent) < std::tie(b.offset, b.extent);
    });
  }
  write_index(folder, manifest);
  write_carried(folder, content.files, where, manifest);
  write_manifest(folder, manifest);
}

PendingSave::PendingSave(const std::string& directory, const Communicator& world, bool replace)
    : world_(world), target_(directory) {
  run_on(0, world_, [&] {
    make_parent(directory);
    pending_ = std::make_unique<PendingDirectory>(
        directory, replace ? PendingFile::Existing::kReplace : PendingFile::Existing::kRefuse);
    folder_ = pending_->path();
  });
  folder_ = broadcast_text(world_, folder_);
}

PendingSave::~PendingSave() = default;

void PendingSave::write_files(const CheckpointContent& content, int most_threads) {
  // No file waits for the disk before all are written.
  std::vector<WrittenBoxes> files;
  if (!content.weights.empty()) {
    files.push_back(write_boxes(folder_, model_file_name(content.place), content.iteration,
                                content.weights, false, most_threads));
  }
  if (!content.optimizer.empty()) {
    files.push_back(write_boxes(folder_, optimizer_file_name(content.place), content.iteration,
                                content.optimizer, true, most_threads));
  }
  for (WrittenBoxes& file : files) file.finish(written_);
}

void PendingSave::write(const CheckpointContent& content, int most_threads,
                        const std::function<void()>& before) noexcept {
  try {
    if (before) before();
    write_files(content, most_threads);
  } catch (...) {
    error_ = std::current_exception();
  }
}

void PendingSave::commit(const CheckpointContent& content) {
  agree(world_, error_);
  std::string mine;
  if (world_.size() > 1 && world_.rank() != 0) {
    written_.model = Json::object();
    mine = written_.text();
  }
  const std::vector<std::string> parts = gather_texts_at(world_, mine);
  run_on(0, world_, [&] {
    for (int rank = 1; rank < world_.size(); ++rank) {
      written_.merge(Manifest::parse(parts[static_cast<std::size_t>(rank)],
                                     cat("what rank ", rank, " wrote"), Manifest::Scope::kPart));
    }
    write_shared_files(folder_, content, target_, written_);
    pending_->commit();
  });
}

void save_checkpoint(const std::string& directory, const CheckpointContent& content,
                     const Communicator& world, bool replace, int most_threads) {
  PendingSave save(directory, world, replace);
  save.write(content, most_threads);
  save.commit(content);
}

}  // namespace mt
