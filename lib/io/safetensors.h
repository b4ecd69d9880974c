// Tensors in safetensors files, the container only: eight bytes of header length, a JSON header,
// then the elements. https://github.com/huggingface/safetensors (format section of its README).
// What is read comes from elsewhere and is not trusted: the header is bounded by 100 MB and by the
// file, and the tensors must cover the rest of the file once, without overlap or hole.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace mt {

struct ForeignTensor {
  std::string type;          // as written: "F32", "BF16", ...
  Shape shape;               // {} is one scalar
  std::size_t file = 0;      // index into files()
  std::uint64_t offset = 0;  // bytes from the beginning of that file
  std::uint64_t bytes = 0;
};

class SafetensorsReader {
 public:
  // `path` is a .safetensors file; or a directory with model.safetensors, or with
  // model.safetensors.index.json naming files in the same directory. Throws EnvironmentError
  // (missing, unreadable), DataError (not sound; names file, tensor, byte).
  explicit SafetensorsReader(const std::string& path);
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&&) noexcept;

  [[nodiscard]] const std::map<std::string, ForeignTensor>& tensors() const;
  [[nodiscard]] const std::vector<std::string>& files() const;  // paths
  // Throws DataError naming the tensor if there is none.
  [[nodiscard]] const ForeignTensor& info(const std::string& name) const;
  // The bytes as they lie in the file (mapped; valid while the reader lives; at any alignment).
  [[nodiscard]] const unsigned char* data(const std::string& name) const;
  // Rows [first, first + rows) of the first dimension, or the whole tensor, as f32. F32, BF16, F16
  // and F64 are converted (F64 rounded to nearest); other types throw DataError.
  void read_f32(const std::string& name, std::int64_t first, std::int64_t rows, float* out) const;
  [[nodiscard]] std::vector<float> read_f32(const std::string& name) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mt
