#include "train/gradient_sync.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "nn/shards.h"
#include "optim/zero1.h"
#include "tensor/ops.h"

namespace mt {
namespace {

std::vector<Parameter*> parameters_of(const std::vector<GptStage*>& stages) {
  std::vector<Parameter*> all;
  for (GptStage* stage : stages) {
    all.insert(all.end(), stage->parameters().begin(), stage->parameters().end());
  }
  return all;
}

bool has_two_parts(const Parameter& parameter) {
  return parameter.grad_apart.defined();
}

// Backward completes the last layer first.
std::vector<DataBuckets::Entry> gradient_entries(const std::vector<Parameter*>& parameters,
                                                 const std::vector<RowRange>& slices) {
  std::vector<DataBuckets::Entry> entries;
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const Parameter& parameter = *parameters[i];
    if (parameter.grad_shards.defined()) {
      MT_ASSERT(!is_cut(parameter, slices[i]));
      entries.push_back({.tensor = parameter.grad_shards, .cut = false});
      continue;
    }
    entries.push_back({.tensor = parameter.grad, .cut = is_cut(parameter, slices[i])});
    if (!has_two_parts(parameter)) continue;
    entries.push_back({.tensor = parameter.grad_apart, .cut = is_cut(parameter, slices[i])});
  }
  return entries;
}

std::vector<DataBuckets::Entry> value_entries(const std::vector<Parameter*>& parameters,
                                              const std::vector<RowRange>& slices) {
  std::vector<DataBuckets::Entry> entries;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!is_cut(*parameters[i], slices[i])) continue;
    entries.push_back({.tensor = parameters[i]->value, .cut = true});
  }
  return entries;
}

}  // namespace

GradientSync::GradientSync(const ProcessGrid& grid, std::vector<GptStage*> stages,
                           const Settings& settings, Pool& pool)
    : grid_(grid),
      stages_(std::move(stages)),
      pool_(pool),
      parameters_(parameters_of(stages_)),
      slices_(settings.distributed_optimizer ? zero1_slices(parameters_, grid.data())
                                             : all_rows(parameters_)),
      gradients_(grid.data(), gradient_entries(parameters_, slices_), settings.bucket_bytes, pool),
      values_(grid.data(), value_entries(parameters_, slices_), settings.bucket_bytes, pool) {
  std::size_t first = 0;
  for (GptStage* stage : stages_) {
    first_of_chunk_.push_back(first);
    first += stage->parameters().size();
  }
  entries_from_.assign(parameters_.size() + 1, 0);
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    entries_from_[i] = entries_from_[i + 1] + (has_two_parts(*parameters_[i]) ? 2 : 1);
  }
}

void GradientSync::complete(int chunk, std::size_t first) {
  const std::size_t parameter = first_of_chunk_.at(static_cast<std::size_t>(chunk)) + first;
  gradients_.sum_ready(entries_from_.at(parameter));
}

Tensor GradientSync::slice_of(std::size_t i) const {
  return parameters_[i]->grad.rows(slices_[i].begin, slices_[i].end);
}

void GradientSync::finish() {
  for (GptStage* stage : stages_) stage->finish_gradients();
  gradients_.sum_rest();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = *parameters_[i];
    collapse_gradient_shards(parameter);
    if (!parameter.grad_apart.defined()) continue;
    add(parameter.grad_apart.rows(slices_[i].begin, slices_[i].end), slice_of(i));
    parameter.grad_apart.fill_zero();
  }
  reduce_tied_embedding();
  reduce_over_tensor();
}

// The first stage has the embedding's part of the gradient, the last one, in its copy of the
// weights, the head's.
void GradientSync::reduce_tied_embedding() const {
  if (grid_.embedding().size() == 1) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool tied = std::any_of(stages_.begin(), stages_.end(), [&](const GptStage* stage) {
      return stage->tied_weight() == parameters_[i];
    });
    if (tied) grid_.embedding().all_reduce(slice_of(i), ReduceOp::kSum);
  }
}

void GradientSync::reduce_over_tensor() const {
  std::vector<Tensor> gradients;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i]->sum_over_tensor) gradients.push_back(slice_of(i));
  }
  sum_together(grid_.tensor(), gradients, pool_);
}

NormShare GradientSync::share() const {
  const GridPlace& place = grid_.place();
  return {.group = group(),
          .first_of_tensor = place.tensor == 0,
          .first_of_data = place.data == 0,
          .place = group().size() > 1 ? cat("rank ", group().rank()) : ""};
}

double GradientSync::norm() const {
  return gradient_norm(parameters_, slices_, share());
}

std::vector<CountedGradient> GradientSync::counted() const {
  return counted_gradients(parameters_, slices_, share());
}

void GradientSync::publish() const {
  values_.gather();
}

}  // namespace mt
