#include "nn/layernorm.h"

#include "nn/positions.h"
#include "nn/shards.h"
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
  add_gradient_shards(gain_, setup);
  add_gradient_shards(bias_, setup);
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
  if (!gain_.grad_shards.defined()) {
    layernorm_backward(saved.x, gain_.value, saved.mean, saved.rstd, dy,
                       {.dx = dx, .residual = residual, .dgain = gain_.grad, .dbias = bias_.grad});
    return dx;
  }
  const Shape rows{saved.mean.size(), saved.x.dim(-1)};
  const Tensor x = saved.x.view(rows), dy_rows = dy.view(rows), dx_rows = dx.view(rows);
  each_position_shard(gain_.grad_shards.dim(0), saved.x.dim(0), saved.x.dim(1),
                      [&](std::int64_t shard, std::int64_t begin, std::int64_t end) {
                        layernorm_backward(
                            x.rows(begin, end), gain_.value, saved.mean.rows(begin, end),
                            saved.rstd.rows(begin, end), dy_rows.rows(begin, end),
                            {.dx = dx_rows.rows(begin, end),
                             .residual = residual.defined() ? dx_rows.rows(begin, end) : Tensor(),
                             .dgain = gain_.grad_shards.rows(shard, shard + 1),
                             .dbias = bias_.grad_shards.rows(shard, shard + 1)});
                      });
  return dx;
}

void LayerNorm::collect(std::vector<Parameter*>& out) {
  out.push_back(&gain_);
  out.push_back(&bias_);
}

}  // namespace mt
