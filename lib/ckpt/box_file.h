// One HDF5 file of boxes while it is written: HDF5 lays it out and ends, then the elements are
// written and hashed in one pass, each box by itself.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/commit.h"
#include "base/hash.h"
#include "ckpt/manifest.h"

namespace mt {

// Where a box goes in the whole.
struct BoxPlace {
  std::string name;
  Shape global_shape, offset, extent;
  DType dtype = DType::kF32;
  bool optimizer = false;
};

// The data set of a box: /model/NAME, /optimizer/NAME; /model/NAME@1 for a tensor's second box in
// the file.
[[nodiscard]] std::string data_set_name(const std::string& tensor, bool optimizer,
                                        std::size_t index);

// Attributes of the root of each HDF5 file of a checkpoint.
class Hdf5Writer;
void describe_file(Hdf5Writer& writer, std::int64_t iteration);

// A new file. Throws EnvironmentError.
[[nodiscard]] FileDescriptor create_file(const std::string& path);

class BoxFile {
 public:
  // Creates FOLDER/NAME and lays it out: sorted by name and offset, so that equal boxes give equal
  // bytes. Throws EnvironmentError.
  BoxFile(const std::string& folder, std::string name, std::int64_t iteration,
          std::vector<BoxPlace> boxes);

  [[nodiscard]] const std::vector<BoxPlace>& boxes() const { return boxes_; }  // as they lie
  [[nodiscard]] const std::string& name() const { return name_; }
  // The next bytes of a box, in their order. Different boxes may be written by different threads.
  void append(std::size_t box, const void* data, std::size_t bytes);
  // When all bytes are there: synchronises the file and notes it with its boxes in the manifest,
  // but for the tensors' digests.
  void finish(Manifest& manifest);

 private:
  struct Written {
    std::uint64_t byte_offset = 0, bytes = 0;
    std::uint64_t done = 0;  // bytes written
    StreamHash hash;
  };
  std::string name_, path_;
  FileDescriptor fd_;
  std::vector<BoxPlace> boxes_;
  std::vector<Written> written_;
  std::atomic<std::uint64_t> waiting_{0};  // bytes that the disk was not asked to take yet
};

}  // namespace mt
