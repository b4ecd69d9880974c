// What the sources of the product share. See gemm.cc.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace mt::cpu::MT_KERNEL_SET::product {

// Products with this many rows go through few_rows(): they are bound by reading b once, and packing
// would read and write it again. Where b is not transposed (backward), with fewer.
inline constexpr std::int64_t kFewRows = 16;
inline constexpr std::int64_t kFewRowsOfPlain = 4;

// The product for g.m <= kFewRows, or kFewRowsOfPlain, on at most `threads` threads. The same bits
// as the packed path.
void few_rows(const Gemm& g, int threads);

// After the last step of the contraction, for rows [i, i + rows) and columns [j, j + cols) of c,
// while they are in the cache: bias, residual, GELU.
void finish(const Gemm& g, std::int64_t i, std::int64_t j, std::int64_t rows, std::int64_t cols);

}  // namespace mt::cpu::MT_KERNEL_SET::product
