// Packs a block of a bf16 weight into panels of f32.
#include "kernels/cpu/gemm_pack.h"

namespace mt::cpu::MT_KERNEL_SET::product {
namespace {

void pack_panel(const Bf16Operand& o, std::int64_t first_row, float* out) {
  constexpr int kWidth = kTileCols;
  const std::int64_t rows = least(kWidth, o.count - first_row);
  const std::uint16_t* row[kWidth];
  for (int i = 0; i < kWidth; ++i) {
    row[i] = o.data + (first_row + least(i, rows - 1)) * o.ld;  // beyond the end: any
  }
  std::int64_t p = 0;
#if defined(__AVX2__)
  constexpr std::int64_t kAhead = 128;
  for (; p + 16 <= o.steps; p += 16) {
    for (int group = 0; group < kWidth; group += 8) {
      if (p % 32 == 0) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
          __builtin_prefetch(row[group + i] + p + kAhead);
        }
      }
      __m256 step[16];
      transpose_8x16_bf16(row + group, p, step);
#pragma GCC unroll 16
      for (int q = 0; q < 16; ++q) {
        _mm256_storeu_ps(out + (p + q) * kWidth + group, step[q]);
      }
    }
  }
#endif
  for (; p < o.steps; ++p) {
    for (int i = 0; i < kWidth; ++i) {
      out[p * kWidth + i] = widened(row[i][p]);
    }
  }
}

}  // namespace

void pack_b_bf16(const Bf16Operand& b, std::int64_t panels, float* out) {
  for (std::int64_t panel = 0; panel < panels; ++panel) {
    pack_panel(b, panel * kTileCols, out + panel * panel_stride(kTileCols, b.steps));
  }
}

}  // namespace mt::cpu::MT_KERNEL_SET::product
