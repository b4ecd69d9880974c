// What a directory holds, and its removal. Not std::filesystem's: its iterator ends the process
// where there is no memory.
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/commit.h"
#include "base/error.h"

namespace mt {
namespace {

[[noreturn]] void fail(const char* doing, const std::string& path) {
  const int error = errno;
  throw EnvironmentError(cat("cannot ", doing, " ", path, ": ", std::strerror(error)));
}

FileDescriptor open_directory(int folder, const std::string& name, int flags) {
  return FileDescriptor(::openat(folder, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags));
}

struct CloseDirectory {
  void operator()(DIR* stream) const { ::closedir(stream); }
};

std::vector<std::string> names_of(const FileDescriptor& directory, const std::string& path) {
  FileDescriptor own(::fcntl(directory.get(), F_DUPFD_CLOEXEC, 3));
  const std::unique_ptr<DIR, CloseDirectory> stream(own.valid() ? ::fdopendir(own.get()) : nullptr);
  if (stream == nullptr) fail("read", path);
  static_cast<void>(own.release());  // the stream's
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(stream.get());
    if (entry == nullptr) break;
    const std::string name = static_cast<const char*>(entry->d_name);
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) fail("read", path);
  std::sort(names.begin(), names.end());
  return names;
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as the directories are
void remove_at(int folder, const std::string& name, const std::string& path) {
  if (::unlinkat(folder, name.c_str(), 0) == 0 || errno == ENOENT) return;
  if (errno != EISDIR && errno != EPERM) fail("remove", path);
  const FileDescriptor directory = open_directory(folder, name, O_NOFOLLOW);
  if (!directory.valid()) fail("remove", path);
  for (const std::string& inner : names_of(directory, path)) {
    remove_at(directory.get(), inner, path + "/" + inner);
  }
  if (::unlinkat(folder, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) fail("remove", path);
}

}  // namespace

std::vector<std::string> names_in(const std::string& directory) {
  const FileDescriptor fd = open_directory(AT_FDCWD, directory, 0);
  if (!fd.valid()) fail("read", directory);
  return names_of(fd, directory);
}

void remove_tree(const std::string& path) {
  remove_at(AT_FDCWD, path, path);
}

}  // namespace mt
