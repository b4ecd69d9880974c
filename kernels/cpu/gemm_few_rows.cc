// Products with few rows, as in decoding: b is read once, in the order in which it lies, and its
// vectors of neighbouring columns feed as many chains as there are lanes. The chains are those of
// gemm.cc.

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/parallel.h"

namespace mt::cpu::MT_KERNEL_SET::product {
namespace {

// a as M contiguous rows of k.
struct Rows {
  const float* data;
  std::int64_t ld;
};

inline float element(const float* b) {
  return *b;
}
inline float element(const std::uint16_t* b) {
  return widened(*b);
}

// One column of c whose b is contiguous along the contraction.
template <typename T>
void one_column(const Gemm& g, const Rows& a, std::int64_t j) {
  const T* const b = static_cast<const T*>(g.b) + j * g.ldb;
  for (std::int64_t i = 0; i < g.m; ++i) {
    float* const c = static_cast<float*>(g.c) + i * g.ldc + j;
    float sum = g.output == Output::kAdd ? *c : 0.0F;
    for (std::int64_t p = 0; p < g.k; ++p) {
      sum = __builtin_fmaf(a.data[i * a.ld + p], element(b + p), sum);
    }
    *c = sum;
  }
}

#if defined(__AVX2__)
// Groups of eight columns that are in work together: enough chains to hide the latency of one.
constexpr int kGroups = 2;
constexpr int kColumns = 8 * kGroups;
// Rows of a whose chains stay in registers.
constexpr int kChainRows = 4;

// Eight columns, some steps of which are turned around in registers: f(q, step q of the eight).
template <typename T>
constexpr int kTurned = sizeof(T) == 2 ? 16 : 8;
template <typename F>
[[gnu::always_inline]] inline void turn(const float* const* rows, std::int64_t p, const F& f) {
  __m256 step[8];
  transpose_8x8(rows, p, step);
#pragma GCC unroll 8
  for (int q = 0; q < 8; ++q) {
    f(q, step[q]);
  }
}
// A pair of steps moves as one float does, and is widened when it is wanted: 16 would not fit into
// the registers.
template <typename F>
[[gnu::always_inline]] inline void turn(const std::uint16_t* const* rows, std::int64_t p,
                                        const F& f) {
  const float* pairs[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    pairs[i] = reinterpret_cast<const float*>(rows[i] + p);
  }
  __m256 pair[8];
  transpose_8x8(pairs, 0, pair);
#pragma GCC unroll 8
  for (int q = 0; q < 8; ++q) {
    f(2 * q, low_of_pairs(pair[q]));
    f(2 * q + 1, high_of_pairs(pair[q]));
  }
}

// The rows of b for kColumns columns of c, and the lines of them that will be read next.
template <typename T, int kGroupsHere = kGroups>
struct Columns {
  const T* row[8 * kGroupsHere];
  std::int64_t k, next;  // elements of a row; from a row to the same one of the next columns

