#include "train/trainer.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tensor/ops.h"

namespace mt {

namespace {

enum class Draw { kDropout, kNothing };

GptInput input_of(const GptBatch& batch, Draw draw) {
  return {.batch = batch.batch,
          .sequence = batch.sequence,
          .tokens = batch.tokens.data(),
          .position_ids = batch.position_ids.empty() ? nullptr : batch.position_ids.data(),
          .first_key = batch.first_key.empty() ? nullptr : batch.first_key.data(),
          .labels = batch.labels.data(),
          .loss_weight = batch.loss_weight.data(),
          .samples = draw == Draw::kDropout ? batch.samples.data() : nullptr};
}

}  // namespace

std::string find_not_finite(const std::vector<Parameter*>& parameters) {
  for (const Parameter* parameter : parameters) {
    for (const Segment& segment : parameter->segments) {
      if (find_not_finite(segment_rows(parameter->value, segment)) >= 0) return segment.name;
    }
  }
  return "";
}

Trainer::Trainer(const TrainerSettings& settings, const ProcessGrid& grid, GridModel& model,
                 GradientSync& sync, Adam& optimizer)
    : settings_(settings), grid_(grid), model_(model), sync_(sync), optimizer_(optimizer) {
  const std::int64_t share = settings.global_batch_size / grid.shape().data;
  MT_ASSERT(share * grid.shape().data == settings.global_batch_size);
  batches_.resize(static_cast<std::size_t>(share / settings.micro_batch_size));
  model.reserve_gradients(share * settings.seq_length);
}

void Trainer::fill(const Window& window, std::int64_t first, std::int64_t count, GptBatch& batch) {
  const std::int64_t length = settings_.seq_length + 1;
  windows_.resize(static_cast<std::size_t>(count * length));
  samples_.resize(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    window(first + i, windows_.data() + i * length);
    samples_[static_cast<std::size_t>(i)] = first + i;
  }
  make_gpt_batch(windows_.data(), count, settings_.seq_length, settings_.end_of_document,
                 settings_.packing, samples_.data(), batch);
}

NumericError Trainer::not_finite(const std::string& what, std::int64_t iteration) const {
  const std::string weight = find_not_finite(model_.parameters());
  return NumericError(
      cat("iteration ", iteration + 1, ": ", what, "; ",
          weight.empty() ? "all weights are finite" : cat("weight ", weight, " is not finite")));
}

double Trainer::take_batch(const Window& window, const Plan& plan) {
  const std::int64_t share = plan.batch_size / grid_.shape().data;
  const std::int64_t micro = settings_.micro_batch_size;
  taken_ = static_cast<std::size_t>(share / micro);
  MT_ASSERT(share * grid_.shape().data == plan.batch_size && share % micro == 0 && 0 < taken_ &&
            taken_ <= batches_.size());
  batch_begin_ = plan.first_sample;
  batch_size_ = plan.batch_size;
  double targets = 0;
  for (std::size_t m = 0; m < taken_; ++m) {
    const auto first =
        plan.first_sample + share * grid_.place().data + static_cast<std::int64_t>(m) * micro;
    fill(window, first, micro, batches_[m]);
    targets += batches_[m].weight_sum();
  }
  grid_.data().all_reduce(&targets, 1, ReduceOp::kSum);
  if (targets > 0) return targets;
  throw DataError(cat("iteration ", plan.iteration + 1, ": samples ", plan.first_sample, " to ",
                      plan.first_sample + plan.batch_size - 1,
                      " hold no target that counts: end-of-document tokens only"));
}

Trainer::Step Trainer::step(const Window& window, const Plan& plan) {
  const double targets = take_batch(window, plan);
  std::vector<GptInput> inputs;
  for (std::size_t m = 0; m < taken_; ++m) {
    inputs.push_back(input_of(batches_[m], Draw::kDropout));
  }
  double loss_sum = 0;
  try {
    loss_sum =
        model_.pipeline().run(inputs, settings_.seed, 1 / targets,
                              [&](int chunk, std::size_t first) { sync_.complete(chunk, first); });
  } catch (const NumericError& error) {
    throw not_finite(error.what(), plan.iteration);
  }
  // Of one stage; zeros of the others change nothing.
  grid_.data().all_reduce(&loss_sum, 1, ReduceOp::kSum);
  grid_.pipeline().all_reduce(&loss_sum, 1, ReduceOp::kSum);
  Step result{.loss = loss_sum / targets, .lr = plan.lr};
  sync_.finish();
  try {
    result.grad_norm = sync_.norm();
  } catch (const NumericError& error) {
    throw NumericError(cat("iteration ", plan.iteration + 1, ": ", error.what()));
  }
  if (!std::isfinite(result.grad_norm)) {
    throw not_finite(cat("the gradient norm is ", result.grad_norm), plan.iteration);
  }
  if (settings_.norms.any()) result.layers = layer_norms(sync_, settings_.norms);
  optimizer_.step(result.lr, result.grad_norm);
  sync_.publish();
  return result;
}

void Trainer::sample_sums(const GptBatch& batch, Sums* sums) {
  nll_.assign(batch.loss_weight.size(), 0.0F);
  model_.pipeline().token_nll(input_of(batch, Draw::kNothing), nll_.data());
  if (!model_.has_head()) return;
  for (std::int64_t row = 0; row < batch.batch; ++row) {
    for (std::int64_t i = row * batch.sequence; i < (row + 1) * batch.sequence; ++i) {
      const double weight = batch.loss_weight[static_cast<std::size_t>(i)];
      if (weight == 0) continue;
      sums[row].nll += weight * static_cast<double>(nll_[static_cast<std::size_t>(i)]);
      sums[row].weight += weight;
    }
  }
}

void Trainer::combine(std::vector<Sums>& sums) const {
  std::vector<double> numbers;
  for (const Sums& each : sums) numbers.insert(numbers.end(), {each.nll, each.weight});
  const auto count = static_cast<std::int64_t>(numbers.size());
  // Each sum lies on one rank; zeros of the others change nothing.
  grid_.data().all_reduce(numbers.data(), count, ReduceOp::kSum);
  grid_.pipeline().all_reduce(numbers.data(), count, ReduceOp::kSum);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] = {.nll = numbers[2 * i], .weight = numbers[2 * i + 1]};
  }
}

