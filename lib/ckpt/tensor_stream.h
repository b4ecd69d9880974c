// A stored tensor from its first row to its last, in whatever boxes it lies: every byte is read
// once, hashes and digest are verified on the way, and only a few rows are in memory.
//
// A row is an index of the first dimension. Rows of a box are contiguous in it, and go through in
// their order, so each box is hashed as it lies while the whole tensor passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/commit.h"
#include "base/hash.h"
#include "ckpt/checkpoint.h"
#include "ckpt/manifest.h"

namespace mt {

class TensorStream : public RowStream {
 public:
  // The reader must outlive it. most_bytes: of a band; one row is read whatever it is. Throws
  // DataError if there is no such tensor.
  TensorStream(const CheckpointReader& reader, const std::string& name, std::uint64_t most_bytes);

  // False when every hash and the digest were right.
  [[nodiscard]] bool next(Band& band) override;
  [[nodiscard]] Digest128 digest() const override { return tensor_.digest; }
  [[nodiscard]] const StoredTensor& tensor() const { return tensor_; }

 private:
  struct Source {
    const StoredBox* box;
    int fd;
    std::int64_t first, rows;  // of the tensor
    std::uint64_t row_bytes;
    StreamHash hash;
  };
  void read_rows(Source& source, std::int64_t first, std::int64_t end);
  void check_end() const;

  const CheckpointReader& reader_;
  std::string name_;
  const StoredTensor& tensor_;
  Shape rest_;  // of a row
  std::int64_t rows_, next_ = 0, band_rows_;
  std::uint64_t row_bytes_;
  std::map<std::string, FileDescriptor> files_;
  std::vector<Source> sources_;
  std::vector<std::byte> band_, piece_;
  BoxDigest digest_;
};

// Rows of a tensor's dimension 0 and the shape of one; a scalar is one row of one element.
struct RowShape {
  std::int64_t rows = 1;
  Shape rest;
  explicit RowShape(const Shape& shape);
};

// Copies a row of a box into its place in a row of the whole tensor, or back. Shapes are those of
// rows; the box lies inside.
void copy_row_of_box(const Shape& whole, const Shape& offset, const Shape& extent,
                     std::size_t element, const std::byte* box, std::byte* row);
void copy_row_to_box(const Shape& whole, const Shape& offset, const Shape& extent,
                     std::size_t element, const std::byte* row, std::byte* box);

}  // namespace mt
