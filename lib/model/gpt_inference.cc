// The parts of GptStage that training does not need: comparison and decoding.
#include <utility>

#include "model/gpt.h"
#include "model/gpt_parts.h"
#include "tensor/ops.h"

namespace mt {
namespace {

GptInput without_dropout(GptInput input) {
  input.samples = nullptr;
  return input;
}

}  // namespace

Tensor GptStage::Parts::run(const GptInput& input, const Tensor& activations,
                            std::vector<Tensor>* trace) const {
  MT_ASSERT(range.first != activations.defined());
  check(input, 0);
  const MicroBatch micro = micro_batch(without_dropout(input), 0);
  Tensor x = range.first ? embed(input, 0, micro, nullptr) : activations;
  if (trace != nullptr) trace->push_back(all_positions(x));
  for (const Block& block : blocks) {
    x = block.forward(x, micro, nullptr);
    if (trace != nullptr) trace->push_back(all_positions(x));
  }
  return range.last ? all_positions(final_norm->forward(x, nullptr)) : x;
}

Tensor GptStage::all_logits(const GptInput& input) {
  MT_ASSERT(parts_->range.first && parts_->range.last);
  const std::int64_t count = input.batch * input.sequence;
  const Tensor x = parts_->run(input).view({count, parts_->config.hidden_size});
  return parts_->head->logits(x, parts_->head_weight())
      .view({input.batch, input.sequence, parts_->config.vocab_size});
}

std::vector<Tensor> GptStage::all_activations(const GptInput& input) {
  std::vector<Tensor> activations;
  const Tensor normed = parts_->run(input, {}, &activations);
  activations.push_back(normed);
  return activations;
}

std::unique_ptr<GptStage::Cache, GptStage::Release> GptStage::make_cache(
    std::int64_t slots, std::int64_t capacity) const {
  MT_ASSERT(slots > 0 && capacity > 0);
  std::unique_ptr<Cache, Release> cache(std::make_unique<Cache>().release());
  cache->capacity = capacity;
  cache->lengths.assign(static_cast<std::size_t>(slots), 0);
  for (const Block& block : parts_->blocks) {
    cache->layers.push_back(block.make_cache(*parts_->pool, slots, capacity));
  }
  return cache;
}

std::int64_t GptStage::cached(const Cache& cache, std::int64_t slot) {
  return cache.lengths.at(static_cast<std::size_t>(slot));
}

void GptStage::truncate(Cache& cache, std::int64_t slot, std::int64_t positions) {
  MT_ASSERT(0 <= positions && positions <= cached(cache, slot));
  cache.lengths[static_cast<std::size_t>(slot)] = positions;
}

void GptStage::fork(Cache& cache, std::int64_t from, std::int64_t to, std::int64_t positions) {
  MT_ASSERT(0 <= positions && positions <= cached(cache, from));
  for (const Tensor& layer : cache.layers) {
    if (from != to) copy_slot(layer, from, to, positions);
  }
  cache.lengths.at(static_cast<std::size_t>(to)) = positions;
}

Tensor GptStage::next_logits(const GptInput& input, Cache& cache,
                             const std::vector<std::int64_t>& slots, const Tensor& activations) {
  Parts& parts = *parts_;
  MT_ASSERT(parts.range.first != activations.defined() && input.position_ids == nullptr);
  MT_ASSERT(!parts.sliced);  // see Parts
  CachePlaces places{.slots = slots, .starts = {}};
  for (std::int64_t i = 0; slots.empty() && i < input.batch; ++i) places.slots.push_back(i);
  MT_ASSERT(static_cast<std::int64_t>(places.slots.size()) == input.batch);
  std::vector<std::int32_t> position_ids;
  for (const std::int64_t slot : places.slots) {
    const std::int64_t start = cached(cache, slot), end = start + input.sequence;
    const std::int64_t positions = parts.config.max_position_embeddings;
    if (end > positions || end > cache.capacity) {
      throw UsageError(cat("a sequence of ", end, " tokens: the ",
                           end > positions ? "model has " : "cache holds ",
                           end > positions ? positions : cache.capacity, " positions"));
    }
    places.starts.push_back(start);
    for (std::int64_t p = start; p < end; ++p) {
      position_ids.push_back(static_cast<std::int32_t>(p));
    }
  }
  // Batches of ever new sizes leave blocks behind that no later one fits.
  if (const MemoryUse use = parts.pool->use(); use.system_bytes > 2 * use.peak_total) {
    parts.pool->release_spare();
  }
  GptInput placed = without_dropout(input);
  placed.position_ids = position_ids.data();
  parts.check(placed, 0);
  Tensor x = parts.range.first ? parts.embed(placed, 0, {}, nullptr) : activations;
  for (std::size_t i = 0; i < parts.blocks.size(); ++i) {
    x = parts.blocks[i].forward_cached(x, cache.layers[i], places);
  }
  for (const std::int64_t slot : places.slots) {
    cache.lengths[static_cast<std::size_t>(slot)] += input.sequence;
  }
  if (!parts.range.last) return x;

  const std::int64_t hidden = parts.config.hidden_size;
  const Tensor rows = x.view({input.batch * input.sequence, hidden});
  const Tensor last(*parts.pool, {input.batch, hidden}, DType::kF32, MemoryKind::kActivations);
  for (std::int64_t i = 0; i < input.batch; ++i) {
    const std::int64_t row = (i + 1) * input.sequence - 1;
    copy(rows.rows(row, row + 1), last.rows(i, i + 1));
  }
  return parts.head->logits(parts.final_norm->forward(last, nullptr), parts.head_weight());
}

}  // namespace mt
