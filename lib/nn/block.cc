#include "nn/block.h"

#include <utility>

namespace mt {
namespace {

// The gradient before dropout; the tensor itself where nothing is dropped.
Tensor dropped(const Tensor& dy, const Dropout& dropout) {
  if (dropout.probability == 0) return dy;
  Tensor dx = like_rows(dy, dy.dim(-1));
  dropout_add(dy, {}, dx, dropout);
  return dx;
}

}  // namespace

Block::Block(const BlockSizes& sizes, const LayerSetup& setup)
    : layer_(sizes.layer),
      recompute_(setup.layout.recompute),
      hidden_dropout_(sizes.hidden_dropout),
      norm1_(cat("layers.", layer_, ".input_layernorm"), sizes.hidden, sizes.layernorm_epsilon,
             setup),
      attention_(cat("layers.", layer_, ".self_attention"),
                 {.hidden = sizes.hidden,
                  .heads = sizes.heads,
                  .layer = layer_,
                  .dropout = sizes.attention_dropout,
                  .output_std = sizes.output_std},
                 setup),
      norm2_(cat("layers.", layer_, ".post_attention_layernorm"), sizes.hidden,
             sizes.layernorm_epsilon, setup),
      mlp_(cat("layers.", layer_, ".mlp"), sizes.hidden, sizes.inner, sizes.output_std, setup) {}

Tensor Block::forward(const Tensor& x, const MicroBatch& micro, Saved* saved) const {
  if (saved == nullptr || recompute_ != Recompute::kFull) return run(x, micro, saved);
  saved->x = x;
  return run(x, micro, nullptr);
}

Tensor Block::run(const Tensor& x, const MicroBatch& micro, Saved* saved) const {
  const Dropout drop1 = micro.dropout(hidden_dropout_, layer_, DropoutSite::kAttentionOutput);
  const Dropout drop2 = micro.dropout(hidden_dropout_, layer_, DropoutSite::kMlpOutput);
  // Without dropout the residual is added in the product's epilogue.
  const Tensor normed = norm1_.forward(x, saved != nullptr ? &saved->norm1 : nullptr);
  Tensor x1 = attention_.forward(normed, drop1.probability == 0 ? x : Tensor(), micro,
                                 saved != nullptr ? &saved->attention : nullptr);
  if (drop1.probability != 0) dropout_add(x1, x, x1, drop1);
  const bool drops = saved != nullptr && recompute_ == Recompute::kSelective;
  if (drops) saved->attention.qkv_in = {};

  const Tensor normed1 = norm2_.forward(x1, saved != nullptr ? &saved->norm2 : nullptr);
  Tensor y = mlp_.forward(normed1, drop2.probability == 0 ? x1 : Tensor(),
                          saved != nullptr ? &saved->mlp : nullptr);
  if (drop2.probability != 0) dropout_add(y, x1, y, drop2);
  if (drops) {
    saved->mlp.in = {};
    saved->mlp.out = {};
  }
  return y;
}

Tensor Block::backward(const Tensor& dy, const MicroBatch& micro, Saved& saved) {
  if (recompute_ == Recompute::kFull) (void)run(std::exchange(saved.x, {}), micro, &saved);
  const bool dropped_some = recompute_ == Recompute::kSelective;
  const Dropout drop1 = micro.dropout(hidden_dropout_, layer_, DropoutSite::kAttentionOutput);
  const Dropout drop2 = micro.dropout(hidden_dropout_, layer_, DropoutSite::kMlpOutput);
  if (dropped_some) {
    saved.mlp.in.x = norm2_.repeat(saved.norm2);
    saved.mlp.out.x = like_rows(saved.mlp.before_gelu, saved.mlp.before_gelu.dim(-1));
    gelu(saved.mlp.before_gelu, saved.mlp.out.x);
  }
  const Tensor dnormed1 = mlp_.backward(dropped(dy, drop2), saved.mlp);
  const Tensor dx1 = norm2_.backward(dnormed1, dy, saved.norm2);  // through the norm and past it
  saved.norm2 = {};
  if (dropped_some) saved.attention.qkv_in.x = norm1_.repeat(saved.norm1);
  const Tensor dnormed = attention_.backward(dropped(dx1, drop1), micro, saved.attention);
  Tensor dx = norm1_.backward(dnormed, dx1, saved.norm1);
  saved.norm1 = {};
  return dx;
}

Tensor Block::forward_cached(const Tensor& x, const Tensor& cache,
                             const CachePlaces& places) const {
  const Tensor x1 = attention_.forward_cached(norm1_.forward(x, nullptr), x, cache, places);
  return mlp_.forward(norm2_.forward(x1, nullptr), x1, nullptr);
}

Tensor Block::forward_trees(const Tensor& x, const std::vector<PrefixTree>& trees) const {
  const Tensor x1 = attention_.forward_trees(norm1_.forward(x, nullptr), x, trees);
  return mlp_.forward(norm2_.forward(x1, nullptr), x1, nullptr);
}

Tensor Block::make_cache(Pool& pool, std::int64_t slots, std::int64_t capacity) const {
  return attention_.make_cache(pool, slots, capacity);
}

void Block::collect(std::vector<Parameter*>& out) {
  norm1_.collect(out);
  attention_.collect(out);
  norm2_.collect(out);
  mlp_.collect(out);
}

}  // namespace mt
