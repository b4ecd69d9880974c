// The 16-bit floating types as their bits: bf16 (the upper half of an f32) and f16 (IEEE 754
// binary16). Widening is exact. Rounding is to the nearest, ties to the even neighbour; beyond the
// largest number is infinity; a NaN stays a NaN of its sign.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace mt {

[[nodiscard]] std::uint16_t to_bf16(float x);
[[nodiscard]] float from_bf16(std::uint16_t bits);
[[nodiscard]] std::uint16_t to_f16(float x);
[[nodiscard]] float from_f16(std::uint16_t bits);

// `count` elements from one of f32, bf16, f16 to another, by way of f32: at most one rounding. Both
// at any alignment; they do not overlap, unless they are the same and of one size. Throws
// UsageError for other types.
void convert_floats(const void* from, DType from_type, void* to, DType to_type, std::size_t count);

// The first of `count` finite elements that is infinite in the other type; count if none is. Throws
// UsageError for types other than those.
[[nodiscard]] std::size_t first_beyond(const void* from, DType from_type, DType to_type,
                                       std::size_t count);

}  // namespace mt
