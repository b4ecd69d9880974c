// Files that appear whole or not at all: a temporary name beside the target, fsync, rename, fsync
// of the directory. Every function throws EnvironmentError with the path and the system's reason.
// After a failed fsync of a file nothing appears; if only that of its directory fails, the file is
// there whole, but may be lost with the power.
//
// Temporary names are .NAME.tmp.PID-N beside NAME (NAME cut to 200 bytes), so that what a killed
// process leaves can be found.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mt {

// An owned file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  // The descriptor, which the caller now owns.
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  // Closes and throws if the system reports a late write error.
  void close(const std::string& path);

 private:
  int fd_ = -1;
};

// A new file under a temporary name, .NAME.tmp.PROCESS-N, in the target's directory (O_EXCL, no
// symbolic link followed, mode 0666 & ~umask). commit() makes it appear under its final name;
// destruction without commit removes it. What a job that died left of the same target is removed
// first.
class PendingFile {
 public:
  enum class Existing { kRefuse, kReplace };
  // Throws UsageError at once when the target exists and `existing` is kRefuse (again at commit,
  // without a race: the file is linked, not renamed, over nothing).
  PendingFile(std::string target, Existing existing);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] const std::string& temporary_path() const { return temporary_; }
  [[nodiscard]] const std::string& target() const { return target_; }
  void write(std::string_view bytes);
  void write_at(std::uint64_t offset, std::string_view bytes);
  // fsync, rename, fsync of the directory.
  void commit();

 private:
  std::string target_, temporary_;
  FileDescriptor fd_;
  FileDescriptor lock_;  // held while the temporary file is there: no sweeper takes it
  Existing existing_;
  bool committed_ = false;
};

// A new directory under a temporary name beside the target, for several files that must appear
// together.
class PendingDirectory {
 public:
  // An existing target is always refused (UsageError), empty directories included, unless kReplace.
  PendingDirectory(std::string target, PendingFile::Existing existing);
  ~PendingDirectory();  // removes the temporary directory and what it holds unless committed
  PendingDirectory(const PendingDirectory&) = delete;
  PendingDirectory& operator=(const PendingDirectory&) = delete;
  [[nodiscard]] const std::string& path() const { return temporary_; }
  // The caller has synchronised the files. fsync of the directory, rename, fsync of the parent.
  // With kReplace the two change places in one step, and the old one is removed after (where the
  // filesystem cannot do that: it is moved aside first).
  void commit();

 private:
  std::string target_, temporary_;
  FileDescriptor lock_;  // as in PendingFile
  PendingFile::Existing existing_;
  bool committed_ = false;
};

// Held while a job writes into a directory: flock on `directory`/.lock, which names the holder.
// Another holder: throws EnvironmentError naming its process and host. The lock of a dead process
// is free by itself.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& directory);

 private:
  FileDescriptor fd_;
};

// Small helpers that check everything. Sizes are bytes.
void write_fully(int fd, const void* data, std::size_t bytes, const std::string& path);
void write_fully_at(int fd, const void* data, std::size_t bytes, std::uint64_t offset,
                    const std::string& path);
// Short files throw DataError "truncated".
void read_fully_at(int fd, void* data, std::size_t bytes, std::uint64_t offset,
                   const std::string& path);
void sync_file(int fd, const std::string& path);
// Asks the system to begin writing these bytes to the disk, so that the sync at the end finds
// little to do; 0 bytes are all from the offset on. Advice only: what fails is reported by
// sync_file.
void start_writing_back(int fd, std::uint64_t offset, std::uint64_t bytes);
void sync_directory(const std::string& directory);
// Opens an existing regular file for reading. A missing file, a directory, a FIFO or a device
// throws; `follow` says whether a symbolic link is followed. Missing: EnvironmentError with the
// reason.
enum class Links { kFollow, kRefuse };
[[nodiscard]] FileDescriptor open_regular(const std::string& path, Links links = Links::kFollow);
[[nodiscard]] std::uint64_t file_size(int fd, const std::string& path);
// The whole file. Throws DataError when it is larger than `limit` bytes.
[[nodiscard]] std::string read_file(const std::string& path, std::uint64_t limit,
                                    Links links = Links::kFollow);
// True if something (of any kind) has that name.
[[nodiscard]] bool exists(const std::string& path);
// The names that a directory holds, in order of their bytes.
[[nodiscard]] std::vector<std::string> names_in(const std::string& directory);
// Removes what has that name, if anything has; of a directory all that is in it, no link followed.
void remove_tree(const std::string& path);

// Raises this process's limit of open files, if it must and may, so that `count` more than a few
// dozen can be open at once. What the system refuses shows when a file is opened.
void allow_open_files(std::size_t count);
// Creates the directory and its parents.
void make_directories(const std::string& path);

}  // namespace mt
