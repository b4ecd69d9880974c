// Causal multi-head self-attention with its heads cut over tp (Shoeybi et al., arXiv:1909.08053,
// section 3): one fused product for queries, keys and values, the blocked attention kernel, and a
// row-parallel product back to the width. Inference appends keys and values to a cache.
#pragma once

#include <string>
#include <vector>

#include "nn/linear.h"
#include "nn/micro_batch.h"
#include "nn/prefix_tree.h"
#include "tensor/ops.h"

namespace mt {

struct AttentionSizes {
  std::int64_t hidden = 0, heads = 0;
  std::int64_t layer = 0;  // global number, from 0
  double dropout = 0;      // of the probabilities
  double output_std = 0;   // initial weights of the product that feeds the residual
};

class SelfAttention {
 public:
  struct Saved {
    ColumnParallelLinear::Saved qkv_in;
    Tensor qkv;          // [b, s, 3 h/t]
    Tensor log_sum_exp;  // [b, a/t, s]
    RowParallelLinear::Saved dense_in;
  };

  // Parameters NAME.{query,key,value,dense}.{weight,bias}. Throws UsageError unless heads divide
  // hidden and tp.size() divides heads.
  SelfAttention(const std::string& name, const AttentionSizes& sizes, const LayerSetup& setup);

  // [b, s, h] -> [b, s, h], residual (may be undefined) added at the end; under sequence
  // parallelism slices [b, s/t, h]. Collective over tp (one all-reduce, or an all-gather and a
  // reduce-scatter).
  [[nodiscard]] Tensor forward(const Tensor& x, const Tensor& residual, const MicroBatch& micro,
                               Saved* saved) const;
  // The same for s positions of each sample that follow what its slot of the cache holds, without
  // dropout: their keys and values go into the cache [slots, capacity, 2 h/t], keys first. Bitwise
  // what forward computes for these positions.
  [[nodiscard]] Tensor forward_cached(const Tensor& x, const Tensor& residual, const Tensor& cache,
                                      const CachePlaces& places) const;
  // The same for trees, x [1, rows, h], without dropout: a continuation sees the shared part and
  // itself. Bitwise what forward computes for each sequence alone.
  [[nodiscard]] Tensor forward_trees(const Tensor& x, const Tensor& residual,
                                     const std::vector<PrefixTree>& trees) const;
  // dy [b, s, h] -> dx. Adds into the gradients; releases what was saved. Collective over tp (one
  // all-reduce, or two all-gathers and a reduce-scatter).
  [[nodiscard]] Tensor backward(const Tensor& dy, const MicroBatch& micro, Saved& saved);

  // Memory for the keys and values of this rank's heads: [slots, capacity, 2 h/t], uninitialised.
  [[nodiscard]] Tensor make_cache(Pool& pool, std::int64_t slots, std::int64_t capacity) const;
  void collect(std::vector<Parameter*>& out);

 private:
  void attend_tree(const PrefixTree& tree, const Tensor& qkv, const Tensor& out) const;
  [[nodiscard]] AttentionInputs inputs(const Tensor& qkv, const MicroBatch& micro) const;

  OwnedRange heads_;
  std::int64_t head_size_, layer_;
  double dropout_;
  ColumnParallelLinear qkv_;
  RowParallelLinear dense_;
};

}  // namespace mt
