// A virtual file driver for HDF5 that latches the first error and then pretends success.
//
// HDF5 1.10 cannot close a file whose disk is full: H5Fclose fails, and the library crashes when
// the process ends. So this driver does its own writing, remembers the first failure, swallows what
// follows, and lets HDF5 finish in peace; the caller looks at the latch after H5Fclose.
#pragma once

#include <cstdint>
#include <string>

namespace mt {

// A file under the driver, and what went wrong with it first.
struct LatchedFile {
  int fd = -1;
  std::string path;  // for messages
  int error = 0;     // errno of the first failure, 0 if there was none
  std::uint64_t error_offset = 0;
  const char* error_call = "";

  // Throws EnvironmentError naming path, offset and reason if something failed.
  void check() const;
};

// A property list (an hid_t, which the caller closes with H5Pclose) with which H5Fcreate writes to
// *file, which must outlive the HDF5 file. The descriptor stays the caller's. Throws
// EnvironmentError if HDF5 refuses.
[[nodiscard]] std::int64_t latching_access(LatchedFile* file);

}  // namespace mt
