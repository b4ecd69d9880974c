#include "base/commit.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace mt {

namespace {

constexpr int kNames = 10000;           // attempts to find an unused temporary name
constexpr std::size_t kLongest = 200;   // bytes of the target's name that enter the temporary one
constexpr unsigned kNoReplace = 1;      // RENAME_NOREPLACE of renameat2(2)
constexpr unsigned kExchange = 1 << 1;  // RENAME_EXCHANGE

struct Place {
  std::string directory, name;
};

// Splits "a/b/" into "a" and "b".
Place split(std::string path) {
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  const std::size_t slash = path.rfind('/');
  Place place{slash == std::string::npos ? "." : path.substr(0, slash == 0 ? 1 : slash),
              slash == std::string::npos ? path : path.substr(slash + 1)};
  if (place.name.empty() || place.name == "." || place.name == "..") {
    throw UsageError(cat("cannot write \"", path, "\": expected the name of a file"));
  }
  return place;
}

std::string join(const Place& place) {
  return place.directory == "/" ? "/" + place.name : place.directory + "/" + place.name;
}

std::string temporary_name(const Place& place, const char* what, int attempt) {
  return join({place.directory,
               cat(".", place.name.substr(0, kLongest), ".", what, ".", ::getpid(), "-", attempt)});
}

[[noreturn]] void fail_write(const std::string& path, int error, const std::string& step = "") {
  throw EnvironmentError(cat("cannot write ", path, ": ", step, std::strerror(error)));
}

[[noreturn]] void refuse_existing(const std::string& path) {
  throw UsageError(cat("cannot write ", path, ": it exists already"));
}

// 0 or errno. Nothing that has the name `to` is replaced.
int rename_no_replace(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), kNoReplace) == 0) {
    return 0;
  }
  if (errno != EINVAL && errno != ENOSYS) {
    return errno;
  }
  // A filesystem without that flag. A file is linked, which never replaces; a directory, and a file
  // where there are no links, is renamed after a look.
  if (::link(from.c_str(), to.c_str()) == 0) {
    return ::unlink(from.c_str()) == 0 ? 0 : errno;
  }
  if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS) {
    return errno;
  }
  if (exists(to)) {
    return EEXIST;
  }
  return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

enum class Found { kNothing, kFile, kDirectory, kLink, kOther };

Found what_is(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) {
      return Found::kNothing;
    }
    throw EnvironmentError(cat("cannot look at ", path, ": ", std::strerror(errno)));
  }
  return S_ISREG(status.st_mode)   ? Found::kFile
         : S_ISDIR(status.st_mode) ? Found::kDirectory
         : S_ISLNK(status.st_mode) ? Found::kLink
                                   : Found::kOther;
}

// For what may stay: the next job with this target removes it.
void try_to_remove(const std::string& path) {
  try {
    remove_tree(path);
  } catch (const EnvironmentError& error) {
    log_warning(error.what());
  }
}

// Locks a temporary file or directory: what is not locked was left by a job that died. A descriptor
// of its own, since the writer closes its one before the rename. Where the system has no locks,
// nothing is locked and nothing swept.
enum class Locked { kYes, kNoLocks, kByAnother, kUnopened };

Locked lock_temporary(const std::string& path, FileDescriptor& lock) {
  lock = FileDescriptor(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!lock.valid()) return Locked::kUnopened;
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return Locked::kYes;
  return errno == EWOULDBLOCK ? Locked::kByAnother : Locked::kNoLocks;
}

// The same for what was just made. False if a sweeper took it before it was locked.
bool lock_new(const std::string& path, FileDescriptor& lock, const std::string& target) {
  const Locked locked = lock_temporary(path, lock);
  // A umask may forbid reading what we write.
  if (const int error = errno; locked == Locked::kUnopened && error != EACCES && error != ENOENT) {
    try_to_remove(path);
    fail_write(target, error, cat("opening ", path, ": "));
  }
  struct stat status {};
  return locked != Locked::kByAnother && (::lstat(path.c_str(), &status) == 0 || errno != ENOENT);
}

// True if `name` is BEGIN, a process and a counter, as temporary_name() makes it.
bool is_temporary(const std::string& name, const std::string& begin) {
  if (!name.starts_with(begin)) return false;
  const std::size_t dash = name.find('-', begin.size());
  const auto digits = [&](std::size_t from, std::size_t to) {
    return from < to && name.find_first_not_of("0123456789", from) >= to;
  };
  return dash != std::string::npos && digits(begin.size(), dash) && digits(dash + 1, name.size());
}

// Removes what dead jobs left of this target. What cannot be removed is left alone.
void sweep(const Place& place) {
  const std::string begin = cat(".", place.name.substr(0, kLongest), ".tmp.");
  if (!exists(place.directory)) return;  // said with the file's name when it is made
  for (const std::string& name : names_in(place.directory)) {
    if (!is_temporary(name, begin)) continue;
    const std::string path = join({place.directory, name});
    FileDescriptor lock;
    if (lock_temporary(path, lock) != Locked::kYes) continue;
    log_info(cat("removing ", printable(path), ", which a job that died left"));
    try_to_remove(path);
  }
}

}  // namespace

