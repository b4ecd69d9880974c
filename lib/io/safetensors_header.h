// The header of a safetensors file that is to be written: names, types, shapes, and where the
// elements of each tensor go. https://github.com/huggingface/safetensors (format section of its
// README).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "tensor/tensor.h"

namespace mt {

struct SafetensorsEntry {
  std::string name;
  DType type = DType::kF32;  // f32, bf16 or f16
  Shape shape;
};

struct SafetensorsHeader {
  std::string bytes;                   // the file's first ones, a multiple of eight
  std::vector<std::uint64_t> offsets;  // of each tensor, from the beginning of the file
  std::uint64_t size = 0;              // of the whole file
};

// Tensors lie one after the other in the order given. Throws UsageError for another type and
// DataError for sizes that overflow.
[[nodiscard]] SafetensorsHeader safetensors_header(const std::vector<SafetensorsEntry>& entries);

}  // namespace mt
