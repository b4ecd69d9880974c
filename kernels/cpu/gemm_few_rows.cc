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

// One column of c whose b is contiguous along the contraction.
template <int M>
void one_column(const Gemm& g, const Rows& a, std::int64_t j) {
  const float* const b = static_cast<const float*>(g.b) + j * g.ldb;
  for (int i = 0; i < M; ++i) {
    float* const c = static_cast<float*>(g.c) + i * g.ldc + j;
    float sum = g.output == Output::kAdd ? *c : 0.0F;
    for (std::int64_t p = 0; p < g.k; ++p) {
      sum = __builtin_fmaf(a.data[i * a.ld + p], b[p], sum);
    }
    *c = sum;
  }
}

#if defined(__AVX2__)
// Groups of eight columns that are in work together: enough chains to hide the latency of one.
constexpr int kGroups = 2;
constexpr int kColumns = 8 * kGroups;

// kColumns columns of c, b contiguous along the contraction: eight columns times eight steps are
// turned around in registers.
template <int M>
void columns_of_transposed(const Gemm& g, const Rows& a, std::int64_t j) {
  const float* row[kColumns];
  for (int i = 0; i < kColumns; ++i) {
    row[i] = static_cast<const float*>(g.b) + (j + i) * g.ldb;
  }
  __m256 sum[M][kGroups];
  for (int i = 0; i < M; ++i) {
    for (int group = 0; group < kGroups; ++group) {
      sum[i][group] = g.output == Output::kAdd
                          ? _mm256_loadu_ps(static_cast<float*>(g.c) + i * g.ldc + j + group * 8)
                          : _mm256_setzero_ps();
    }
  }
  std::int64_t p = 0;
  for (; p + 8 <= g.k; p += 8) {
#pragma GCC unroll 2
    for (int group = 0; group < kGroups; ++group) {
      // Some lines ahead, also at the end of a row, where the next rows follow.
      constexpr std::int64_t kAhead = 64;
      if (p % 16 == 0) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
          __builtin_prefetch(row[group * 8 + i] + p + kAhead, 0, 2);
        }
      }
      __m256 step[8];
      transpose_8x8(row + group * 8, p, step);
#pragma GCC unroll 8
      for (int q = 0; q < 8; ++q) {
#pragma GCC unroll 4
        for (int i = 0; i < M; ++i) {
          const __m256 x = _mm256_broadcast_ss(a.data + i * a.ld + p + q);
          sum[i][group] = _mm256_fmadd_ps(x, step[q], sum[i][group]);
        }
      }
    }
  }
  for (; p < g.k; ++p) {
    for (int group = 0; group < kGroups; ++group) {
      float step[8];
      for (int i = 0; i < 8; ++i) {
        step[i] = row[group * 8 + i][p];
      }
      for (int i = 0; i < M; ++i) {
        const __m256 x = _mm256_broadcast_ss(a.data + i * a.ld + p);
        sum[i][group] = _mm256_fmadd_ps(x, _mm256_loadu_ps(step), sum[i][group]);
      }
    }
  }
  for (int i = 0; i < M; ++i) {
    for (int group = 0; group < kGroups; ++group) {
      _mm256_storeu_ps(static_cast<float*>(g.c) + i * g.ldc + j + group * 8, sum[i][group]);
    }
  }
}
#else
constexpr int kColumns = 16;
template <int M>
void columns_of_transposed(const Gemm& g, const Rows& a, std::int64_t j) {
  for (int i = 0; i < kColumns; ++i) {
    one_column<M>(g, a, j + i);
  }
}
#endif

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

template <int M>
void columns(const Gemm& g, const Rows& a, std::int64_t j, std::int64_t end) {
  if (g.b_transposed) {
    std::int64_t x = j;
    for (; x + kColumns <= end; x += kColumns) {
      columns_of_transposed<M>(g, a, x);
    }
    for (; x < end; ++x) {
      one_column<M>(g, a, x);
    }
  } else {
    columns_of_plain<M>(g, a, j, end);
  }
  finish(g, 0, j, M, end - j);
}

using ColumnsFunction = void (*)(const Gemm&, const Rows&, std::int64_t, std::int64_t);
constexpr ColumnsFunction kColumnsOf[kFewRows] = {columns<1>, columns<2>, columns<3>, columns<4>};

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
  const ColumnsFunction columns_of_c = kColumnsOf[g.m - 1];
  // By turns, in parts of some 128 KB of b, whole groups of columns each.
  constexpr std::int64_t kPart = 64;
  const std::int64_t part = parts_of(least(g.n, kPart), kColumns) * kColumns;
  parallel_parts(parts_of(g.n, part), threads, [&](std::int64_t i, int) {
    columns_of_c(g, a, i * part, least((i + 1) * part, g.n));
  });
}

}  // namespace mt::cpu::MT_KERNEL_SET::product
