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

Tensor GptStage::Parts::run(const GptInput& input, std::vector<Tensor>* trace) const {
  MT_ASSERT(range.first && range.last);
  check(input, 0);
  const MicroBatch micro = micro_batch(without_dropout(input), 0);
  Tensor x = embed(input, 0, micro, nullptr);
  if (trace != nullptr) trace->push_back(x);
  for (const Block& block : blocks) {
    x = block.forward(x, micro, nullptr);
    if (trace != nullptr) trace->push_back(x);
  }
  return final_norm->forward(x, nullptr);
}

Tensor GptStage::all_logits(const GptInput& input) {
  const std::int64_t count = input.batch * input.sequence;
  const Tensor x = parts_->run(input).view({count, parts_->config.hidden_size});
  return parts_->head->logits(x, parts_->head_weight())
      .view({input.batch, input.sequence, parts_->config.vocab_size});
}

std::vector<Tensor> GptStage::all_activations(const GptInput& input) {
  std::vector<Tensor> activations;
  const Tensor normed = parts_->run(input, &activations);
  activations.push_back(normed);
  return activations;
}

std::unique_ptr<GptStage::Cache, GptStage::Release> GptStage::make_cache(
    std::int64_t batch, std::int64_t capacity) const {
  MT_ASSERT(batch > 0 && capacity > 0);
  std::unique_ptr<Cache, Release> cache(std::make_unique<Cache>().release());
  cache->batch = batch;
  cache->capacity = capacity;
  for (const Block& block : parts_->blocks) {
    cache->layers.push_back(block.make_cache(*parts_->pool, batch, capacity));
  }
  return cache;
}

std::int64_t GptStage::cached(const Cache& cache) {
  return cache.length;
}

void GptStage::truncate(Cache& cache, std::int64_t positions) {
  MT_ASSERT(0 <= positions && positions <= cache.length);
  cache.length = positions;
}

Tensor GptStage::next_logits(const GptInput& input, Cache& cache) {
  Parts& parts = *parts_;
  MT_ASSERT(parts.range.first && parts.range.last && input.batch == cache.batch);
  if (cache.length + input.sequence > cache.capacity) {
    throw UsageError(cat("a sequence of ", cache.length + input.sequence,
                         " tokens: the cache holds ", cache.capacity, " positions"));
  }
  parts.check(input, cache.length);
  const MicroBatch micro = parts.micro_batch(without_dropout(input), 0);
  Tensor x = parts.embed(input, cache.length, micro, nullptr);
  for (std::size_t i = 0; i < parts.blocks.size(); ++i) {
    cache.layers[i].length = cache.length;
    x = parts.blocks[i].forward_cached(x, micro, cache.layers[i]);
  }
  cache.length += input.sequence;

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
