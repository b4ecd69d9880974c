#include "nn/mlp.h"

#include "tensor/ops.h"

namespace mt {

Mlp::Mlp(const std::string& name, std::int64_t hidden, std::int64_t inner, double output_std,
         const LayerSetup& setup)
    : in_({name + ".dense_h_to_4h"}, hidden, inner, setup),
      out_(name + ".dense_4h_to_h", inner, hidden,
           {.tp = setup.tp,
            .pool = setup.pool,
            .gradient = setup.gradient,
            .init_std = output_std,
            .numbers = setup.numbers,
            .layout = setup.layout}) {}

Tensor Mlp::forward(const Tensor& x, const Tensor& residual, Saved* saved) const {
  const auto inner = in_.forward_gelu(x, saved != nullptr ? &saved->in : nullptr);
  if (saved != nullptr) saved->before_gelu = inner.y;
  return out_.forward(inner.gelu, residual, saved != nullptr ? &saved->out : nullptr);
}

Tensor Mlp::backward(const Tensor& dy, Saved& saved) {
  const Tensor dinner = out_.backward(dy, saved.out);
  saved.out = {};
  gelu_backward(saved.before_gelu, dinner, dinner);
  saved.before_gelu = {};
  Tensor dx = in_.backward(dinner, saved.in);
  saved.in = {};
  return dx;
}

void Mlp::collect(std::vector<Parameter*>& out) {
  in_.collect(out);
  out_.collect(out);
}

}  // namespace mt