std::vector<Trainer::SampleLoss> Trainer::sample_losses() {
  std::vector<Sums> sums(static_cast<std::size_t>(batch_size_));
  const std::int64_t share = batch_size_ / grid_.shape().data;
  for (std::size_t m = 0; m < taken_; ++m) {
    const auto at =
        share * grid_.place().data + static_cast<std::int64_t>(m) * settings_.micro_batch_size;
    sample_sums(batches_[m], sums.data() + at);
  }
  combine(sums);
  std::vector<SampleLoss> losses;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (sums[i].weight == 0) continue;
    losses.push_back({.sample = batch_begin_ + static_cast<std::int64_t>(i),
                      .loss = sums[i].nll / sums[i].weight});
  }
  std::stable_sort(losses.begin(), losses.end(),
                   [](const SampleLoss& a, const SampleLoss& b) { return a.loss > b.loss; });
  return losses;
}

double Trainer::Evaluation::perplexity() const {
  return std::exp(loss);
}

Trainer::Evaluation Trainer::evaluate(const BlendedData& data, std::int64_t batches,
                                      const std::function<bool()>& stop) {
  BlendedData::Reader reader(data);
  return evaluate_windows([&](std::int64_t i, std::int32_t* out) { reader.sample(i, out); },
                          batches * settings_.global_batch_size, stop);
}

Trainer::Evaluation Trainer::evaluate_all(const BlendedData& data,
                                          const std::function<bool()>& stop) {
  return evaluate_windows([&](std::int64_t i, std::int32_t* out) { data.ordered_sample(i, out); },
                          data.ordered_samples(), stop);
}

Trainer::Evaluation Trainer::evaluate_windows(const Window& window, std::int64_t count,
                                              const std::function<bool()>& stop) {
  Evaluation result;
  double sum = 0, targets = 0;
  const std::int64_t micro = settings_.micro_batch_size;
  while (result.samples < count) {
    if (stop()) return result;
    // A micro-batch for each rank of the data axis.
    const std::int64_t round = std::min(micro * grid_.shape().data, count - result.samples);
    std::vector<Sums> sums(static_cast<std::size_t>(round));
    const std::int64_t begin = micro * grid_.place().data;
    if (begin < round) {
      fill(window, result.samples + begin, std::min(micro, round - begin), evaluated_);
      sample_sums(evaluated_, sums.data() + begin);
    }
    combine(sums);
    // In the order of the samples, so that the grid changes no bit.
    for (const Sums& each : sums) {
      sum += each.nll;
      targets += each.weight;
    }
    result.samples += round;
  }
  if (!std::isfinite(sum)) {
    const std::string weight = find_not_finite(model_.parameters());
    throw NumericError(cat("evaluation: the loss is ", sum,
                           weight.empty() ? "" : cat("; weight ", weight, " is not finite")));
  }
  if (targets <= 0) {
    throw DataError(cat("evaluation: ", count,
                        " samples hold no target that counts: end-of-document ", "tokens only"));
  }
  result.loss = sum / targets;
  result.targets = static_cast<std::int64_t>(targets);
  result.complete = true;
  return result;
}

}  // namespace mt
