#include "train/trainer.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "optim/gradient_norm.h"
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

Trainer::Trainer(const TrainerSettings& settings, GptStage& model, Adam& optimizer)
    : settings_(settings),
      model_(model),
      optimizer_(optimizer),
      batches_(static_cast<std::size_t>(settings.global_batch_size / settings.micro_batch_size)),
      saved_(model.make_saved()) {
  model.reserve_gradients(settings.global_batch_size * settings.seq_length);
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

NumericError Trainer::not_finite(const char* what, double value, std::int64_t iteration) const {
  const std::string weight = find_not_finite(model_.parameters());
  return NumericError(
      cat("iteration ", iteration + 1, ": the ", what, " is ", value, "; ",
          weight.empty() ? "all weights are finite" : cat("weight ", weight, " is not finite")));
}

Trainer::Step Trainer::step(const Window& window, const Plan& plan) {
  const std::int64_t iteration = plan.iteration;
  const auto count = static_cast<std::size_t>(plan.batch_size / settings_.micro_batch_size);
  MT_ASSERT(plan.batch_size % settings_.micro_batch_size == 0 && 0 < count &&
            count <= batches_.size());
  taken_ = count;
  double targets = 0;
  for (std::size_t m = 0; m < count; ++m) {
    const auto first =
        plan.first_sample + static_cast<std::int64_t>(m) * settings_.micro_batch_size;
    fill(window, first, settings_.micro_batch_size, batches_[m]);
    targets += batches_[m].weight_sum();
  }
  if (targets <= 0) {
    throw DataError(cat("iteration ", iteration + 1, ": samples ", plan.first_sample, " to ",
                        plan.first_sample + plan.batch_size - 1,
                        " hold no target that counts: end-of-document tokens only"));
  }
  double loss_sum = 0;
  for (std::size_t m = 0; m < count; ++m) {
    const GptBatch& batch = batches_[m];
    const GptInput input = input_of(batch, Draw::kDropout);
    loss_sum += model_.forward(input, {}, settings_.seed, 1 / targets, *saved_).loss_sum;
    if (!std::isfinite(loss_sum)) throw not_finite("loss", loss_sum, iteration);
    model_.backward(input, {}, *saved_);
  }
  model_.finish_gradients();
  Step result{.loss = loss_sum / targets, .lr = plan.lr};
  try {
    result.grad_norm = gradient_norm(model_.parameters());
  } catch (const NumericError& error) {
    throw NumericError(cat("iteration ", iteration + 1, ": ", error.what()));
  }
  if (!std::isfinite(result.grad_norm)) {
    throw not_finite("gradient norm", result.grad_norm, iteration);
  }
  if (settings_.norms.any()) result.layers = layer_norms(model_.parameters(), settings_.norms);
  optimizer_.step(result.lr, result.grad_norm);
  return result;
}

std::vector<Trainer::SampleLoss> Trainer::sample_losses() {
  std::vector<SampleLoss> losses;
  for (std::size_t m = 0; m < taken_; ++m) {
    const GptBatch& batch = batches_[m];
    nll_.resize(batch.loss_weight.size());
    model_.token_nll(input_of(batch, Draw::kNothing), nll_.data());
    for (std::int64_t row = 0; row < batch.batch; ++row) {
      double sum = 0, targets = 0;
      for (std::int64_t i = row * batch.sequence; i < (row + 1) * batch.sequence; ++i) {
        const double weight = batch.loss_weight[static_cast<std::size_t>(i)];
        if (weight == 0) continue;
        sum += weight * static_cast<double>(nll_[static_cast<std::size_t>(i)]);
        targets += weight;
      }
      if (targets == 0) continue;
      losses.push_back(
          {.sample = batch.samples[static_cast<std::size_t>(row)], .loss = sum / targets});
    }
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
  double sum = 0;
  double targets = 0;
  while (result.samples < count) {
    if (stop()) return result;
    const std::int64_t batch = std::min(settings_.micro_batch_size, count - result.samples);
    fill(window, result.samples, batch, evaluated_);
    nll_.resize(evaluated_.loss_weight.size());
    model_.token_nll(input_of(evaluated_, Draw::kNothing), nll_.data());
    for (std::size_t i = 0; i < nll_.size(); ++i) {
      const double weight = evaluated_.loss_weight[i];
      if (weight == 0) continue;
      sum += weight * static_cast<double>(nll_[i]);
      targets += weight;
    }
    result.samples += batch;
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
