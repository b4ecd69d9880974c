#include "io/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/commit.h"
#include "base/error.h"
#include "base/log.h"

namespace mt {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const FileDescriptor fd = open_regular(path);
  bytes_ = file_size(fd.get(), path);
  if (bytes_ == 0) throw DataError(cat(printable(path), ": truncated: no bytes"));
  data_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data_ == MAP_FAILED) {
    throw EnvironmentError(cat("cannot map ", printable(path), ": ", std::strerror(errno)));
  }
}

MappedFile::~MappedFile() {
  ::munmap(data_, bytes_);
}

bool is_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return S_ISREG(status.st_mode);
  if (errno == ENOENT || errno == ENOTDIR) return false;
  throw EnvironmentError(cat("cannot look at ", printable(path), ": ", std::strerror(errno)));
}

}  // namespace mt
