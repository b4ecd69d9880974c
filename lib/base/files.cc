// The small helpers of base/commit.h, and the lock.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/commit.h"
#include "base/error.h"

namespace mt {

namespace {

[[noreturn]] void fail(const char* doing, const std::string& path, int error) {
  throw EnvironmentError(cat("cannot ", doing, " ", path, ": ", std::strerror(error)));
}

[[noreturn]] void fail_write_at(const std::string& path, std::uint64_t offset, int error) {
  throw EnvironmentError(
      cat("cannot write ", path, ": at offset ", offset, ": ", std::strerror(error)));
}

struct stat status_of(int fd, const std::string& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    fail("look at", path, errno);
  }
  return status;
}

// Calls write_some(pointer, bytes, done) until everything is written.
template <typename WriteSome>
void write_all(const void* data, std::size_t bytes, std::uint64_t offset, const std::string& path,
               WriteSome write_some) {
  const auto* const begin = static_cast<const char*>(data);
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t n = write_some(begin + done, bytes - done, done);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      fail_write_at(path, offset + done, n < 0 ? errno : EIO);
    }
    done += static_cast<std::size_t>(n);
  }
}

// Reads up to `bytes` at the offset; fewer only at the end of the file.
std::size_t read_some_at(int fd, char* to, std::size_t bytes, std::uint64_t offset,
                         const std::string& path) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::pread(fd, to + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      throw EnvironmentError(
          cat("cannot read ", path, ": at offset ", offset + done, ": ", std::strerror(errno)));
    }
    if (n == 0) {
      break;
    }
    done += static_cast<std::size_t>(n);
  }
  return done;
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void FileDescriptor::close(const std::string& path) {
  // After EINTR the descriptor is closed all the same on Linux.
  if (fd_ >= 0 && ::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) {
    fail("write", path, errno);
  }
}

void write_fully(int fd, const void* data, std::size_t bytes, const std::string& path) {
  const off_t start = ::lseek(fd, 0, SEEK_CUR);  // -1 on a pipe, which counts from here
  write_all(data, bytes, static_cast<std::uint64_t>(std::max<off_t>(start, 0)), path,
            [fd](const char* from, std::size_t count, std::size_t /*done*/) {
              return ::write(fd, from, count);
            });
}

void write_fully_at(int fd, const void* data, std::size_t bytes, std::uint64_t offset,
                    const std::string& path) {
  write_all(data, bytes, offset, path,
            [fd, offset](const char* from, std::size_t count, std::size_t done) {
              return ::pwrite(fd, from, count, static_cast<off_t>(offset + done));
            });
}

void read_fully_at(int fd, void* data, std::size_t bytes, std::uint64_t offset,
                   const std::string& path) {
  const std::size_t done = read_some_at(fd, static_cast<char*>(data), bytes, offset, path);
  if (done < bytes) {
    throw DataError(cat(path, ": truncated: expected ", bytes, " bytes at offset ", offset,
                        ", the file ends after ", done, " of them"));
  }
}

void sync_file(int fd, const std::string& path) {
  while (::fsync(fd) != 0) {
    if (errno != EINTR) {
      throw EnvironmentError(cat("cannot write ", path, ": fsync: ", std::strerror(errno)));
    }
  }
}

void start_writing_back(int fd, std::uint64_t offset, std::uint64_t bytes) {
  static_cast<void>(::sync_file_range(fd, static_cast<off64_t>(offset), static_cast<off64_t>(bytes),
                                      SYNC_FILE_RANGE_WRITE));
}

void sync_directory(const std::string& directory) {
  const FileDescriptor fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) {
    fail("synchronise the directory", directory, errno);
  }
  while (::fsync(fd.get()) != 0) {
    if (errno == EINVAL) {  // a filesystem that keeps no directories to synchronise
      return;
    }
    if (errno != EINTR) {
      fail("synchronise the directory", directory, errno);
    }
  }
}

