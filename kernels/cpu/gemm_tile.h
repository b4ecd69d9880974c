// The register tile of the product: kTileRows x kTileCols elements of c, each one chain of fused
// multiply-adds in the order of the contraction, whose panels of a and b lie packed in memory
// (gemm_pack.h). Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM
// TOMS 34 (2008), section 4; Van Zee and van de Geijn, "BLIS", ACM TOMS 41 (2015), for the tile.
#pragma once

#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace mt::cpu::MT_KERNEL_SET::product {

// The rows are as many as leave registers for two vectors of b and one element of a.
#if defined(__AVX512F__)
using Vector = __m512;
inline constexpr int kLanes = 16;
inline constexpr int kTileRows = 14;
static inline Vector load(const float* p) {
  return _mm512_loadu_ps(p);
}
static inline void store(float* p, Vector v) {
  _mm512_storeu_ps(p, v);
}
static inline Vector broadcast(float x) {
  return _mm512_set1_ps(x);
}
static inline Vector fma(Vector a, Vector b, Vector c) {
  return _mm512_fmadd_ps(a, b, c);
}
#elif defined(__AVX2__)
using Vector = __m256;
inline constexpr int kLanes = 8;
inline constexpr int kTileRows = 6;
static inline Vector load(const float* p) {
  return _mm256_loadu_ps(p);
}
static inline void store(float* p, Vector v) {
  _mm256_storeu_ps(p, v);
}
static inline Vector broadcast(float x) {
  return _mm256_set1_ps(x);
}
static inline Vector fma(Vector a, Vector b, Vector c) {
  return _mm256_fmadd_ps(a, b, c);
}
#else
struct Vector {
  float lane[4];
};
inline constexpr int kLanes = 4;
inline constexpr int kTileRows = 4;
static inline Vector load(const float* p) {
  return {{p[0], p[1], p[2], p[3]}};
}
static inline void store(float* p, Vector v) {
  for (int i = 0; i < kLanes; ++i) {
    p[i] = v.lane[i];
  }
}
static inline Vector broadcast(float x) {
  return {{x, x, x, x}};
}
static inline Vector fma(Vector a, Vector b, Vector c) {
  for (int i = 0; i < kLanes; ++i) {
    c.lane[i] = __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]);
  }
  return c;
}
#endif
inline constexpr int kTileCols = 2 * kLanes;

// c[R, kTileCols] = (zero ? 0 : c) + a b over kc steps of the contraction. a: packed panel, step p
// at a + p * kTileRows; b: packed panel, step p at b + p * kTileCols. ldc counts elements.
template <int R>
static void tile(std::int64_t kc, const float* a, const float* b, float* c, std::int64_t ldc,
                 bool zero) {
  Vector sum[R][2];
  // The next tile below.
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    __builtin_prefetch(c + (r + kTileRows) * ldc, 1);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    sum[r][0] = zero ? broadcast(0.0F) : load(c + r * ldc);
    sum[r][1] = zero ? broadcast(0.0F) : load(c + r * ldc + kLanes);
  }
#pragma GCC unroll 4
  for (std::int64_t p = 0; p < kc; ++p) {
    const Vector b0 = load(b);
    const Vector b1 = load(b + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vector x = broadcast(a[r]);
      sum[r][0] = fma(x, b0, sum[r][0]);
      sum[r][1] = fma(x, b1, sum[r][1]);
    }
    a += kTileRows;
    b += kTileCols;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    store(c + r * ldc, sum[r][0]);
    store(c + r * ldc + kLanes, sum[r][1]);
  }
}

using TileFunction = void (*)(std::int64_t, const float*, const float*, float*, std::int64_t, bool);

// The tile for 1 <= rows <= kTileRows.
template <int R = kTileRows>
static TileFunction tile_of(int rows) {
  if constexpr (R > 1) {
    if (rows < R) {
      return tile_of<R - 1>(rows);
    }
  }
  return tile<R>;
}

}  // namespace mt::cpu::MT_KERNEL_SET::product
