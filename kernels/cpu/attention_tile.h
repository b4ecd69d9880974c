// The small products inside attention, on packed tiles: c[rows, 16 panels] (+)= a b, each element
// one chain of fused multiply-adds in the order of the contraction.
#pragma once

#include "kernels/cpu/vector.h"

namespace mt::cpu::MT_KERNEL_SET {

// Element (r, k) of a lies at a + r * a_row + k * a_step; row k of 16 columns of b at b + k *
// b_row, the next 16 columns b_panel further; row r of c at c + r * c_row. Columns go in whole
// lanes.
struct Tile {
  const float* a;
  std::int64_t a_row, a_step;
  const float* b;
  std::int64_t b_row, b_panel;
  float* c;
  std::int64_t c_row;
  std::int64_t depth;
};

// Rows and vectors of 16 columns that stay in registers: 12 of AVX2's 16, 16 of AVX-512's 32.
#if defined(__AVX512F__)
constexpr int kTileRows = 8, kTileVectors = 2;
#else
constexpr int kTileRows = 6, kTileVectors = 1;
#endif

enum class Start { kZero, kPresent };

template <int kRows, int kVectors, Start kStart>
inline void tile_block(const Tile& t) {
  Floats c[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) {
      c[r][j] = kStart == Start::kZero ? all(0.0F) : load(t.c + r * t.c_row + 16 * j);
    }
  }
  const float* a = t.a;
  const float* b = t.b;
  for (std::int64_t k = 0; k < t.depth; ++k) {
    Floats bk[kVectors];
    for (int j = 0; j < kVectors; ++j) {
      bk[j] = load(b + j * t.b_panel);
    }
    for (int r = 0; r < kRows; ++r) {
      const Floats ar = all(a[r * t.a_row]);
      for (int j = 0; j < kVectors; ++j) {
        c[r][j] = fma(ar, bk[j], c[r][j]);
      }
    }
    a += t.a_step;
    b += t.b_row;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) {
      store(t.c + r * t.c_row + 16 * j, c[r][j]);
    }
  }
}

// The last rows, fewer than kRows + 1.
template <int kRows, int kVectors, Start kStart>
inline void tile_rows(const Tile& t, std::int64_t rows) {
  if (rows == kRows) {
    tile_block<kRows, kVectors, kStart>(t);
  } else if constexpr (kRows > 1) {
    tile_rows<kRows - 1, kVectors, kStart>(t, rows);
  }
}

template <int kVectors, Start kStart>
inline void tile_columns(Tile t, std::int64_t rows) {
  for (; rows > kTileRows; rows -= kTileRows) {
    tile_block<kTileRows, kVectors, kStart>(t);
    t.a += kTileRows * t.a_row;
    t.c += kTileRows * t.c_row;
  }
  tile_rows<kTileRows, kVectors, kStart>(t, rows);
}

// The whole product; columns is a multiple of 16. b's panel of one pass stays in the first cache.
template <Start kStart>
inline void tile_product(Tile t, std::int64_t rows, std::int64_t columns) {
  while (columns >= 16 * kTileVectors) {
    tile_columns<kTileVectors, kStart>(t, rows);
    t.b += kTileVectors * t.b_panel;
    t.c += 16 * kTileVectors;
    columns -= 16 * kTileVectors;
  }
  if constexpr (kTileVectors > 1) {
    for (; columns > 0; columns -= 16) {
      tile_columns<1, kStart>(t, rows);
      t.b += t.b_panel;
      t.c += 16;
    }
  }
}

// Rows of d floats, `stride` apart, to dense rows of `width` (d rounded up to 16) with zeros
// behind; rows absent of `total` become zeros.
inline void pack_rows(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t total,
                      std::int64_t d, std::int64_t width, float* to) {
  for (std::int64_t r = 0; r < rows; ++r) {
    sweep(0, d, [&](std::int64_t i, auto part) {
      store(to + r * width + i, load(from + r * stride + i, part));
    });
  }
  for (std::int64_t i = rows * width; i < total * width; i += 16) {
    store(to + i, all(0.0F));
  }
}

// The same rows as columns, in 4 panels of 16: element (i, r) at to[(r / 16) * 16 d + 16 i + r %
// 16], zeros where a row is absent.
inline void pack_columns(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t d,
                         float* to) {
  for (std::int64_t r = 0; r < 64; r += 16) {
    for (std::int64_t i = 0; i < d; i += 16) {
      Floats m[16];
      const int lanes = d - i < 16 ? static_cast<int>(d - i) : 16;
      for (int k = 0; k < 16; ++k) {
        m[k] = r + k < rows ? load_part(from + (r + k) * stride + i, lanes) : all(0.0F);
      }
      transpose16(m);
      for (int k = 0; k < lanes; ++k) {
        store(to + r * d + (i + k) * 16, m[k]);
      }
    }
  }
}

}  // namespace mt::cpu::MT_KERNEL_SET
