// What the sources of attention share: the rows of one head, what its queries see, and the running
// softmax of a row over blocks of kKeys keys.
#pragma once

#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/random.h"
#include "kernels/cpu/vector.h"

namespace mt::cpu::MT_KERNEL_SET {

constexpr std::int64_t kKeys = 64;

inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
inline std::int64_t larger(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}
inline std::int64_t round_up(std::int64_t x, std::int64_t to) {
  return (x + to - 1) / to * to;
}

// One head of one sample.
struct Head {
  const AttentionShape& s;
  std::int64_t sample, head;
  std::int64_t kv_sample, keys;
  std::int64_t width;  // head_size rounded up to 16
  DropoutMask mask;

  Head(const AttentionShape& shape, std::int64_t item)
      : s(shape),
        sample(item / shape.heads),
        head(item % shape.heads),
        kv_sample(shape.kv_samples == nullptr ? sample : shape.kv_samples[sample]),
        keys(shape.sample_keys == nullptr ? shape.keys : shape.sample_keys[sample]),
        width(round_up(shape.head_size, 16)),
        mask(dropout_mask(shape.dropout)) {}

  template <typename T>
  T* q(T* base, std::int64_t query) const {
    return base + sample * s.q_batch + query * s.q_row + head * s.head_size;
  }
  template <typename T>
  T* kv(T* base, std::int64_t key) const {
    return base + kv_sample * s.kv_batch + key * s.kv_row + head * s.head_size;
  }
  template <typename T>
  T* out(T* base, std::int64_t query) const {
    return base + sample * s.out_batch + query * s.out_row + head * s.head_size;
  }
  // Keys that a query sees: [first_key(query), end_key(query)).
  std::int64_t end_key(std::int64_t query) const {
    return s.causal ? keys - s.queries + query + 1 : keys;
  }
  std::int64_t first_key(std::int64_t query) const {
    return s.first_key == nullptr ? 0 : s.first_key[sample * s.queries + query];
  }
  // What rows begin .. end - 1 see together.
  std::int64_t last_end(std::int64_t end) const { return end_key(end - 1); }
  std::int64_t least_first(std::int64_t begin, std::int64_t end) const {
    std::int64_t least = first_key(begin);
    for (std::int64_t i = begin + 1; i < end; ++i) {
      least = smaller(least, first_key(i));
    }
    return least;
  }
  void factors(std::int64_t query, std::int64_t key, float* f) const {
    const std::int64_t row = (s.first_head + head) * s.queries + query;
    const auto block = static_cast<std::uint64_t>(row * round_up(keys, 4) + key) / 4;
    dropout_factors(mask, s.dropout.samples[sample], block, f);
  }
  // Asks for a few rows of the next keys while this block is computed: rows far apart escape the
  // hardware's prefetching. Returns where to go on.
  std::int64_t prefetch_keys(const void* k, const void* v, std::int64_t key,
                             std::int64_t end) const {
    const std::int64_t stop = smaller(key + 4, end);
    for (; key < stop; ++key) {
      for (std::int64_t i = 0; i < s.head_size; i += 16) {
        __builtin_prefetch(kv(static_cast<const float*>(k), key) + i);
        __builtin_prefetch(kv(static_cast<const float*>(v), key) + i);
      }
    }
    return key;
  }
  bool drops() const { return s.dropout.probability > 0; }
};

// Lanes from .. to - 1 of 64 are seen.
struct Range {
  std::int64_t from, to;
  bool whole(std::int64_t columns) const { return from <= 0 && to >= columns; }
  Mask lanes(std::int64_t column) const {
    const Floats lane = from_signed(lane_numbers()) + all(static_cast<float>(column));
    return less(all(static_cast<float>(from) - 0.5F), lane) &
           less(lane, all(static_cast<float>(to) - 0.5F));
  }
};

// The state of a query row: largest score so far, sum of exponentials by lanes.
struct RowState {
  float* max;
  float* lanes;
};

// Turns `columns` scores of a row into unnormalised probabilities in place and updates the state.
// Returns the factor for what was summed before.
inline float softmax_step(float* scores, std::int64_t columns, const Range& seen, float scale,
                          const RowState& state) {
  const float infinity = __builtin_inff();
  Floats largest = all(*state.max);
  for (std::int64_t i = 0; i < columns; i += 16) {
    Floats x = load(scores + i) * all(scale);
    if (!seen.whole(columns)) {
      x = select(seen.lanes(i), x, all(-infinity));
    }
    store(scores + i, x);
    largest = max(largest, x);
  }
  const float new_max = max_lane(largest);
  const float shift = new_max == -infinity ? 0.0F : new_max;
  Floats factor = all(1.0F);
  if (new_max != *state.max) {
    factor = exp(all(*state.max) - all(shift));
  }
  Floats total = load(state.lanes) * factor;
  for (std::int64_t i = 0; i < columns; i += 16) {
    const Floats e = exp(load(scores + i) - all(shift));
    store(scores + i, e);
    total = total + e;
  }
  store(state.lanes, total);
  *state.max = new_max;
  return max_lane(factor);
}

inline void multiply_row(float* row, std::int64_t count, float factor) {
  for (std::int64_t i = 0; i < count; i += 16) {
    store(row + i, load(row + i) * all(factor));
  }
}

// Attention forward for one query a sample, as in decoding: nothing is dropped, no log_sum_exp is
// asked for. The bits of the general path.
void attention_of_one_query(const AttentionForward& f);

}  // namespace mt::cpu::MT_KERNEL_SET
