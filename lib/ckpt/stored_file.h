// Files of a checkpoint directory, opened below it and hashed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/commit.h"
#include "ckpt/manifest.h"

namespace mt {

// A directory that stays the same one while it is open, whatever happens to its name.
class OpenDirectory {
 public:
  // Throws EnvironmentError if there is none, DataError for what is no directory.
  explicit OpenDirectory(const std::string& path);
  [[nodiscard]] const std::string& path() const { return path_; }
  // Opens a regular file for reading; `name` is a checked name, at most one folder deep. Follows
  // no symbolic link. Throws DataError (missing, no regular file), EnvironmentError
  // (the system fails).
  [[nodiscard]] FileDescriptor open(const std::string& name) const;
  // The same, its size compared with the manifest's: DataError "truncated".
  [[nodiscard]] FileDescriptor open(const std::string& name, std::uint64_t bytes) const;

 private:
  std::string path_;
  FileDescriptor fd_;
};

// XXH3-128 over the bytes of a file outside the boxes, which are sorted and do not overlap.
[[nodiscard]] Digest128 hash_outside(int fd, const std::string& path, std::uint64_t bytes,
                                     const std::vector<const StoredBox*>& boxes);

// Throws DataError naming file and tensor if the hash found is not the box's.
void check_box(const std::string& path, const std::string& tensor, const StoredBox& box,
               const Digest128& found);

}  // namespace mt
