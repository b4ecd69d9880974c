// HDF5 files: written so that a full disk is an error and not a crash, read in plain typed form.
//
// Data sets are contiguous and unfiltered, object times are off: equal content gives equal bytes,
// and whoever knows a data set's byte range reads it without this library.
//
// The HDF5 library is built without threads: whatever calls it holds the one lock of the process
// while it does (Hdf5Lock of hdf5_handle.h), so several threads may have files of their own here.
// An object is used by one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/commit.h"
#include "base/dtype.h"
#include "tensor/tensor.h"

namespace mt {

// "1.10.8".
[[nodiscard]] std::string hdf5_version();

// Elements of a data set, little-endian. bf16 is the named type /bfloat16 of the file, which h5dump
// and h5py show as numbers.
enum class FileType : std::uint8_t { kF32, kBf16, kF16, kF64, kI32, kU16, kU8, kI64, kU64 };
[[nodiscard]] FileType file_type(DType dtype);

// Where the elements of a data set lie in the file: bytes from its very beginning, user block
// included. An empty data set has offset 0.
struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// A part of a virtual data set: the whole of a data set of another file, shown at `offset`.
struct VirtualPart {
  std::string file;      // a name beside the file that is written
  std::string data_set;  // a path in that file
  Shape offset, extent;
};

// Writes one new file through a descriptor that is open for reading and writing and empty. Names
// are paths ("/tokens", "model/wte.weight"); missing groups are created. Data is written straight
// from the caller's memory. Every function but close() may delay an error of the system to a later
// call; all throw EnvironmentError with path, offset and reason. Neither syncs nor renames:
// PendingFile does.
class Hdf5Writer {
 public:
  // user_block: bytes in front that HDF5 leaves alone, 0 or a power of two from 512; the caller
  // fills it after close(). The file must outlive the writer.
  Hdf5Writer(const PendingFile& file, std::uint64_t user_block);
  // The same for a descriptor; `path` is for messages.
  Hdf5Writer(int fd, const std::string& path, std::uint64_t user_block);
  ~Hdf5Writer();  // without close() the file is not usable
  Hdf5Writer(const Hdf5Writer&) = delete;
  Hdf5Writer& operator=(const Hdf5Writer&) = delete;

  // A whole data set; `data` is dense and row-major. Shape {} is one scalar. The name must be new.
  void write(const std::string& name, FileType type, const Shape& shape, const void* data);
  // The same in pieces: create() reserves the space, write_rows() fills rows [first, first + rows)
  // of the first dimension. Rows that are never written hold whatever the file system gives
  // (zeros).
  void create(const std::string& name, FileType type, const Shape& shape);
  void write_rows(const std::string& name, std::int64_t first, std::int64_t rows, const void* data);
  // One UTF-8 string of fixed length. Its byte range is the text.
  void write_text(const std::string& name, std::string_view text);
  // A data set that shows parts of other files.
  void write_virtual(const std::string& name, FileType type, const Shape& shape,
                     const std::vector<VirtualPart>& parts);

  // Attributes of an object ("/" is the root). Strings are UTF-8 of fixed length; with its header
  // an attribute may take 64 KiB, so long texts are data sets.
  void attribute(const std::string& object, const std::string& name, std::string_view text);
  void attribute(const std::string& object, const std::string& name, std::int64_t value);
  void attribute(const std::string& object, const std::string& name, double value);
  void attribute(const std::string& object, const std::string& name,
                 std::span<const std::int64_t> values);
  void attribute(const std::string& object, const std::string& name, const char* text) {
    attribute(object, name, std::string_view(text));
  }

  // Where a data set lies, as soon as it was created.
  [[nodiscard]] ByteRange range(const std::string& name) const;
  // Finishes the file; the byte ranges of all data sets but virtual ones, by absolute name
  // ("/tokens").
  std::map<std::string, ByteRange> close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Plain typed reading of files that we trust, such as golden numbers and our own; never the way
// into a checkpoint or shard. External links, external storage and virtual data sets are refused
// all the same. Throws EnvironmentError (missing), DataError (anything else; names file and
// object).
class Hdf5Reader {
 public:
  explicit Hdf5Reader(const std::string& path);
  ~Hdf5Reader();
  Hdf5Reader(Hdf5Reader&&) noexcept;

  // Absolute names of all data sets below `group`, sorted.
  [[nodiscard]] std::vector<std::string> names(const std::string& group = "/") const;
  [[nodiscard]] bool contains(const std::string& name) const;  // an object of any kind
  [[nodiscard]] Shape shape(const std::string& name) const;    // {} for a scalar
  // All elements of a data set of numbers of any type, converted. T: float, double, std::int32_t,
  // std::int64_t, std::uint16_t, std::uint8_t.
  template <typename T>
  [[nodiscard]] std::vector<T> read(const std::string& name) const;
  // A scalar string data set, of fixed or variable length.
  [[nodiscard]] std::string text(const std::string& name) const;

  // Attributes of an object ("/" is the root).
  [[nodiscard]] bool has_attribute(const std::string& object, const std::string& name) const;
  [[nodiscard]] std::string text_attribute(const std::string& object,
                                           const std::string& name) const;
  [[nodiscard]] double number_attribute(const std::string& object, const std::string& name) const;

  // Where a contiguous data set lies in the file. Throws DataError for other layouts.
  [[nodiscard]] ByteRange range(const std::string& name) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mt
