// Copies a block of an operand into panels: `width` neighbouring rows of a (or columns of b) side
// by side for each step of the contraction, so that the register tile reads memory in order.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm_tile.h"

namespace mt::cpu::MT_KERNEL_SET::product {

constexpr std::int64_t least(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
constexpr std::int64_t parts_of(std::int64_t count, std::int64_t part) {
  return (count + part - 1) / part;
}

// A block of an operand as the product sees it: `count` rows of a or columns of b, each with
// `steps` elements of the contraction. Element (i, p) lies at
//   data[i * ld + p]  if steps_contiguous (a as it stands, or b transposed), else
//   data[p * ld + i].
struct Operand {
  const float* data;
  std::int64_t ld;
  bool steps_contiguous;
  std::int64_t count;
  std::int64_t steps;
};

// Elements from one panel to the next. A panel may be written a little past its end.
constexpr std::int64_t panel_stride(std::int64_t width, std::int64_t steps) {
  constexpr std::int64_t kSlack = 8;
  return (width * steps + kSlack + 15) / 16 * 16;
}

// Packs the panels [first, last) of the operand: panel i has its rows i * width ... of `width`,
// step p of panel i at out + i * panel_stride(width, steps) + p * width. Places beyond `count` hold
// something.
void pack_a(const Operand& a, std::int64_t first, std::int64_t last, float* out);  // kTileRows wide
void pack_b(const Operand& b, std::int64_t first, std::int64_t last, float* out);  // kTileCols wide

// A block of a weight in bf16 whose steps are contiguous; its panels (kTileCols wide) from the
// first on are packed as pack_b packs them, widened.
struct Bf16Operand {
  const std::uint16_t* data;
  std::int64_t ld;
  std::int64_t count;
  std::int64_t steps;
};
void pack_b_bf16(const Bf16Operand& b, std::int64_t panels, float* out);

// The f32 of a bf16.
static inline float widened(std::uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
}

#if defined(__AVX2__)
// 8 rows of 8 steps, row i at rows[i]: out[p] gets step p of the eight rows.
static inline void transpose_8x8(const float* const* rows, std::int64_t step, __m256* out) {
#pragma GCC unroll 2
  for (int half = 0; half < 8; half += 4) {
    __m256 t[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(rows[i] + step + half)),
                                  _mm_loadu_ps(rows[i + 4] + step + half), 1);
    }
    const __m256 low0 = _mm256_unpacklo_ps(t[0], t[1]);
    const __m256 high0 = _mm256_unpackhi_ps(t[0], t[1]);
    const __m256 low1 = _mm256_unpacklo_ps(t[2], t[3]);
    const __m256 high1 = _mm256_unpackhi_ps(t[2], t[3]);
    out[half + 0] = _mm256_shuffle_ps(low0, low1, 0x44);
    out[half + 1] = _mm256_shuffle_ps(low0, low1, 0xEE);
    out[half + 2] = _mm256_shuffle_ps(high0, high1, 0x44);
    out[half + 3] = _mm256_shuffle_ps(high0, high1, 0xEE);
  }
}

// Of eight pairs of bf16 the first and the second, widened.
static inline __m256 low_of_pairs(__m256 pairs) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
}
static inline __m256 high_of_pairs(__m256 pairs) {
  return _mm256_and_ps(pairs,
                       _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0xFFFF0000U))));
}

// The same for 8 rows of 16 steps in bf16, widened to f32: a pair of steps moves as one float does.
static inline void transpose_8x16_bf16(const std::uint16_t* const* rows, std::int64_t step,
                                       __m256* out) {
  const float* pairs[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    pairs[i] = reinterpret_cast<const float*>(rows[i] + step);
  }
  __m256 t[8];
  transpose_8x8(pairs, 0, t);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    out[2 * i] = low_of_pairs(t[i]);
    out[2 * i + 1] = high_of_pairs(t[i]);
  }
}
#endif

}  // namespace mt::cpu::MT_KERNEL_SET::product
