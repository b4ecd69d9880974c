// Element by element: GELU and its derivative, sums of tensors.
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector.h"

namespace mt::cpu::MT_KERNEL_SET {

void gelu(DType dtype, const void* x, void* y, std::int64_t count) {
  require_f32(dtype);
  const auto* in = static_cast<const float*>(x);
  auto* out = static_cast<float*>(y);
  parallel_pieces(count, kChunk, count > kChunk, [&](std::int64_t begin, std::int64_t end) {
    sweep(begin, end,
          [&](std::int64_t i, auto part) { store(out + i, gelu(load(in + i, part)), part); });
  });
}

void gelu_backward(DType dtype, const void* x, const void* dy, void* dx, std::int64_t count) {
  require_f32(dtype);
  const auto* in = static_cast<const float*>(x);
  const auto* gradient = static_cast<const float*>(dy);
  auto* out = static_cast<float*>(dx);
  parallel_pieces(count, kChunk, count > kChunk, [&](std::int64_t begin, std::int64_t end) {
    sweep(begin, end, [&](std::int64_t i, auto part) {
      store(out + i, load(gradient + i, part) * gelu_derivative(load(in + i, part)), part);
    });
  });
}

void add_bias(DType dtype, const void* bias, const void* residual, void* y, std::int64_t rows,
              std::int64_t cols) {
  require_f32(dtype);
  const auto* of_column = static_cast<const float*>(bias);
  parallel_rows(rows, cols, [&](std::int64_t r) {
    float* out = static_cast<float*>(y) + r * cols;
    const auto* more =
        residual == nullptr ? nullptr : static_cast<const float*>(residual) + r * cols;
    sweep(0, cols, [&](std::int64_t i, auto part) {
      const Floats sum = load(out + i, part) + load(of_column + i, part);
      store(out + i, more == nullptr ? sum : sum + load(more + i, part), part);
    });
  });
}

void add(DType dtype, const void* x, void* y, std::int64_t count) {
  require_f32(dtype);
  const auto* in = static_cast<const float*>(x);
  auto* out = static_cast<float*>(y);
  parallel_pieces(count, kChunk, count > kChunk, [&](std::int64_t begin, std::int64_t end) {
    sweep(begin, end, [&](std::int64_t i, auto part) {
      store(out + i, load(out + i, part) + load(in + i, part), part);
    });
  });
}

}  // namespace mt::cpu::MT_KERNEL_SET
