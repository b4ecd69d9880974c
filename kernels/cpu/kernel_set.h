// The operations of one kernel set. Every source of kernels/cpu but table.cc and runtime.cc is
// compiled once for each instruction set, with MT_KERNEL_SET=baseline, avx2 or avx512, into the
// namespace of that name. Meaning, shapes and "adds" or "overwrites": kernels/kernels.h.
//
// An object that was compiled for AVX-512 must not emit an inline function or template outside its
// set's namespace: the linker may take that copy for everybody, and a processor without AVX-512
// dies of it. So kernels include little, keep their own things in the namespace below or in an
// unnamed one, and throw through the functions of table.cc (test/check/kernel_symbols.sh).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace mt::cpu {

// In table.cc. Throws UsageError that names the type, for every kernel that has no version for it.
[[noreturn]] void refuse_dtype(DType dtype);
namespace {
// What a kernel's entry calls; the one compute type of now.
[[maybe_unused]] inline void require_f32(DType dtype) {
  if (dtype != DType::kF32) {
    refuse_dtype(dtype);
  }
}
}  // namespace

// In runtime.cc. Scratch memory of the calling thread, 64-byte aligned, at least `bytes` long, with
// undefined contents; kept for the thread's life and grown when needed, so that the steady state
// allocates nothing. There is one block a thread: it is valid until the thread's next call, and a
// kernel that calls another kernel must not hold it. Throws EnvironmentError without memory; so
// call it outside of parallel regions, or be sure that the size was asked for before.
[[nodiscard]] void* scratch(std::size_t bytes);

}  // namespace mt::cpu

namespace mt::cpu::MT_KERNEL_SET {

void gemm(DType dtype, const Gemm& g);
void attention_forward(DType dtype, const AttentionForward& f);
void attention_backward(DType dtype, const AttentionBackward& b);
void layernorm_forward(DType dtype, const LayerNormForward& f);
void layernorm_backward(DType dtype, const LayerNormBackward& b);
void gelu(DType dtype, const void* x, void* y, std::int64_t count);
void gelu_backward(DType dtype, const void* x, const void* dy, void* dx, std::int64_t count);
void add_bias(DType dtype, const void* bias, const void* residual, void* y, std::int64_t rows,
              std::int64_t cols);
void dropout_add(DType dtype, const DropoutAdd& d);
void sum_rows(DType dtype, const void* x, void* out, std::int64_t rows, std::int64_t cols);
void add(DType dtype, const void* x, void* y, std::int64_t count);
void embedding_forward(DType dtype, const EmbeddingForward& f);
void embedding_backward(DType dtype, const EmbeddingBackward& b);
void cross_entropy_max(DType dtype, const CrossEntropyMax& c);
void cross_entropy_sum(DType dtype, const CrossEntropySum& c);
void cross_entropy_grad(DType dtype, const CrossEntropyGrad& c);
void adam(const AdamStep& step);
void sum_squares(DType dtype, const void* x, std::int64_t count, SquareLimbs& sum);
std::int64_t find_not_finite(DType dtype, const void* x, std::int64_t count);
void argmax(DType dtype, const void* x, std::int64_t* out, std::int64_t rows, std::int64_t cols);
void normal_fill(const NormalFill& f);

// The set's table, in kernel_set.cc.
[[nodiscard]] const Kernels& table();

}  // namespace mt::cpu::MT_KERNEL_SET