PendingFile::PendingFile(std::string target, Existing existing)
    : target_(std::move(target)), existing_(existing) {
  const Place place = split(target_);
  const Found found = what_is(target_);
  if (found == Found::kDirectory) {
    throw UsageError(cat("cannot write ", target_, ": it is a directory"));
  }
  if (found != Found::kNothing && existing == Existing::kRefuse) {
    refuse_existing(target_);
  }
  // Where a link leads to a device, writing there is meant, which is not what a rename does.
  struct stat status {};
  const bool special =
      found == Found::kLink && ::stat(target_.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
  if (found == Found::kOther || special) {
    throw UsageError(cat("cannot write ", target_, ": it is not a regular file"));
  }
  if (target_.back() == '/') {
    throw UsageError(cat("cannot write ", target_, ": expected the name of a file"));
  }
  sweep(place);
  for (int attempt = 0; attempt < kNames; ++attempt) {
    temporary_ = temporary_name(place, "tmp", attempt);
    const int fd =
        ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd >= 0) {
      fd_ = FileDescriptor(fd);
      if (lock_new(temporary_, lock_, target_)) return;
      continue;
    }
    if (errno != EEXIST && errno != EINTR) {
      fail_write(target_, errno, cat("creating ", temporary_, ": "));
    }
  }
  fail_write(target_, EEXIST, cat("creating ", temporary_, ": "));
}

PendingFile::~PendingFile() {
  if (!committed_ && ::unlink(temporary_.c_str()) != 0 && errno != ENOENT) {
    try {
      log_warning(cat("cannot remove ", temporary_, ": ", std::strerror(errno)));
    } catch (const std::exception&) {  // no memory for a warning
    }
  }
}

void PendingFile::write(std::string_view bytes) {
  write_fully(fd_.get(), bytes.data(), bytes.size(), target_);
}

void PendingFile::write_at(std::uint64_t offset, std::string_view bytes) {
  write_fully_at(fd_.get(), bytes.data(), bytes.size(), offset, target_);
}

void PendingFile::commit() {
  MT_ASSERT(!committed_);
  sync_file(fd_.get(), target_);
  fd_.close(target_);
  if (existing_ == Existing::kReplace) {
    if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
      fail_write(target_, errno, "renaming " + temporary_ + ": ");
    }
  } else if (const int error = rename_no_replace(temporary_, target_); error == EEXIST) {
    refuse_existing(target_);
  } else if (error != 0) {
    fail_write(target_, error, "renaming " + temporary_ + ": ");
  }
  committed_ = true;
  sync_directory(split(target_).directory);
}

PendingDirectory::PendingDirectory(std::string target, PendingFile::Existing existing)
    : target_(std::move(target)), existing_(existing) {
  const Place place = split(target_);
  target_ = join(place);
  const Found found = what_is(target_);
  if (found != Found::kNothing && existing == PendingFile::Existing::kRefuse) {
    refuse_existing(target_);
  }
  if (found != Found::kNothing && found != Found::kDirectory) {
    throw UsageError(cat("cannot write ", target_, ": it is not a directory"));
  }
  sweep(place);
  for (int attempt = 0; attempt < kNames; ++attempt) {
    temporary_ = temporary_name(place, "tmp", attempt);
    if (::mkdir(temporary_.c_str(), 0777) == 0) {
      if (lock_new(temporary_, lock_, target_)) return;
      continue;
    }
    if (errno != EEXIST) {
      break;
    }
  }
  fail_write(target_, errno, cat("creating ", temporary_, ": "));
}

PendingDirectory::~PendingDirectory() {
  if (committed_) return;
  try {
    try_to_remove(temporary_);
  } catch (const std::exception&) {  // no memory to walk it: the next job with this target does
  }
}

void PendingDirectory::commit() {
  MT_ASSERT(!committed_);
  const Place place = split(target_);
  sync_directory(temporary_);
  std::string old;  // where the former target lies afterwards
  int error = rename_no_replace(temporary_, target_);
  if (error == EEXIST && existing_ == PendingFile::Existing::kRefuse) {
    refuse_existing(target_);
  }
  if (error == EEXIST) {
    error = ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target_.c_str(), kExchange) == 0
                ? 0
                : errno;
    old = temporary_;
  }
  if (error == EINVAL || error == ENOSYS) {  // a filesystem that cannot exchange
    old = temporary_name(place, "old", 0);
    error = rename_no_replace(target_, old);
    if (error == 0 && (error = rename_no_replace(temporary_, target_)) != 0 &&
        rename_no_replace(old, target_) != 0) {
      log_error(cat("the former ", target_, " is now ", old));
    }
  }
  if (error != 0) {
    fail_write(target_, error, "renaming " + temporary_ + ": ");
  }
  try {
    sync_directory(place.directory);
  } catch (const EnvironmentError&) {
    // The former directory goes back if it is still there under the temporary name.
    committed_ = old != temporary_ || ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD,
                                                  target_.c_str(), kExchange) != 0;
    throw;
  }
  committed_ = true;
  if (!old.empty()) {
    try_to_remove(old);
  }
}

}  // namespace mt
