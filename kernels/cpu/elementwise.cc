// Element by element: GELU's derivative and sums of two tensors. Its forward is gemm's epilogue.
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector.h"

namespace mt::cpu::MT_KERNEL_SET {

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
