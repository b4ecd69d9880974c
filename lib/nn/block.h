// A transformer block in GPT-2's order, norm first (Radford et al. 2019, section 2.3):
//   x1 = x + dropout(attention(norm1(x)));  y = x1 + dropout(mlp(norm2(x1))).
#pragma once

#include <vector>

#include "nn/attention.h"
#include "nn/layernorm.h"
#include "nn/mlp.h"

namespace mt {

struct BlockSizes {
  std::int64_t hidden = 0, inner = 0, heads = 0;
  std::int64_t layer = 0;  // global number, from 0
  double layernorm_epsilon = 1e-5;
  double hidden_dropout = 0, attention_dropout = 0;
  double output_std = 0;  // initial weights of the two products that feed the residual
};

class Block {
 public:
  struct Saved {
    Tensor x;  // with Recompute::kFull: the input, and nothing else
    LayerNorm::Saved norm1;
    SelfAttention::Saved attention;
    LayerNorm::Saved norm2;
    Mlp::Saved mlp;
  };

  // Parameters layers.N.{input_layernorm,self_attention,post_attention_layernorm,mlp}.*
  Block(const BlockSizes& sizes, const LayerSetup& setup);

  // [b, s, h] -> [b, s, h], under sequence parallelism slices [b, s/t, h]. Collective over tp (two
  // all-reduces, or two all-gathers and two reduce-scatters). saved null: nothing is kept. In f32
  // with t tensor ranks a layer keeps (and besides a few numbers a position)
  //   Recompute::kNone       s b h (16 + 48/t) bytes, under sequence parallelism 64 s b h / t
  //   Recompute::kSelective  s b h (8 + 32/t) or 40 s b h / t: no outputs of norms and of GELU
  //   Recompute::kFull       4 s b h or 4 s b h / t: its input
  [[nodiscard]] Tensor forward(const Tensor& x, const MicroBatch& micro, Saved* saved) const;
  // For positions that follow the cache's; no dropout. See SelfAttention::forward_cached.
  [[nodiscard]] Tensor forward_cached(const Tensor& x, const Tensor& cache,
                                      const CachePlaces& places) const;
  // For sequences that share beginnings, x [1, rows, h]; no dropout. See
  // SelfAttention::forward_trees.
  [[nodiscard]] Tensor forward_trees(const Tensor& x, const std::vector<PrefixTree>& trees) const;
  // dy -> dx in dy's buffer. Adds into the gradients; releases what was saved. What was not kept is
  // computed again, with the same bits. Collective over tp (two all-reduces, or four all-gathers
  // and two reduce-scatters, and with Recompute::kFull those of forward once more).
  [[nodiscard]] Tensor backward(const Tensor& dy, const MicroBatch& micro, Saved& saved);

  [[nodiscard]] Tensor make_cache(Pool& pool, std::int64_t slots, std::int64_t capacity) const;
  void collect(std::vector<Parameter*>& out);

 private:
  [[nodiscard]] Tensor run(const Tensor& x, const MicroBatch& micro, Saved* saved) const;

  std::int64_t layer_;
  Recompute recompute_;
  double hidden_dropout_;
  LayerNorm norm1_;
  SelfAttention attention_;
  LayerNorm norm2_;
  Mlp mlp_;
};

}  // namespace mt