  Columns(const Gemm& g, std::int64_t j) : k(g.k), next(8 * kGroupsHere * g.ldb) {
    for (int i = 0; i < 8 * kGroupsHere; ++i) {
      row[i] = static_cast<const T*>(g.b) + (j + i) * g.ldb;
    }
  }
  // At step p, for eight rows: some lines ahead, at the end of the rows in the next ones.
  void prefetch(int group, std::int64_t p) const {
    constexpr std::int64_t kLine = 64 / sizeof(T);
    constexpr std::int64_t kAhead = 16 / kGroupsHere * kLine;  // 8 KB of all rows
    if (p % kLine != 0) return;
    const std::int64_t at = p + kAhead < k ? p + kAhead : p + kAhead - k + next;
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      __builtin_prefetch(row[group * 8 + i] + at);
    }
  }
};

// M <= kChainRows rows of c.
template <int M, typename T, int kHere = kGroups>
void columns_of_transposed(const Gemm& g, const Rows& a, std::int64_t j) {
  constexpr int kSteps = kTurned<T>;
  const Columns<T, kHere> b(g, j);
  float* const c = static_cast<float*>(g.c) + j;
  __m256 sum[M][kHere];
  for (int i = 0; i < M; ++i) {
    for (int group = 0; group < kHere; ++group) {
      sum[i][group] = g.output == Output::kAdd ? _mm256_loadu_ps(c + i * g.ldc + group * 8)
                                               : _mm256_setzero_ps();
    }
  }
  std::int64_t p = 0;
  for (; p + kSteps <= g.k; p += kSteps) {
#pragma GCC unroll 4
    for (int group = 0; group < kHere; ++group) {
      b.prefetch(group, p);
      turn(b.row + group * 8, p, [&](int q, __m256 step) {
#pragma GCC unroll 4
        for (int i = 0; i < M; ++i) {
          const __m256 x = _mm256_broadcast_ss(a.data + i * a.ld + p + q);
          sum[i][group] = _mm256_fmadd_ps(x, step, sum[i][group]);
        }
      });
    }
  }
  for (; p < g.k; ++p) {
    for (int group = 0; group < kHere; ++group) {
      float step[8];
      for (int i = 0; i < 8; ++i) {
        step[i] = element(b.row[group * 8 + i] + p);
      }
      for (int i = 0; i < M; ++i) {
        const __m256 x = _mm256_broadcast_ss(a.data + i * a.ld + p);
        sum[i][group] = _mm256_fmadd_ps(x, _mm256_loadu_ps(step), sum[i][group]);
      }
    }
  }
  for (int i = 0; i < M; ++i) {
    for (int group = 0; group < kHere; ++group) {
      _mm256_storeu_ps(c + i * g.ldc + group * 8, sum[i][group]);
    }
  }
}

// R rows of c += a times `steps` steps of kColumns columns that lie packed.
template <int R>
void chain_rows(const float* a, std::int64_t lda, const float* packed, std::int64_t steps, float* c,
                std::int64_t ldc) {
  __m256 sum[R][kGroups];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    sum[r][0] = _mm256_loadu_ps(c + r * ldc);
    sum[r][1] = _mm256_loadu_ps(c + r * ldc + 8);
  }
#pragma GCC unroll 2
  for (std::int64_t p = 0; p < steps; ++p) {
    const __m256 b0 = _mm256_load_ps(packed + p * kColumns);
    const __m256 b1 = _mm256_load_ps(packed + p * kColumns + 8);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256 x = _mm256_broadcast_ss(a + r * lda + p);
      sum[r][0] = _mm256_fmadd_ps(x, b0, sum[r][0]);
      sum[r][1] = _mm256_fmadd_ps(x, b1, sum[r][1]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    _mm256_storeu_ps(c + r * ldc, sum[r][0]);
    _mm256_storeu_ps(c + r * ldc + 8, sum[r][1]);
  }
}
using ChainRows = void (*)(const float*, std::int64_t, const float*, std::int64_t, float*,
                           std::int64_t);
constexpr int kMostChainRows = 6;
constexpr ChainRows kChainRowsOf[kMostChainRows] = {chain_rows<1>, chain_rows<2>, chain_rows<3>,
                                                    chain_rows<4>, chain_rows<5>, chain_rows<6>};

// More rows of c than that: some steps at a time are turned around into the first cache, and the
// rows take them from there by turns.
template <typename T>
void columns_of_more_rows(const Gemm& g, const Rows& a, std::int64_t j) {
  constexpr std::int64_t kBlock = 128;
  alignas(32) float packed[kBlock * kColumns];
  const Columns<T> b(g, j);
  float* const c = static_cast<float*>(g.c) + j;
  for (std::int64_t i = 0; i < g.m && g.output == Output::kOverwrite; ++i) {
    _mm256_storeu_ps(c + i * g.ldc, _mm256_setzero_ps());
    _mm256_storeu_ps(c + i * g.ldc + 8, _mm256_setzero_ps());
  }
  const std::int64_t turns = parts_of(g.m, kMostChainRows);
  for (std::int64_t begin = 0; begin < g.k; begin += kBlock) {
    const std::int64_t steps = least(kBlock, g.k - begin);
    constexpr int kSteps = kTurned<T>;
    std::int64_t p = 0;
    for (; p + kSteps <= steps; p += kSteps) {
      for (int group = 0; group < kGroups; ++group) {
        b.prefetch(group, begin + p);
        turn(b.row + group * 8, begin + p, [&](int q, __m256 step) {
          _mm256_store_ps(packed + (p + q) * kColumns + group * 8, step);
        });
      }
    }
    for (; p < steps; ++p) {
      for (int i = 0; i < kColumns; ++i) {
        packed[p * kColumns + i] = element(b.row[i] + begin + p);
      }
    }
    for (std::int64_t turn_of = 0; turn_of < turns; ++turn_of) {
      const std::int64_t first = turn_of * g.m / turns;
      const std::int64_t rows = (turn_of + 1) * g.m / turns - first;
      kChainRowsOf[rows - 1](a.data + first * a.ld + begin, a.ld, packed, steps, c + first * g.ldc,
                             g.ldc);
    }
  }
}

template <typename T>
void columns_of_all_rows(const Gemm& g, const Rows& a, std::int64_t j) {
  switch (g.m) {
    case 1:
      return columns_of_transposed<1, T>(g, a, j);
    case 2:
      return columns_of_transposed<2, T>(g, a, j);
    case 3:
      return columns_of_transposed<3, T>(g, a, j);
    case kChainRows:
      return columns_of_transposed<kChainRows, T>(g, a, j);
    default:
      return columns_of_more_rows<T>(g, a, j);
  }
}
#else
constexpr int kColumns = 16;
template <typename T>
void columns_of_all_rows(const Gemm& g, const Rows& a, std::int64_t j) {
  for (int i = 0; i < kColumns; ++i) {
    one_column<T>(g, a, j + i);
  }
}
#endif

// Columns [j, end) of c.
template <typename T>
void transposed_columns(const Gemm& g, const Rows& a, std::int64_t j, std::int64_t end) {
  std::int64_t x = j;
#if defined(__AVX2__)
  // One row has one chain a group: too few where 16 bits a weight leave half the time for them.
  for (; sizeof(T) == 2 && g.m == 1 && x + 2 * kColumns <= end; x += 2 * kColumns) {
    columns_of_transposed<1, T, 2 * kGroups>(g, a, x);
  }
#endif
  for (; x + kColumns <= end; x += kColumns) {
    columns_of_all_rows<T>(g, a, x);
  }
  for (; x < end; ++x) {
    one_column<T>(g, a, x);
  }
}

// Columns [j, end) of c; b's columns are neighbours in memory: the chains wait in c while some rows
// of b pass.
template <int M>
void columns_of_plain(const Gemm& g, const Rows& a, std::int64_t j, std::int64_t end) {
  constexpr int kSteps = 8;
  const float* const b = static_cast<const float*>(g.b);
  for (int i = 0; i < M && g.output == Output::kOverwrite; ++i) {
    for (std::int64_t x = j; x < end; ++x) {
      static_cast<float*>(g.c)[i * g.ldc + x] = 0.0F;
    }
  }
  for (std::int64_t p = 0; p < g.k; p += kSteps) {
    const std::int64_t steps = least(kSteps, g.k - p);
    std::int64_t x = j;
    for (; x + kLanes <= end; x += kLanes) {
      Vector sum[M];
      for (int i = 0; i < M; ++i) {
        sum[i] = load(static_cast<float*>(g.c) + i * g.ldc + x);
      }
      for (std::int64_t q = p; q < p + steps; ++q) {
        const Vector v = load(b + q * g.ldb + x);
        for (int i = 0; i < M; ++i) {
          sum[i] = fma(broadcast(a.data[i * a.ld + q]), v, sum[i]);
        }
      }
      for (int i = 0; i < M; ++i) {
        store(static_cast<float*>(g.c) + i * g.ldc + x, sum[i]);
      }
    }
    for (; x < end; ++x) {
      for (int i = 0; i < M; ++i) {
        float* const c = static_cast<float*>(g.c) + i * g.ldc + x;
        for (std::int64_t q = p; q < p + steps; ++q) {
          *c = __builtin_fmaf(a.data[i * a.ld + q], b[q * g.ldb + x], *c);
        }
      }
    }
  }
}

void columns(const Gemm& g, const Rows& a, std::int64_t j, std::int64_t end) {
  using PlainColumns = void (*)(const Gemm&, const Rows&, std::int64_t, std::int64_t);
  constexpr PlainColumns kPlain[kFewRowsOfPlain] = {columns_of_plain<1>, columns_of_plain<2>,
                                                    columns_of_plain<3>, columns_of_plain<4>};
  if (!g.b_transposed) {
    kPlain[g.m - 1](g, a, j, end);
  } else if (g.b_type == DType::kBf16) {
    transposed_columns<std::uint16_t>(g, a, j, end);
  } else {
    transposed_columns<float>(g, a, j, end);
  }
  finish(g, 0, j, g.m, end - j);
}

}  // namespace

void few_rows(const Gemm& g, int threads) {
  Rows a{static_cast<const float*>(g.a), g.lda};
  if (g.a_transposed) {
    float* const rows =
        static_cast<float*>(scratch(static_cast<std::size_t>(g.m * g.k) * sizeof(float)));
    for (std::int64_t i = 0; i < g.m; ++i) {
      for (std::int64_t p = 0; p < g.k; ++p) {
        rows[i * g.k + p] = a.data[p * a.ld + i];
      }
    }
    a = {rows, g.k};
  }
  // By turns, in parts of some 128 KB of b, whole groups of columns each.
  constexpr std::int64_t kPart = 64;
  const std::int64_t part = parts_of(least(g.n, kPart), kColumns) * kColumns;
  parallel_parts(parts_of(g.n, part), threads,
                 [&](std::int64_t i, int) { columns(g, a, i * part, least((i + 1) * part, g.n)); });
}

}  // namespace mt::cpu::MT_KERNEL_SET::product
