#include "nn/attention.h"

#include <algorithm>
#include <utility>

namespace mt {
namespace {

LayerSetup with_std(const LayerSetup& setup, double std) {
  return {.tp = setup.tp,
          .pool = setup.pool,
          .gradient = setup.gradient,
          .init_std = std,
          .numbers = setup.numbers,
          .layout = setup.layout};
}

// Positions [begin, end) of x [1, s, n].
Tensor positions(const Tensor& x, std::int64_t begin, std::int64_t end) {
  return x.view({x.dim(1), x.dim(2)}).rows(begin, end).view({1, end - begin, x.dim(2)});
}

// Checks before any member divides by it.
std::int64_t checked_head_size(const AttentionSizes& sizes, const Communicator& tp) {
  if (sizes.heads <= 0 || sizes.hidden % sizes.heads != 0) {
    throw UsageError(cat("--num-attention-heads ", sizes.heads, ": hidden size ", sizes.hidden,
                         " is not divisible by it"));
  }
  if (sizes.heads % tp.size() != 0) {
    throw UsageError(cat("--tensor-model-parallel-size ", tp.size(), ": ", sizes.heads,
                         " attention heads are not divisible by ", tp.size()));
  }
  return sizes.hidden / sizes.heads;
}

}  // namespace

SelfAttention::SelfAttention(const std::string& name, const AttentionSizes& sizes,
                             const LayerSetup& setup)
    : heads_(owned_range(sizes.heads, setup.tp)),
      head_size_(checked_head_size(sizes, setup.tp)),
      layer_(sizes.layer),
      dropout_(sizes.dropout),
      qkv_({name + ".query", name + ".key", name + ".value"}, sizes.hidden, sizes.hidden, setup),
      dense_(name + ".dense", sizes.hidden, sizes.hidden, with_std(setup, sizes.output_std)) {}

AttentionInputs SelfAttention::inputs(const Tensor& qkv, const MicroBatch& micro) const {
  const std::int64_t width = heads_.size() * head_size_;
  return {.q = qkv,
          .q_column = 0,
          .kv = qkv,
          .k_column = width,
          .v_column = 2 * width,
          .keys = qkv.dim(1),
          .heads = heads_.size(),
          .head_size = head_size_,
          .first_head = heads_.begin,
          .first_key = micro.first_key,
          .dropout = micro.dropout(dropout_, layer_, DropoutSite::kAttention)};
}

Tensor SelfAttention::forward(const Tensor& x, const Tensor& residual, const MicroBatch& micro,
                              Saved* saved) const {
  const Tensor qkv = qkv_.forward(x, saved != nullptr ? &saved->qkv_in : nullptr);
  const Tensor out = like_rows(qkv, heads_.size() * head_size_);
  Tensor log_sum_exp;
  if (saved != nullptr) {
    log_sum_exp = Tensor(x.pool(), {qkv.dim(0), heads_.size(), qkv.dim(1)}, DType::kF32,
                         MemoryKind::kActivations);
    saved->qkv = qkv;
    saved->log_sum_exp = log_sum_exp;
  }
  attention(inputs(qkv, micro), out, log_sum_exp);
  return dense_.forward(out, residual, saved != nullptr ? &saved->dense_in : nullptr);
}

Tensor SelfAttention::backward(const Tensor& dy, const MicroBatch& micro, Saved& saved) {
  const Tensor dout = dense_.backward(dy, saved.dense_in);
  Tensor dqkv = like_rows(saved.qkv, saved.qkv.dim(-1));
  attention_backward(inputs(saved.qkv, micro), saved.dense_in.x, saved.log_sum_exp, dout, dqkv);
  Tensor dx = qkv_.backward(dqkv, saved.qkv_in);
  saved = {};
  return dx;
}

Tensor SelfAttention::forward_cached(const Tensor& x, const Tensor& residual, const Tensor& cache,
                                     const CachePlaces& places) const {
  const Tensor qkv = qkv_.forward(x, nullptr);
  const std::int64_t width = heads_.size() * head_size_;
  copy_positions(qkv, width, cache, places);
  AttentionInputs in = inputs(qkv, {});
  in.kv = cache;
  in.k_column = 0;
  in.v_column = width;
  in.cache = &places;
  const Tensor out = like_rows(x, width);
  attention(in, out, {});
  return dense_.forward(out, residual, nullptr);
}

Tensor SelfAttention::forward_trees(const Tensor& x, const Tensor& residual,
                                    const std::vector<PrefixTree>& trees) const {
  const Tensor qkv = qkv_.forward(x, nullptr);
  const Tensor out = like_rows(x, heads_.size() * head_size_);
  std::int64_t row = 0;
  for (const PrefixTree& tree : trees) {
    const std::int64_t end = row + tree.rows();
    attend_tree(tree, positions(qkv, row, end), positions(out, row, end));
    row = end;
  }
  MT_ASSERT(row == x.dim(1));
  return dense_.forward(out, residual, nullptr);
}

// qkv [1, rows, 3 h/t] and out [1, rows, h/t] of one tree.
void SelfAttention::attend_tree(const PrefixTree& tree, const Tensor& qkv,
                                const Tensor& out) const {
  MT_ASSERT(!tree.branches.empty());
  // The first continuation follows the shared part as in any sequence.
  const std::int64_t first = tree.prefix + tree.branches.front().positions;
  attention(inputs(positions(qkv, 0, first), {}), positions(out, 0, first), {});
  if (tree.branches.size() == 1) return;

  std::int64_t longest = 0;
  for (const PrefixTree::Branch& branch : tree.branches) {
    longest = std::max(longest, branch.positions);
  }
  const std::int64_t width = heads_.size() * head_size_;
  const Tensor keys_values(qkv.pool(), {1, tree.prefix + longest, 2 * width}, DType::kF32,
                           MemoryKind::kWorkspace);
  if (tree.prefix > 0) copy_positions(positions(qkv, 0, tree.prefix), width, keys_values, 0);
  std::int64_t row = first;
  for (std::size_t i = 1; i < tree.branches.size(); ++i) {
    const std::int64_t end = row + tree.branches[i].positions;
    const Tensor part = positions(qkv, row, end);
    copy_positions(part, width, keys_values, tree.prefix);
    AttentionInputs in = inputs(part, {});
    in.kv = keys_values;
    in.k_column = 0;
    in.v_column = width;
    in.keys = tree.prefix + part.dim(1);
    attention(in, positions(out, row, end), {});
    row = end;
  }
}

Tensor SelfAttention::make_cache(Pool& pool, std::int64_t slots, std::int64_t capacity) const {
  return {pool,
          {slots, capacity, 2 * heads_.size() * head_size_},
          DType::kF32,
          MemoryKind::kActivations};
}

void SelfAttention::collect(std::vector<Parameter*>& out) {
  qkv_.collect(out);
  dense_.collect(out);
}

}  // namespace mt
