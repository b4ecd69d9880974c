// Tensors under our names that are read from the first row to the last: those of a checkpoint, or
// of another library's files that lie otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/hash.h"
#include "base/json.h"
#include "tensor/tensor.h"

namespace mt {

// One tensor on its way through. A row is an index of the first dimension.
class RowStream {
 public:
  virtual ~RowStream() = default;

  // Rows [first, first + rows), dense in the tensor's type; they stay until the next call.
  struct Band {
    std::int64_t first = 0, rows = 0;
    const std::byte* data = nullptr;
    std::uint64_t bytes = 0;
  };
  // The next band; false when all were given and all that can be verified was right. Throws
  // DataError naming the tensor (and the file) if it is not, EnvironmentError.
  [[nodiscard]] virtual bool next(Band& band) = 0;
  // tensor_digest of the whole, after next() returned false.
  [[nodiscard]] virtual Digest128 digest() const = 0;

 protected:
  RowStream() = default;
  RowStream(const RowStream&) = default;
  RowStream& operator=(const RowStream&) = default;
  RowStream(RowStream&&) = default;
  RowStream& operator=(RowStream&&) = default;
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  struct TensorInfo {
    Shape shape;
    DType dtype = DType::kF32;
    Digest128 digest;  // of a checkpoint; other formats have none
    bool optimizer = false;
  };
  [[nodiscard]] virtual const std::string& directory() const = 0;
  [[nodiscard]] virtual const Json& model() const = 0;  // configuration
  [[nodiscard]] virtual const std::map<std::string, TensorInfo>& tensors() const = 0;
  // False for a format that has no place for the optimizer's tensors.
  [[nodiscard]] virtual bool may_hold_optimizer() const = 0;
  // Reads a tensor in bands of at most so many bytes, though of one row at least. The source must
  // outlive the stream. Throws DataError if there is no such tensor, EnvironmentError.
  [[nodiscard]] virtual std::unique_ptr<RowStream> rows(const std::string& name,
                                                        std::uint64_t most_bytes) const = 0;
  // Verifies what is no tensor. Throws DataError naming it.
  virtual void check_carried() const = 0;

 protected:
  TensorSource() = default;
  TensorSource(const TensorSource&) = default;
  TensorSource& operator=(const TensorSource&) = default;
  TensorSource(TensorSource&&) = default;
  TensorSource& operator=(TensorSource&&) = default;
};

}  // namespace mt
