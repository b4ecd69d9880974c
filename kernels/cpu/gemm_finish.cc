// What follows the chain of a product's element: bias, residual, GELU.
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vector.h"

namespace mt::cpu::MT_KERNEL_SET::product {
namespace {

constexpr int kWidth = 16;

// n of 16 elements, or all when kWhole.
template <bool kWhole>
void finish_lanes(float* c, const float* bias, const float* residual, float* gelu_out, int n) {
  Floats x = kWhole ? load(c) : load_part(c, n);
  if (bias != nullptr) {
    x = x + (kWhole ? load(bias) : load_part(bias, n));
  }
  if (residual != nullptr) {
    x = x + (kWhole ? load(residual) : load_part(residual, n));
  }
  if (kWhole) {
    store(c, x);
  } else {
    store_part(c, x, n);
  }
  if (gelu_out != nullptr) {
    const Floats y = gelu(x);
    if (kWhole) {
      store(gelu_out, y);
    } else {
      store_part(gelu_out, y, n);
    }
  }
}

const float* at(const void* base, std::int64_t offset) {
  return base == nullptr ? nullptr : static_cast<const float*>(base) + offset;
}

}  // namespace

void finish(const Gemm& g, std::int64_t i, std::int64_t j, std::int64_t rows, std::int64_t cols) {
  if (g.bias == nullptr && g.residual == nullptr && g.gelu == nullptr) {
    return;
  }
  for (std::int64_t r = i; r < i + rows; ++r) {
    const std::int64_t row = r * g.ldc;
    std::int64_t x = j;
    for (; x + kWidth <= j + cols; x += kWidth) {
      finish_lanes<true>(static_cast<float*>(g.c) + row + x, at(g.bias, x), at(g.residual, row + x),
                         g.gelu == nullptr ? nullptr : static_cast<float*>(g.gelu) + row + x,
                         kWidth);
    }
    if (x < j + cols) {
      finish_lanes<false>(static_cast<float*>(g.c) + row + x, at(g.bias, x),
                          at(g.residual, row + x),
                          g.gelu == nullptr ? nullptr : static_cast<float*>(g.gelu) + row + x,
                          static_cast<int>(j + cols - x));
    }
  }
}

}  // namespace mt::cpu::MT_KERNEL_SET::product
