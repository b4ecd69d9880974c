// Tensors in a GGUF file of version 3, the container only: magic, counts, keys with values, the
// tensors' names, shapes, types and places, then aligned elements. ggml-org/ggml, docs/gguf.md.
// What is read comes from elsewhere and is not trusted: every count is bounded by the bytes that
// are left, and tensors lie inside the file, aligned and without overlap.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/dtype.h"
#include "io/mapped_file.h"
#include "tensor/tensor.h"

namespace mt {

struct GgufTensor {
  Shape shape;  // the dimension that runs fastest last, as everywhere here
  DType type = DType::kF32;
  const std::byte* data = nullptr;  // while the reader lives; aligned as the file says
};

class GgufReader {
 public:
  // Throws EnvironmentError (missing, unreadable), DataError naming file and object: damage, or a
  // tensor of another type than f32, f16 and bf16.
  explicit GgufReader(const std::string& path);
  [[nodiscard]] const std::map<std::string, GgufTensor>& tensors() const { return tensors_; }
  // Values of general.architecture and other text, by key.
  [[nodiscard]] const std::map<std::string, std::string>& texts() const { return texts_; }

 private:
  MappedFile file_;
  std::map<std::string, GgufTensor> tensors_;
  std::map<std::string, std::string> texts_;
};

// True if the path is a file that begins with the magic.
[[nodiscard]] bool is_gguf(const std::string& path);

}  // namespace mt
