// Products with few rows, as in decoding: b is read once, in the order in which it lies, and its
// vectors of neighbouring columns feed as many chains as there are lanes. The chains are those of
// gemm.cc.

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/parallel.h"

namespace mt::cpu::MT_KERNEL_SET::product {
namespace {

// Some rows of a, from `first` on, that are multiplied together: side by side for each step of the
// contraction, a cache line for one or two steps of all.
struct Rows {
  const float* data;  // row first + i at step p: data[p * count + i]
  std::int64_t first, count;
};

// All of a, in as few and as equal parts as hold kChainRows at most.
constexpr int kChainRows = 8;
struct AllRows {
  Rows part[parts_of(kFewRows, kChainRows)] = {};
  int parts = 0;

  explicit AllRows(const Gemm& g) {
    parts = static_cast<int>(parts_of(g.m, kChainRows));
    const auto* const from = static_cast<const float*>(g.a);
    if (g.m == 1 && !g.a_transposed) {
      part[0] = {from, 0, 1};
      return;
    }
    auto* to = static_cast<float*>(scratch(static_cast<std::size_t>(g.m * g.k) * sizeof(float)));
    const std::int64_t row = g.a_transposed ? 1 : g.lda, step = g.a_transposed ? g.lda : 1;
    for (int i = 0; i < parts; ++i) {
      const std::int64_t first = i * g.m / parts, count = (i + 1) * g.m / parts - first;
      part[i] = {to, first, count};
      for (std::int64_t p = 0; p < g.k; ++p) {
        for (std::int64_t r = 0; r < count; ++r) {
          *to++ = from[(first + r) * row + p * step];
        }
      }
    }
  }
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
  for (std::int64_t i = 0; i < a.count; ++i) {
    float* const c = static_cast<float*>(g.c) + (a.first + i) * g.ldc + j;
    float sum = g.output == Output::kAdd ? *c : 0.0F;
    for (std::int64_t p = 0; p < g.k; ++p) {
      sum = __builtin_fmaf(a.data[p * a.count + i], element(b + p), sum);
    }
    *c = sum;
  }
}

#if defined(__AVX2__)
// Groups of eight columns that are in work together: enough chains to hide the latency of one.
constexpr int kGroups = 2;
constexpr int kColumns = 8 * kGroups;
// Rows of a for which the chains of two groups stay in registers.
constexpr int kPairedRows = 4;

// Steps of eight columns that are turned around in registers at a time: 16 bytes of each.
template <typename T>
constexpr int kTurned = 16 / sizeof(T);
// Eight rows of b, ld apart, from `b` on: float q of column i to lane i of turned[q]. A pair of
// bf16 moves as one float does, and is widened when it is wanted.
template <typename T>
[[gnu::always_inline]] inline void turn(const T* b, std::int64_t ld, __m256* turned) {
  __m256 t[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const auto* low = reinterpret_cast<const float*>(b + i * ld);
    const auto* high = reinterpret_cast<const float*>(b + (i + 4) * ld);
    t[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
  }
  const __m256 low0 = _mm256_unpacklo_ps(t[0], t[1]);
  const __m256 high0 = _mm256_unpackhi_ps(t[0], t[1]);
  const __m256 low1 = _mm256_unpacklo_ps(t[2], t[3]);
  const __m256 high1 = _mm256_unpackhi_ps(t[2], t[3]);
  turned[0] = _mm256_shuffle_ps(low0, low1, 0x44);
  turned[1] = _mm256_shuffle_ps(low0, low1, 0xEE);
  turned[2] = _mm256_shuffle_ps(high0, high1, 0x44);
  turned[3] = _mm256_shuffle_ps(high0, high1, 0xEE);
}
// Step q of what turn() gave.
template <typename T>
[[gnu::always_inline]] inline __m256 step_of(const __m256* turned, int q) {
  if constexpr (sizeof(T) == 4) return turned[q];
  return q % 2 == 0 ? low_of_pairs(turned[q / 2]) : high_of_pairs(turned[q / 2]);
}

// Asks for the lines of b that come next while others are in work, in the order in which they lie
// and as many a step as the steps use up: rows that begin and end all the time escape the
// hardware's own reading ahead, and a burst of requests fills its queue.
class Ahead {
 public:
  // `steps` steps of rows `ld` apart, from `begin` on.
  template <typename T>
  Ahead(const T* begin, std::int64_t steps, std::int64_t ld)
      : at_(reinterpret_cast<const char*>(begin)),
        left_(steps * static_cast<std::int64_t>(sizeof(T))),
        row_(left_),
        gap_((ld - steps) * static_cast<std::int64_t>(sizeof(T))) {}
  template <int kLines>
  [[gnu::always_inline]] void ask() {
#pragma GCC unroll 4
    for (int i = 0; i < kLines; ++i) {
      __builtin_prefetch(at_ + i * 64);
    }
    at_ += kLines * 64;
    left_ -= kLines * 64;
    if (left_ <= 0) {  // to the row behind
      at_ += left_ + gap_;
      left_ = row_;
    }
  }

 private:
  const char* at_;
  std::int64_t left_, row_, gap_;
};

// Steps that are done for all rows of b in work before the next ones: short rows whole, as they lie
// one behind the other; of long ones a part, so that what comes next does not lie too far ahead.
template <typename T>
std::int64_t block_steps(std::int64_t k) {
  constexpr std::int64_t kShortRow = 4096;
  constexpr std::int64_t kBlock = 256;
  return k * static_cast<std::int64_t>(sizeof(T)) <= kShortRow ? k : kBlock;
}

// M rows and 8 kHere columns of c; `next` is the row of b where the columns after these begin.
template <int M, typename T, int kHere>
void columns_of_transposed(const Gemm& g, const Rows& a, std::int64_t j, std::int64_t next) {
  constexpr int kSteps = kTurned<T>;
  const T* const b = static_cast<const T*>(g.b) + j * g.ldb;
  float* const c = static_cast<float*>(g.c) + a.first * g.ldc + j;
  __m256 sum[M][kHere];
  for (int i = 0; i < M; ++i) {
    for (int group = 0; group < kHere; ++group) {
      sum[i][group] = g.output == Output::kAdd ? _mm256_loadu_ps(c + i * g.ldc + group * 8)
                                               : _mm256_setzero_ps();
    }
  }
  const std::int64_t block = block_steps<T>(g.k);
  std::int64_t p = 0;
  while (p + kSteps <= g.k) {
    const std::int64_t end = least(p + block, g.k);
    Ahead ahead(end < g.k ? b + end : static_cast<const T*>(g.b) + next * g.ldb,
                least(block, end < g.k ? g.k - end : g.k), g.ldb);
    for (; p + kSteps <= end; p += kSteps) {
      ahead.ask<2 * kHere>();
      __m256 turned[kHere][4];
#pragma GCC unroll 2
      for (int group = 0; group < kHere; ++group) {
        turn(b + group * 8 * g.ldb + p, g.ldb, turned[group]);
      }
#pragma GCC unroll 8
      for (int q = 0; q < kSteps; ++q) {
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) {
          const __m256 x = _mm256_broadcast_ss(a.data + (p + q) * M + i);
#pragma GCC unroll 2
          for (int group = 0; group < kHere; ++group) {
            sum[i][group] = _mm256_fmadd_ps(x, step_of<T>(turned[group], q), sum[i][group]);
          }
        }
      }
    }
  }
  for (; p < g.k; ++p) {
    for (int group = 0; group < kHere; ++group) {
      float step[8];
      for (int i = 0; i < 8; ++i) {
        step[i] = element(b + (group * 8 + i) * g.ldb + p);
      }
      for (int i = 0; i < M; ++i) {
        const __m256 x = _mm256_broadcast_ss(a.data + p * M + i);
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

// All kColumns columns for M rows.
template <int M, typename T>
void columns_of_rows(const Gemm& g, const Rows& a, std::int64_t j, std::int64_t next) {
  if constexpr (M <= kPairedRows) {
    columns_of_transposed<M, T, kGroups>(g, a, j, next);
  } else {
    columns_of_transposed<M, T, 1>(g, a, j, j + 8);
    columns_of_transposed<M, T, 1>(g, a, j + 8, next);
  }
}

template <typename T>
void columns_of_all_rows(const Gemm& g, const Rows& a, std::int64_t j, std::int64_t next) {
  using Columns = void (*)(const Gemm&, const Rows&, std::int64_t, std::int64_t);
  constexpr Columns kOf[kChainRows] = {
      columns_of_rows<1, T>, columns_of_rows<2, T>, columns_of_rows<3, T>, columns_of_rows<4, T>,
      columns_of_rows<5, T>, columns_of_rows<6, T>, columns_of_rows<7, T>, columns_of_rows<8, T>};
  kOf[a.count - 1](g, a, j, next);
}
#else
constexpr int kColumns = 16;
template <typename T>
void columns_of_all_rows(const Gemm& g, const Rows& a, std::int64_t j, std::int64_t) {
  for (int i = 0; i < kColumns; ++i) {
    one_column<T>(g, a, j + i);
  }
}
#endif

// Columns of c for one task, and where the next ones of the same thread are likely to begin.
struct Task {
  std::int64_t begin, end, next;
};

template <typename T>
void transposed_columns(const Gemm& g, const AllRows& a, const Task& task) {
  std::int64_t x = task.begin;
  for (; x + kColumns <= task.end; x += kColumns) {
    // Only the last rows ask for what comes next: it would drive out what the others read again.
    for (int i = 0; i + 1 < a.parts; ++i) {
      columns_of_all_rows<T>(g, a.part[i], x, x);
    }
    columns_of_all_rows<T>(g, a.part[a.parts - 1], x,
                           x + 2 * kColumns <= task.end ? x + kColumns : task.next);
  }
  for (; x < task.end; ++x) {
    for (int i = 0; i < a.parts; ++i) {
      one_column<T>(g, a.part[i], x);
    }
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
          sum[i] = fma(broadcast(a.data[q * M + i]), v, sum[i]);
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
          *c = __builtin_fmaf(a.data[q * M + i], b[q * g.ldb + x], *c);
        }
      }
    }
  }
}

void columns(const Gemm& g, const AllRows& a, const Task& task) {
  using PlainColumns = void (*)(const Gemm&, const Rows&, std::int64_t, std::int64_t);
  constexpr PlainColumns kPlain[kFewRowsOfPlain] = {columns_of_plain<1>, columns_of_plain<2>,
                                                    columns_of_plain<3>, columns_of_plain<4>};
  if (!g.b_transposed) {
    kPlain[g.m - 1](g, a.part[0], task.begin, task.end);
  } else if (g.b_type == DType::kBf16) {
    transposed_columns<std::uint16_t>(g, a, task);
  } else {
    transposed_columns<float>(g, a, task);
  }
  finish(g, 0, task.begin, g.m, task.end - task.begin);
}

}  // namespace

void few_rows(const Gemm& g, int threads) {
  const AllRows a(g);
  // By turns, in whole groups of columns: few turns, as each begins with reading from afar, but
  // enough for a thread that is held up.
  constexpr std::int64_t kLeast = 64;
  constexpr std::int64_t kTasksPerThread = 8;
  const std::int64_t share = parts_of(g.n, kTasksPerThread * threads);
  const std::int64_t part =
      parts_of(share > kLeast ? share : least(g.n, kLeast), kColumns) * kColumns;
  parallel_parts(parts_of(g.n, part), threads, [&](std::int64_t i, int) {
    const std::int64_t begin = i * part, after = begin + threads * part;
    columns(g, a, {begin, least(begin + part, g.n), after < g.n ? after : begin});
  });
}

}  // namespace mt::cpu::MT_KERNEL_SET::product
