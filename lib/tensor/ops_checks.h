// What the operations check of their tensors before a kernel is called; for the sources of
// tensor/ops.h only.
#pragma once

#include <initializer_list>
#include <string>

#include "base/error.h"
#include "tensor/ops.h"

namespace mt::ops {

// Throws Error with status kInternal, naming the operation and the shapes.
inline void require(bool holds, const char* operation,
                    std::initializer_list<const Tensor*> tensors) {
  if (holds) return;
  std::string shapes;
  for (const Tensor* tensor : tensors) {
    shapes += tensor->defined() ? cat(" ", dtype_name(tensor->dtype()), shape_text(tensor->shape()))
                                : std::string(" none");
  }
  throw Error(ExitStatus::kInternal,
              cat("internal error: ", operation, " does not take shapes", shapes));
}

inline std::int64_t columns_of(const Tensor& x) {
  return x.dim(-1);
}
inline std::int64_t rows_of(const Tensor& x) {
  return x.size() / x.dim(-1);
}

inline bool floats(std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors) {
    if (!tensor->defined() || tensor->dtype() != DType::kF32 || tensor->size() == 0) return false;
  }
  return true;
}

// A matrix that products and the embedding take: f32, or bf16.
inline bool is_weight(const Tensor& x) {
  return x.defined() && (x.dtype() == DType::kF32 || x.dtype() == DType::kBf16) && x.size() > 0;
}

inline bool float_or_none(const Tensor& x, std::int64_t size) {
  return !x.defined() || (x.dtype() == DType::kF32 && x.size() == size);
}

inline bool integers(const Tensor& x, std::int64_t size) {
  return x.defined() && x.dtype() == DType::kI32 && x.size() == size;
}

inline const Kernels& kernels_of(const Tensor& x) {
  return *x.device().kernels;
}

inline const void* data_or_null(const Tensor& x) {
  return x.defined() ? x.data() : nullptr;
}

}  // namespace mt::ops
