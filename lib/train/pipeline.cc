#include "train/pipeline.h"

#include <cmath>
#include <utility>

#include "base/error.h"

namespace mt {
namespace {

// ((0 + 1) + (2 + 3)) + ...; a power of two of them.
double tree_sum(std::vector<double> parts) {
  for (; parts.size() > 1; parts.resize(parts.size() / 2)) {
    for (std::size_t i = 0; i < parts.size() / 2; ++i) parts[i] = parts[2 * i] + parts[2 * i + 1];
  }
  return parts[0];
}

}  // namespace

StageRange chunk_range(std::int64_t layers, const ScheduleShape& shape, int stage, int chunk) {
  const std::int64_t parts = std::int64_t{shape.stages} * shape.chunks;
  if (layers % parts != 0) {
    throw UsageError(cat("--num-layers ", layers, ": not divisible by ", shape.stages,
                         " pipeline stages x ", shape.chunks, " chunks = ", parts));
  }
  const std::int64_t part = std::int64_t{chunk} * shape.stages + stage;
  return {.first_layer = layers / parts * part,
          .last_layer = layers / parts * (part + 1),
          .first = part == 0,
          .last = part == parts - 1};
}

Pipeline::Pipeline(std::vector<GptStage*> chunks, const ScheduleShape& shape,
                   const Communicator& forth, const Communicator& back, Pool& pool)
    : chunks_(std::move(chunks)),
      shape_(shape),
      forth_(forth),
      back_(back),
      pool_(pool),
      steps_(stage_schedule(shape, forth.rank())),
      in_flight_(chunks_.size()),
      free_(chunks_.size()) {
  MT_ASSERT(forth.size() == shape.stages && static_cast<int>(chunks_.size()) == shape.chunks);
  MT_ASSERT(back.size() == forth.size() && back.rank() == forth.rank());
}

bool Pipeline::ends_part(const PipelineStep& step) const {
  return (step.micro_batch + 1) % part_ == 0;
}

Tensor Pipeline::activations(const GptInput& input) const {
  return {pool_, chunks_[0]->activation_shape(input), DType::kF32, MemoryKind::kActivations};
}

void Pipeline::take(std::size_t micro_batches) {
  if (micro_batches == static_cast<std::size_t>(shape_.micro_batches)) return;
  shape_.micro_batches = static_cast<int>(micro_batches);
  shape_.check();
  steps_ = stage_schedule(shape_, forth_.rank());
}

void Pipeline::token_nll(const GptInput& input, float* nll) {
  for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
    Tensor x;
    if (!first(chunk)) {
      x = activations(input);
      forth_.receive(x, (forth_.rank() + forth_.size() - 1) % forth_.size());
    }
    x = chunks_[static_cast<std::size_t>(chunk)]->evaluate(input, x, nll);
    if (!last(chunk)) forth_.send(x, (forth_.rank() + 1) % forth_.size());
  }
  forth_.finish_sends();
}

double Pipeline::run(const std::vector<GptInput>& inputs, std::uint32_t dropout_seed,
                     double gradient_scale, const Complete& complete) {
  take(inputs.size());
  MT_ASSERT(shape_.micro_batches % chunks_[0]->sample_shards() == 0);
  part_ = shape_.micro_batches / chunks_[0]->sample_shards();
  part_losses_.assign(1, 0.0);
  for (const PipelineStep& step : steps_) {
    const GptInput& input = inputs[static_cast<std::size_t>(step.micro_batch)];
    if (step.phase == Phase::kForward) {
      forward(step, input, dropout_seed, gradient_scale);
    } else {
      backward(step, input, complete);
    }
  }
  forth_.finish_sends();
  back_.finish_sends();
  return tree_sum(part_losses_);
}

void Pipeline::forward(const PipelineStep& step, const GptInput& input, std::uint32_t seed,
                       double scale) {
  const auto chunk = static_cast<std::size_t>(step.chunk);
  Tensor x;
  if (!first(step.chunk)) {
    x = activations(input);
    forth_.receive(x, (forth_.rank() + forth_.size() - 1) % forth_.size());
  }
  if (free_[chunk].empty()) free_[chunk].push_back(chunks_[chunk]->make_saved());
  SavedPtr saved = std::move(free_[chunk].back());
  free_[chunk].pop_back();
  const GptStage::ForwardResult result =
      chunks_[chunk]->forward(input, x, seed, scale, *saved, part_losses_.back());
  in_flight_[chunk].push_back(std::move(saved));
  if (last(step.chunk)) {
    part_losses_.back() = result.loss_sum;
    if (!std::isfinite(result.loss_sum)) {
      throw NumericError(
          cat("the loss of micro-batch ", step.micro_batch, " is ", result.loss_sum));
    }
  } else {
    forth_.send(result.activations, (forth_.rank() + 1) % forth_.size());
  }
  if (!ends_part(step)) return;
  chunks_[chunk]->close_part(Pass::kForward);
  if (last(step.chunk) && step.micro_batch + 1 < shape_.micro_batches) part_losses_.push_back(0);
}

void Pipeline::backward(const PipelineStep& step, const GptInput& input, const Complete& complete) {
  const auto chunk = static_cast<std::size_t>(step.chunk);
  Tensor dy;
  if (!last(step.chunk)) {
    dy = activations(input);
    back_.receive(dy, (back_.rank() + 1) % back_.size());
  }
  SavedPtr saved = std::move(in_flight_[chunk].front());
  in_flight_[chunk].erase(in_flight_[chunk].begin());
  GptStage::Complete last_pass;
  if (complete && step.micro_batch + 1 == shape_.micro_batches) {
    last_pass = [&](std::size_t parameter) { complete(step.chunk, parameter); };
  }
  const Tensor dx = chunks_[chunk]->backward(input, dy, *saved, last_pass);
  free_[chunk].push_back(std::move(saved));
  if (!first(step.chunk)) {
    back_.send(dx, (back_.rank() + back_.size() - 1) % back_.size());
  }
  if (ends_part(step)) chunks_[chunk]->close_part(Pass::kBackward);
}

}  // namespace mt
