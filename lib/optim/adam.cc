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

Adam::Adam(const AdamOptions& options, std::vector<Parameter*> parameters, const Communicator& tp,
           Pool& pool)
    : options_(options),
      parameters_(std::move(parameters)),
      tp_(&tp),
      scalars_(pool, {static_cast<std::int64_t>(sizeof(AdamScalars))}, DType::kU8,
               MemoryKind::kOptimizer) {
  options_.check();
  for (const Parameter* parameter : parameters_) {
    const Shape& shape = parameter->value.shape();
    exp_avg_.push_back(Tensor::zero(pool, shape, DType::kF32, MemoryKind::kOptimizer));
    exp_avg_sq_.push_back(Tensor::zero(pool, shape, DType::kF32, MemoryKind::kOptimizer));
  }
}

double Adam::gradient_norm() const {
  // One sum a segment. Ranks add up those of cut tensors; of a tensor that every rank holds whole
  // each has the sum already.
  std::vector<const Segment*> segments;
  std::vector<Tensor> gradients;
  std::vector<double> sums, cut_sums;
  for (const Parameter* parameter : parameters_) {
    for (const Segment& segment : parameter->segments) {
      const bool cut = segment.extent != segment.global_shape;
      segments.push_back(&segment);
      gradients.push_back(segment_rows(parameter->grad, segment));
      const double sum = sum_squares(gradients.back());
      sums.push_back(cut ? 0.0 : sum);
      cut_sums.push_back(cut ? sum : 0.0);
    }
  }
  tp_->all_reduce(cut_sums.data(), static_cast<int>(cut_sums.size()), ReduceOp::kSum);
  double total = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const double sum = sums[i] + cut_sums[i];
    // Squares of floats do not overflow a double: a sum that is not finite has an element that is
    // not.
    if (!std::isfinite(sum)) {
      const std::int64_t element = find_not_finite(gradients[i]);
      throw NumericError(cat(
          "the gradient of ", segments[i]->name, " is not finite",
          element < 0 ? std::string(" on another rank")
                      : cat(" (element ", element, " of ", shape_text(segments[i]->extent), ")")));
    }
    total += sum;
  }
  return std::sqrt(total);
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
    const Parameter& parameter = *parameters_[i];
    adam(parameter.value, exp_avg_[i], exp_avg_sq_[i], parameter.grad, parameter.decay, scalars_);
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
