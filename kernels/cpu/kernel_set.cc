// The table of one kernel set.
#include "kernels/cpu/kernel_set.h"

#define MT_STRING_OF(x) #x
#define MT_STRING(x) MT_STRING_OF(x)

namespace mt::cpu::MT_KERNEL_SET {

const Kernels& table() {
  static constexpr Kernels kTable{
      .name = MT_STRING(MT_KERNEL_SET),
      .gemm = gemm,
      .attention_forward = attention_forward,
      .attention_backward = attention_backward,
      .layernorm_forward = layernorm_forward,
      .layernorm_backward = layernorm_backward,
      .gelu = gelu,
      .gelu_backward = gelu_backward,
      .dropout_add = dropout_add,
      .sum_rows = sum_rows,
      .add_bias = add_bias,
      .add = add,
      .embedding_forward = embedding_forward,
      .embedding_backward = embedding_backward,
      .cross_entropy_max = cross_entropy_max,
      .cross_entropy_sum = cross_entropy_sum,
      .cross_entropy_grad = cross_entropy_grad,
      .adam = adam,
      .sum_squares = sum_squares,
      .find_not_finite = find_not_finite,
      .argmax = argmax,
      .normal_fill = normal_fill,
  };
  return kTable;
}

}  // namespace mt::cpu::MT_KERNEL_SET
