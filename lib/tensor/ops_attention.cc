// Attention, and the copies that fill its caches.
#include <algorithm>
#include <cmath>

#include "tensor/ops.h"
#include "tensor/ops_checks.h"

namespace mt {

using namespace ops;

void copy_positions(const Tensor& from, std::int64_t column, const Tensor& to,
                    std::int64_t position) {
  CachePlaces places;
  for (std::int64_t sample = 0; sample < from.dim(0); ++sample) {
    places.slots.push_back(sample);
    places.starts.push_back(position);
  }
  require(to.dim(0) == from.dim(0), "copy_positions", {&from, &to});
  copy_positions(from, column, to, places);
}

namespace {

// True if the batch fits into the slots of a cache of `capacity` positions.
bool places_fit(const CachePlaces& places, std::int64_t batch, std::int64_t sequence,
                std::int64_t slots, std::int64_t capacity) {
  const auto n = static_cast<std::size_t>(batch);
  bool fit = places.slots.size() == n && places.starts.size() == n;
  for (std::size_t i = 0; fit && i < n; ++i) {
    fit = 0 <= places.slots[i] && places.slots[i] < slots && 0 <= places.starts[i] &&
          places.starts[i] + sequence <= capacity;
  }
  return fit;
}

}  // namespace

void copy_positions(const Tensor& from, std::int64_t column, const Tensor& to,
                    const CachePlaces& places) {
  const std::int64_t batch = from.dim(0), sequence = from.dim(1), width = to.dim(2);
  require(floats({&from, &to}) && column + width <= from.dim(2) &&
              places_fit(places, batch, sequence, to.dim(0), to.dim(1)),
          "copy_positions", {&from, &to});
  const auto copy_row = to.device().runtime->copy;
  for (std::int64_t sample = 0; sample < batch; ++sample) {
    const auto at = static_cast<std::size_t>(sample);
    for (std::int64_t i = 0; i < sequence; ++i) {
      const float* source = from.as<float>() + (sample * sequence + i) * from.dim(2) + column;
      float* target =
          to.as<float>() + (places.slots[at] * to.dim(1) + places.starts[at] + i) * width;
      copy_row(target, source, static_cast<std::size_t>(width) * sizeof(float));
    }
  }
}

void copy_slot(const Tensor& cache, std::int64_t from, std::int64_t to, std::int64_t positions) {
  require(floats({&cache}) && 0 <= from && from < cache.dim(0) && 0 <= to && to < cache.dim(0) &&
              0 <= positions && positions <= cache.dim(1),
          "copy_slot", {&cache});
  const std::int64_t slot = cache.dim(1) * cache.dim(2);
  cache.device().runtime->copy(cache.as<float>() + to * slot, cache.as<float>() + from * slot,
                               static_cast<std::size_t>(positions * cache.dim(2)) * sizeof(float));
}

namespace {

// The keys that each sample of a batch with a cache sees.
std::vector<std::int64_t> cached_keys(const AttentionInputs& inputs) {
  std::vector<std::int64_t> keys;
  if (inputs.cache == nullptr) return keys;
  for (const std::int64_t start : inputs.cache->starts) keys.push_back(start + inputs.q.dim(1));
  return keys;
}

AttentionShape attention_shape(const AttentionInputs& inputs, const Tensor& out,
                               const Tensor& log_sum_exp,
                               const std::vector<std::int64_t>& sample_keys) {
  const Tensor &q = inputs.q, &kv = inputs.kv;
  const std::int64_t batch = q.dim(0), queries = q.dim(1);
  const std::int64_t width = inputs.heads * inputs.head_size;
  const bool cached = inputs.cache != nullptr;
  const bool placed =
      cached ? places_fit(*inputs.cache, batch, queries, kv.dim(0), kv.dim(1)) &&
                   inputs.dropout.probability == 0
             : kv.dim(0) == batch && inputs.keys >= queries && inputs.keys <= kv.dim(1);
  require(floats({&q, &kv, &out}) && placed && inputs.q_column + width <= q.dim(2) &&
              inputs.k_column + width <= kv.dim(2) && inputs.v_column + width <= kv.dim(2) &&
              out.shape() == Shape{batch, queries, width} &&
              float_or_none(log_sum_exp, batch * inputs.heads * queries) &&
              (!inputs.first_key.defined() || integers(inputs.first_key, batch * queries)),
          "attention", {&q, &kv, &out, &log_sum_exp, &inputs.first_key});
  return {.batch = batch,
          .heads = inputs.heads,
          .head_size = inputs.head_size,
          .queries = queries,
          .keys = cached ? *std::max_element(sample_keys.begin(), sample_keys.end()) : inputs.keys,
          .q_row = q.dim(2),
          .q_batch = queries * q.dim(2),
          .kv_row = kv.dim(2),
          .kv_batch = kv.dim(1) * kv.dim(2),
          .out_row = width,
          .out_batch = queries * width,
          .causal = true,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(inputs.head_size))),
          .first_key = inputs.first_key.defined() ? inputs.first_key.as<std::int32_t>() : nullptr,
          .sample_keys = cached ? sample_keys.data() : nullptr,
          .kv_samples = cached ? inputs.cache->slots.data() : nullptr,
          .first_head = inputs.first_head,
          .dropout = inputs.dropout};
}

}  // namespace

void attention(const AttentionInputs& inputs, const Tensor& out, const Tensor& log_sum_exp) {
  const std::vector<std::int64_t> sample_keys = cached_keys(inputs);
  kernels_of(out).attention_forward(
      DType::kF32, {.shape = attention_shape(inputs, out, log_sum_exp, sample_keys),
                    .q = inputs.q.as<float>() + inputs.q_column,
                    .k = inputs.kv.as<float>() + inputs.k_column,
                    .v = inputs.kv.as<float>() + inputs.v_column,
                    .out = out.data(),
                    .log_sum_exp = log_sum_exp.defined() ? log_sum_exp.as<float>() : nullptr});
}

void attention_backward(const AttentionInputs& inputs, const Tensor& out, const Tensor& log_sum_exp,
                        const Tensor& dout, const Tensor& dqkv) {
  require(floats({&log_sum_exp, &dout, &dqkv}) && inputs.cache == nullptr &&
              inputs.kv.data() == inputs.q.data() && dout.shape() == out.shape() &&
              dqkv.shape() == inputs.q.shape(),
          "attention_backward", {&inputs.q, &inputs.kv, &out, &log_sum_exp, &dout, &dqkv});
  kernels_of(out).attention_backward(DType::kF32,
                                     {.shape = attention_shape(inputs, out, log_sum_exp, {}),
                                      .q = inputs.q.as<float>() + inputs.q_column,
                                      .k = inputs.kv.as<float>() + inputs.k_column,
                                      .v = inputs.kv.as<float>() + inputs.v_column,
                                      .out = out.data(),
                                      .dout = dout.data(),
                                      .log_sum_exp = log_sum_exp.as<float>(),
                                      .dq = dqkv.as<float>() + inputs.q_column,
                                      .dk = dqkv.as<float>() + inputs.k_column,
                                      .dv = dqkv.as<float>() + inputs.v_column});
}

}  // namespace mt
