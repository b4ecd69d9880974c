// Element types of tensors and of the data sets that hold them. bf16 and f16 are stored as their 16
// bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace mt {

enum class DType : std::uint8_t { kF32, kBf16, kF16, kI32, kU16, kU8 };

[[nodiscard]] constexpr std::size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBf16:
    case DType::kF16:
    case DType::kU16:
      return 2;
    case DType::kU8:
      return 1;
  }
  return 0;
}

// The name used in manifests, messages and options: "f32", "bf16", "f16", "i32", "u16", "u8".
[[nodiscard]] constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBf16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI32:
      return "i32";
    case DType::kU16:
      return "u16";
    case DType::kU8:
      return "u8";
  }
  return "?";
}

}  // namespace mt
