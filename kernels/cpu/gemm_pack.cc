#include "kernels/cpu/gemm_pack.h"

namespace mt::cpu::MT_KERNEL_SET::product {
namespace {

// One panel whose rows are contiguous along the contraction: a transposition.
template <int W>
void pack_contiguous_steps(const Operand& o, std::int64_t first_row, float* out) {
  const std::int64_t rows = least(W, o.count - first_row);
  const float* const data = o.data + first_row * o.ld;
  std::int64_t p = 0;
#if defined(__AVX2__)
  constexpr int kGroups = (W + 7) / 8;
  const float* row[kGroups * 8];
  for (int i = 0; i < kGroups * 8; ++i) {
    row[i] = data + least(i, rows - 1) * o.ld;  // a row beyond the end: any that may be read
  }
  // A line (two times eight steps) of each row at once: rows at a distance of 4 KiB share few
  // places of the cache.
  constexpr std::int64_t kAhead = 64;
  while (p + 8 <= o.steps) {
    const int halves = p + 16 <= o.steps ? 2 : 1;
    for (int i = 0; i < (W < rows ? W : rows); ++i) {
      __builtin_prefetch(row[i] + p + kAhead);
    }
    // The last group may spill into the next step's first places, so it goes first.
    for (int group = kGroups - 1; group >= 0; --group) {
      for (int half = 0; half < halves; ++half) {
        __m256 step[8];
        transpose_8x8(row + group * 8, p + half * 8, step);
        float* const to = out + (p + half * 8) * W + group * 8;
#pragma GCC unroll 8
        for (int q = 0; q < 8; ++q) {
          _mm256_storeu_ps(to + q * W, step[q]);
        }
      }
    }
    p += halves * 8;
  }
#endif
  for (; p < o.steps; ++p) {
    for (std::int64_t i = 0; i < W; ++i) {
      out[p * W + i] = i < rows ? data[i * o.ld + p] : 0.0F;
    }
  }
}

// Steps [p, end) of one panel whose rows are neighbours in memory: a copy.
template <int W>
void copy_steps(const Operand& o, std::int64_t first_row, std::int64_t p, std::int64_t end,
                float* out) {
  const float* from = o.data + p * o.ld + first_row;
  float* to = out + p * W;
  constexpr int kRounded = (W + 7) / 8 * 8;
  constexpr std::int64_t kAhead = 8;
  if (first_row + kRounded <= o.count) {
    for (; p < end; ++p, from += o.ld, to += W) {
      __builtin_prefetch(from + kAhead * o.ld);
      // Eight at a time; what spills over is overwritten by the next step or lies in the slack.
#pragma GCC unroll 4
      for (int i = 0; i < kRounded; i += 8) {
#if defined(__AVX2__)
        _mm256_storeu_ps(to + i, _mm256_loadu_ps(from + i));
#else
        for (int j = i; j < i + 8 && j < W; ++j) {
          to[j] = from[j];
        }
#endif
      }
    }
    return;
  }
  const std::int64_t rows = least(W, o.count - first_row);
  for (; p < end; ++p, from += o.ld, to += W) {
    for (std::int64_t i = 0; i < W; ++i) {
      to[i] = i < rows ? from[i] : 0.0F;
    }
  }
}

template <int W>
void pack(const Operand& o, std::int64_t first, std::int64_t last, float* out) {
  const std::int64_t stride = panel_stride(W, o.steps);
  if (o.steps_contiguous) {
    for (std::int64_t panel = first; panel < last; ++panel) {
      pack_contiguous_steps<W>(o, panel * W, out + panel * stride);
    }
    return;
  }
  // A few steps of all panels before the next few: each step may lie in a page of its own.
  constexpr std::int64_t kSteps = 8;
  for (std::int64_t p = 0; p < o.steps; p += kSteps) {
    for (std::int64_t panel = first; panel < last; ++panel) {
      copy_steps<W>(o, panel * W, p, least(p + kSteps, o.steps), out + panel * stride);
    }
  }
}

}  // namespace

void pack_a(const Operand& a, std::int64_t first, std::int64_t last, float* out) {
  pack<kTileRows>(a, first, last, out);
}

void pack_b(const Operand& b, std::int64_t first, std::int64_t last, float* out) {
  pack<kTileCols>(b, first, last, out);
}

}  // namespace mt::cpu::MT_KERNEL_SET::product
