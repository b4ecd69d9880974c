#include "nn/layernorm.h"

#include "nn/positions.h"
#include "tensor/ops.h"

namespace mt {

LayerNorm::LayerNorm(const std::string& name, std::int64_t hidden, double epsilon,
                     const LayerSetup& setup)
    : epsilon_(static_cast<float>(epsilon)) {
  const auto vector = [&](const char* suffix, Init init) {
    return make_parameter(
        setup.pool,
        {{.name = name + suffix, .global_shape = {hidden}, .offset = {0}, .extent = {hidden}}},
        setup.gradient, init, 0, setup.numbers);
  };
  gain_ = vector(".weight", Init::kOne);
  bias_ = vector(".bias", Init::kZero);
  gain_.sum_over_tensor = bias_.sum_over_tensor = holds_slices(setup.layout, setup.tp);
}

Tensor LayerNorm::forward(const Tensor& x, Saved* saved) const {
  Tensor y = like_rows(x, x.dim(-1));
  Tensor mean, rstd;
  if (saved != nullptr) {
    const std::int64_t rows = x.size() / x.dim(-1);
    mean = Tensor(x.pool(), {rows}, DType::kF32, MemoryKind::kActivations);
    rstd = Tensor(x.pool(), {rows}, DType::kF32, MemoryKind::kActivations);
    *saved = {.x = x, .mean = mean, .rstd = rstd};
  }
  layernorm(x, gain_.value, bias_.value, epsilon_, y, mean, rstd);
  return y;
}

Tensor LayerNorm::repeat(const Saved& saved) const {
  return forward(saved.x, nullptr);
}

Tensor LayerNorm::backward(const Tensor& dy, const Tensor& residual, const Saved& saved) {
  Tensor dx = residual.defined() ? residual : like_rows(dy, dy.dim(-1));
  layernorm_backward(saved.x, gain_.value, saved.mean, saved.rstd, dy,
                     {.dx = dx, .residual = residual, .dgain = gain_.grad, .dbias = bias_.grad});
  return dx;
}

void LayerNorm::collect(std::vector<Parameter*>& out) {
  out.push_back(&gain_);
  out.push_back(&bias_);
}

}  // namespace mt
