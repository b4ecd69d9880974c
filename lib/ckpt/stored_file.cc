#include "ckpt/stored_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/log.h"

namespace mt {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;  // bytes read at a time

FileDescriptor open_at(int folder, const std::string& name, int flags, const std::string& path) {
  FileDescriptor fd(::openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | flags));
  if (!fd.valid()) {
    if (errno == ELOOP || errno == ENOTDIR) {
      throw DataError(cat("cannot read ", printable(path), ": expected ",
                          (flags & O_DIRECTORY) != 0 ? "a directory" : "a regular file",
                          ", found a link or something else"));
    }
    if (errno == ENOENT) {  // damage, not a failing system
      throw DataError(cat("cannot read ", printable(path), ": it is missing"));
    }
    throw EnvironmentError(cat("cannot read ", printable(path), ": ", std::strerror(errno)));
  }
  return fd;
}

}  // namespace

OpenDirectory::OpenDirectory(const std::string& path)
    : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (!fd_.valid() && (errno == ENOTDIR || errno == ELOOP)) {
    throw DataError(cat("cannot read ", printable(path),
                        ": expected a directory, found a file, a loop of links or something else"));
  }
  if (!fd_.valid()) {
    throw EnvironmentError(cat("cannot read ", printable(path), ": ", std::strerror(errno)));
  }
}

FileDescriptor OpenDirectory::open(const std::string& name) const {
  const std::string path = path_ + "/" + name;
  const std::size_t slash = name.find('/');
  FileDescriptor fd;
  if (slash == std::string::npos) {
    fd = open_at(fd_.get(), name, O_NONBLOCK, path);
  } else {
    const FileDescriptor folder = open_at(fd_.get(), name.substr(0, slash), O_DIRECTORY, path);
    fd = open_at(folder.get(), name.substr(slash + 1), O_NONBLOCK, path);
  }
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) {  // a failing system, which says nothing about the file
    throw EnvironmentError(cat("cannot read ", printable(path), ": ", std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    throw DataError(cat("cannot read ", printable(path), ": not a regular file"));
  }
  return fd;
}

FileDescriptor OpenDirectory::open(const std::string& name, std::uint64_t bytes) const {
  FileDescriptor fd = open(name);
  const std::string path = path_ + "/" + name;
  if (const std::uint64_t found = file_size(fd.get(), path); found != bytes) {
    throw DataError(cat(printable(path), found < bytes ? ": truncated: " : ": too long: ", found,
                        " of ", bytes, " bytes"));
  }
  return fd;
}

Digest128 hash_outside(int fd, const std::string& path, std::uint64_t bytes,
                       const std::vector<const StoredBox*>& boxes) {
  StreamHash hash;
  std::vector<char> buffer(std::min<std::uint64_t>(kPiece, bytes));
  std::uint64_t at = 0;
  const auto add_until = [&](std::uint64_t end) {
    while (at < end) {
      const std::size_t piece = std::min<std::uint64_t>(buffer.size(), end - at);
      read_fully_at(fd, buffer.data(), piece, at, path);
      hash.update(buffer.data(), piece);
      at += piece;
    }
  };
  for (const StoredBox* box : boxes) {
    add_until(box->byte_offset);
    at = box->byte_offset + box->bytes;
  }
  add_until(bytes);
  return hash.digest();
}

void check_box(const std::string& path, const std::string& tensor, const StoredBox& box,
               const Digest128& found) {
  if (found == box.hash) return;
  throw DataError(cat(path, ": tensor ", tensor, ": damaged: bytes ", box.byte_offset, " to ",
                      box.byte_offset + box.bytes, ": expected hash ", to_hex(box.hash), ", found ",
                      to_hex(found)));
}

}  // namespace mt