FileDescriptor open_regular(const std::string& path, Links links) {
  // O_NONBLOCK so that a FIFO without a writer is refused instead of waited for.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  FileDescriptor fd(::open(path.c_str(), links == Links::kRefuse ? flags | O_NOFOLLOW : flags));
  if (!fd.valid()) {
    if (errno == ELOOP && links == Links::kRefuse) {
      throw DataError(cat("cannot read ", path, ": expected a regular file, found a link"));
    }
    fail("read", path, errno);
  }
  const struct stat status = status_of(fd.get(), path);
  if (!S_ISREG(status.st_mode)) {
    throw DataError(cat("cannot read ", path, ": expected a regular file, found ",
                        S_ISDIR(status.st_mode)    ? "a directory"
                        : S_ISFIFO(status.st_mode) ? "a FIFO"
                                                   : "a device"));
  }
  return fd;
}

std::uint64_t file_size(int fd, const std::string& path) {
  return static_cast<std::uint64_t>(status_of(fd, path).st_size);
}

std::string read_file(const std::string& path, std::uint64_t limit, Links links) {
  const FileDescriptor fd = open_regular(path, links);
  const std::uint64_t size = file_size(fd.get(), path);
  const auto refuse = [&](std::uint64_t found) {
    throw DataError(
        cat("cannot read ", path, ": expected at most ", limit, " bytes, found ", found));
  };
  if (size > limit) {
    refuse(size);
  }
  // The size is a hint only: files of /proc have none, and a file may grow.
  std::string content;
  std::size_t done = 0;
  std::size_t room = static_cast<std::size_t>(size) + 1;
  while (true) {
    content.resize(done + room);
    const std::size_t n = read_some_at(fd.get(), content.data() + done, room, done, path);
    done += n;
    if (done > limit) {
      refuse(done);
    }
    if (n < room) {
      content.resize(done);
      return content;
    }
    room = std::max<std::size_t>(4096, done);
  }
}

void allow_open_files(std::size_t count) {
  constexpr rlim_t kOthers = 64;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= count + kOthers) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, count + kOthers);
  static_cast<void>(::setrlimit(RLIMIT_NOFILE, &limit));
}

bool exists(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) {
    return true;
  }
  if (errno != ENOENT && errno != ENOTDIR) {
    fail("look at", path, errno);
  }
  return false;
}

void make_directories(const std::string& path) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (::mkdir(part.c_str(), 0777) == 0) {
      const std::size_t slash = part.find_last_of('/', part.find_last_not_of('/'));
      sync_directory(slash == std::string::npos ? "." : slash == 0 ? "/" : part.substr(0, slash));
    } else {
      const int error = errno;
      struct stat status {};
      if (error != EEXIST && error != EISDIR && error != EROFS && error != EACCES) {
        fail("create the directory", part, error);
      }
      if (::stat(part.c_str(), &status) != 0) {
        // What is not there was refused by mkdir; else the look at it has failed.
        fail("create the directory", part, errno == ENOENT ? error : errno);
      }
      if (!S_ISDIR(status.st_mode)) {
        throw UsageError(cat("cannot create the directory ", part, ": it exists as a file"));
      }
    }
    if (end == std::string::npos) {
      return;
    }
  }
}

DirectoryLock::DirectoryLock(const std::string& directory) {
  const std::string path = directory + "/.lock";
  fd_ = FileDescriptor(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
  if (!fd_.valid()) {
    fail("lock", path, errno);
  }
  if (!S_ISREG(status_of(fd_.get(), path).st_mode)) {
    throw EnvironmentError(cat("cannot lock ", path, ": it is not a regular file"));
  }
  while (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      std::string holder(256, '\0');
      holder.resize(read_some_at(fd_.get(), holder.data(), holder.size(), 0, path));
      holder = holder.substr(0, holder.find('\n'));
      throw EnvironmentError(cat(directory, " is in use by ",
                                 holder.empty() ? "another process" : holder, " (lock ", path,
                                 ")"));
    }
    if (errno != EINTR) {
      fail("lock", path, errno);
    }
  }
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string text = cat("process ", ::getpid(), " on host ", host.data(), "\n");
  if (::ftruncate(fd_.get(), 0) != 0) {
    fail("lock", path, errno);
  }
  write_fully_at(fd_.get(), text.data(), text.size(), 0, path);
}

}  // namespace mt
