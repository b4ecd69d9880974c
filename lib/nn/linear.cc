#include "nn/linear.h"

#include <utility>

#include "nn/positions.h"
#include "nn/shards.h"
#include "tensor/ops.h"

namespace mt {
namespace {

OwnedRange even_range(std::int64_t n, const Communicator& tp, const std::string& name) {
  if (n % tp.size() != 0) {
    throw UsageError(cat("--tensor-model-parallel-size ", tp.size(), ": the ", n, " features of ",
                         name, " are not divisible by ", tp.size()));
  }
  return owned_range(n, tp);
}

// The gradient of a vector that is added at every position: dy [b, s, h], added.
void sum_positions(const Tensor& dy, const Parameter& vector) {
  if (!vector.grad_shards.defined()) return sum_rows(dy, vector.grad);
  const Tensor rows = dy.view({dy.size() / dy.dim(-1), dy.dim(-1)});
  each_position_shard(vector.grad_shards.dim(0), dy.dim(0), dy.dim(1),
                      [&](std::int64_t shard, std::int64_t begin, std::int64_t end) {
                        sum_rows(rows.rows(begin, end), vector.grad_shards.rows(shard, shard + 1));
                      });
}

// What the next product does with the gradient.
Output output_of(Parameter& weight) {
  return take_stale(weight) ? Output::kOverwrite : Output::kAdd;
}

}  // namespace

OwnedRange owned_range(std::int64_t n, const Communicator& tp) {
  // In 128 bits: i n may exceed 63 for absurd n, which are refused elsewhere with a message.
  const auto boundary = [&](std::int64_t i) {
    return static_cast<std::int64_t>(static_cast<__int128>(i) * n / tp.size());
  };
  return {.begin = boundary(tp.rank()), .end = boundary(tp.rank() + 1)};
}

Tensor like_rows(const Tensor& x, std::int64_t last) {
  Shape shape = x.shape();
  shape.back() = last;
  return {x.pool(), std::move(shape), DType::kF32, MemoryKind::kActivations};
}

ColumnParallelLinear::ColumnParallelLinear(const std::vector<std::string>& names, std::int64_t in,
                                           std::int64_t out, const LayerSetup& setup)
    : tp_(&setup.tp),
      sliced_(holds_slices(setup.layout, setup.tp)),
      shards_(local_shards(setup.layout.virtual_shards, setup.tp).count),
      fused_(static_cast<std::int64_t>(names.size())) {
  const OwnedRange range = even_range(out, setup.tp, names.front());
  std::vector<Segment> weights, biases;
  for (const std::string& name : names) {
    weights.push_back({.name = name + ".weight",
                       .global_shape = {out, in},
                       .offset = {range.begin, 0},
                       .extent = {range.size(), in}});
    biases.push_back({.name = name + ".bias",
                      .global_shape = {out},
                      .offset = {range.begin},
                      .extent = {range.size()}});
  }
  weight_ = make_parameter(setup.pool, std::move(weights), setup.gradient, Init::kNormal,
                           setup.init_std, setup.numbers);
  weight_.written_by_products = true;
  bias_ =
      make_parameter(setup.pool, std::move(biases), setup.gradient, Init::kZero, 0, setup.numbers);
}

Tensor ColumnParallelLinear::whole(const Tensor& x) const {
  return sliced_ ? gather_positions(x, *tp_) : x;
}

Tensor ColumnParallelLinear::forward(const Tensor& x, Saved* saved) const {
  const Tensor all = whole(x);
  Tensor y = like_rows(all, weight_.value.dim(0));
  linear(all, weight_.value, y, {.bias = bias_.value});
  if (saved != nullptr) saved->x = x;
  return y;
}

ColumnParallelLinear::WithGelu ColumnParallelLinear::forward_gelu(const Tensor& x,
                                                                  Saved* saved) const {
  const Tensor all = whole(x);
  WithGelu out{.y = like_rows(all, weight_.value.dim(0)),
               .gelu = like_rows(all, weight_.value.dim(0))};
  linear(all, weight_.value, out.y, {.bias = bias_.value, .gelu = out.gelu});
  if (saved != nullptr) saved->x = x;
  return out;
}

Tensor ColumnParallelLinear::backward(const Tensor& dy, const Saved& saved) {
  linear_dweight(dy, whole(saved.x), weight_.grad, output_of(weight_));
  sum_rows(dy, bias_.grad);
  Tensor dx = like_rows(dy, saved.x.dim(-1));
  local_dx(dy, dx);
  // Each rank has the part through its own features.
  if (sliced_) return scatter_positions(dx, *tp_);
  tp_->all_reduce(dx, ReduceOp::kSum);
  return dx;
}

void ColumnParallelLinear::local_dx(const Tensor& dy, const Tensor& dx) const {
  if (shards_ == 1) return linear_dx(dy, weight_.value, dx);
  const std::int64_t width = dy.dim(-1) / fused_;
  sum_shards(shards_, dx, [&](int i, const Tensor& plus, const Tensor& to) {
    std::vector<Interval> features(static_cast<std::size_t>(fused_), shard_of(width, i, shards_));
    for (std::size_t name = 0; name < features.size(); ++name) {
      features[name].begin += static_cast<std::int64_t>(name) * width;
      features[name].end += static_cast<std::int64_t>(name) * width;
    }
    linear_dx_parts(dy, weight_.value, features, plus, to);
  });
}

void ColumnParallelLinear::collect(std::vector<Parameter*>& out) {
  out.push_back(&weight_);
  out.push_back(&bias_);
}

RowParallelLinear::RowParallelLinear(const std::string& name, std::int64_t in, std::int64_t out,
                                     const LayerSetup& setup)
    : tp_(&setup.tp),
      sliced_(holds_slices(setup.layout, setup.tp)),
      shards_(local_shards(setup.layout.virtual_shards, setup.tp).count),
      added_after_(sliced_ || setup.layout.virtual_shards > 1) {
  const OwnedRange range = even_range(in, setup.tp, name);
  weight_ = make_parameter(setup.pool,
                           {{.name = name + ".weight",
                             .global_shape = {out, in},
                             .offset = {0, range.begin},
                             .extent = {out, range.size()}}},
                           setup.gradient, Init::kNormal, setup.init_std, setup.numbers);
  weight_.written_by_products = true;
  bias_ = make_parameter(
      setup.pool, {{.name = name + ".bias", .global_shape = {out}, .offset = {0}, .extent = {out}}},
      setup.gradient, Init::kZero, 0, setup.numbers);
  bias_.sum_over_tensor = sliced_;
  add_gradient_shards(bias_, setup);
}

Tensor RowParallelLinear::forward(const Tensor& x, const Tensor& residual, Saved* saved) const {
  Tensor y = like_rows(x, weight_.value.dim(0));
  if (saved != nullptr) saved->x = x;
  if (added_after_) {
    sum_shards(shards_, y, [&](int i, const Tensor& plus, const Tensor& to) {
      linear_part(x, weight_.value, shard_of(x.dim(-1), i, shards_), plus, to);
    });
    if (sliced_) {
      y = scatter_positions(y, *tp_);
    } else {
      tp_->all_reduce(y, ReduceOp::kSum);
    }
    add_bias(bias_.value, residual, y);
    return y;
  }
  // The first rank's part carries bias and residual, so that the sum holds them once and they stay
  // in the product's epilogue.
  const bool carries = tp_->rank() == 0;
  linear(x, weight_.value, y,
         {.bias = carries ? bias_.value : Tensor(), .residual = carries ? residual : Tensor()});
  tp_->all_reduce(y, ReduceOp::kSum);
  return y;
}

Tensor RowParallelLinear::backward(const Tensor& dy, const Saved& saved) {
  sum_positions(dy, bias_);
  const Tensor all = sliced_ ? gather_positions(dy, *tp_) : dy;
  linear_dweight(all, saved.x, weight_.grad, output_of(weight_));
  Tensor dx = like_rows(all, saved.x.dim(-1));
  linear_dx(all, weight_.value, dx);
  return dx;
}

void RowParallelLinear::collect(std::vector<Parameter*>& out) {
  out.push_back(&weight_);
  out.push_back(&bias_);
}

}  // namespace mt
