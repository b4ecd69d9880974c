#include "optim/adam.h"

#include <cmath>
#include <utility>

#include "tensor/ops.h"

namespace mt {

void AdamOptions::add_to(Options& options) {
  options.add("adam-beta1", &adam_beta1, "F", "decay of the first moment");
  options.add("adam-beta2", &adam_beta2, "F", "decay of the second moment");
  options.add("adam-eps", &adam_eps, "F", "added to the root of the second moment");
  options.add("weight-decay", &weight_decay, "F", "decoupled decay of all weight matrices");
  options.add("clip-grad", &clip_grad, "F", "largest norm of all gradients (0: no clipping)");
}

void AdamOptions::check() const {
  const auto require = [](bool holds, const char* option, const char* expected, double found) {
    if (!holds) throw UsageError(cat("--", option, ": expected ", expected, ", found ", found));
  };
  const char* fraction = "a number from 0 to below 1";
  require(adam_beta1 >= 0 && adam_beta1 < 1, "adam-beta1", fraction, adam_beta1);
  require(adam_beta2 >= 0 && adam_beta2 < 1, "adam-beta2", fraction, adam_beta2);
  // The kernel takes floats. With an epsilon that rounds to 0 a row without a gradient is 0 / 0.
  const auto eps = static_cast<float>(adam_eps);
  require(eps > 0 && std::isfinite(eps), "adam-eps", "a positive number in a float's range",
          adam_eps);
  const char* not_negative = "a number of at least 0 in a float's range";
  require(weight_decay >= 0 && std::isfinite(static_cast<float>(weight_decay)), "weight-decay",
          not_negative, weight_decay);
  require(clip_grad >= 0 && std::isfinite(static_cast<float>(clip_grad)), "clip-grad", not_negative,
          clip_grad);
}

Adam::Adam(const AdamOptions& options, std::vector<Parameter*> parameters,
           std::vector<RowRange> slices, Pool& pool)
    : options_(options),
      parameters_(std::move(parameters)),
      slices_(std::move(slices)),
      scalars_(pool, {static_cast<std::int64_t>(sizeof(AdamScalars))}, DType::kU8,
               MemoryKind::kOptimizer) {
  options_.check();
  MT_ASSERT(slices_.size() == parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Shape shape = parameters_[i]->value.shape();
    shape[0] = slices_[i].size();
    exp_avg_.push_back(Tensor::zero(pool, shape, DType::kF32, MemoryKind::kOptimizer));
    exp_avg_sq_.push_back(Tensor::zero(pool, shape, DType::kF32, MemoryKind::kOptimizer));
  }
}

void Adam::step(double lr, double gradient_norm) {
  MT_ASSERT(std::isfinite(lr) && std::isfinite(gradient_norm));
  ++steps_;
  const double beta1 = options_.adam_beta1, beta2 = options_.adam_beta2;
  const double clip = options_.clip_grad;
  const bool clips = clip > 0 && gradient_norm > clip;
  const auto t = static_cast<double>(steps_);
  const AdamScalars scalars{
      .lr = static_cast<float>(lr),
      .beta1 = static_cast<float>(beta1),
      .beta2 = static_cast<float>(beta2),
      .epsilon = static_cast<float>(options_.adam_eps),
      .weight_decay = static_cast<float>(options_.weight_decay),
      .one_minus_beta1 = static_cast<float>(1 - beta1),
      .one_minus_beta2 = static_cast<float>(1 - beta2),
      .step_size = static_cast<float>(lr / (1 - std::pow(beta1, t))),
      .inverse_sqrt_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, t))),
      .gradient_scale = clips ? static_cast<float>(clip / (gradient_norm + 1e-6)) : 1.0F};
  copy_from_host(&scalars, scalars_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = *parameters_[i];
    const auto [begin, end] = slices_[i];
    adam(parameter.value.rows(begin, end), exp_avg_[i], exp_avg_sq_[i],
         parameter.grad.rows(begin, end), parameter.decay, scalars_,
         !parameter.written_by_products);
    parameter.stale = parameter.written_by_products;
    if (parameter.stale) continue;
    parameter.grad.rows(0, begin).fill_zero();
    parameter.grad.rows(end, parameter.grad.dim(0)).fill_zero();
  }
}

std::int64_t Adam::steps() const {
  return steps_;
}

void Adam::set_steps(std::int64_t steps) {
  MT_ASSERT(steps >= 0);
  steps_ = steps;
}

const Tensor& Adam::exp_avg(std::size_t i) const {
  return exp_avg_.at(i);
}
const Tensor& Adam::exp_avg_sq(std::size_t i) const {
  return exp_avg_sq_.at(i);
}

}  // namespace mt
