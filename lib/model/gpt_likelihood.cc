// The parts of GptStage that evaluation asks for: likelihoods of labels, without dropout.
#include <numeric>
#include <utility>

#include "model/gpt.h"
#include "model/gpt_parts.h"
#include "tensor/ops.h"

namespace mt {
namespace {

using Rows = std::vector<std::pair<std::int64_t, std::int64_t>>;  // [begin, end) each

// These rows of x [rows, h] and of the labels, one after the other; x itself if that is all.
Tensor take_rows(const Tensor& x, const Rows& ranges, std::vector<std::int32_t>& labels) {
  std::int64_t rows = 0;
  for (const auto& [begin, end] : ranges) rows += end - begin;
  if (rows == x.dim(0)) return x;
  const Tensor out(x.pool(), {std::max<std::int64_t>(1, rows), x.dim(1)}, DType::kF32,
                   MemoryKind::kActivations);
  std::vector<std::int32_t> taken;
  std::int64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin == end) continue;
    copy(x.rows(begin, end), out.rows(at, at + end - begin));
    taken.insert(taken.end(), labels.begin() + begin, labels.begin() + end);
    at += end - begin;
  }
  labels = std::move(taken);
  return out;
}

}  // namespace

Tensor GptStage::evaluate(const GptInput& input, const Tensor& activations, float* nll,
                          const std::int64_t* counted) {
  if (parts_->range.last) parts_->check_labels(input);
  const Tensor made = parts_->run(input, activations);
  if (!parts_->range.last) return made;
  const std::int64_t count = input.batch * input.sequence;
  Tensor x = made.view({count, parts_->config.hidden_size});
  std::vector<std::int32_t> labels(input.labels, input.labels + count);
  if (counted != nullptr) {
    Rows asked;
    for (std::int64_t i = 0; i < input.batch; ++i) {
      MT_ASSERT(0 <= counted[i] && counted[i] <= input.sequence);
      const std::int64_t end = (i + 1) * input.sequence;
      asked.emplace_back(end - counted[i], end);
    }
    x = take_rows(x, asked, labels);
  }
  parts_->label_nll(x, labels, nll, nullptr);
  return {};
}

void GptStage::token_nll(const GptInput& input, float* nll, const std::int64_t* counted) {
  MT_ASSERT(parts_->range.first && parts_->range.last);
  static_cast<void>(evaluate(input, {}, nll, counted));
}

void GptStage::tree_nll(const std::vector<PrefixTree>& trees,
                        const std::vector<std::int32_t>& tokens,
                        const std::vector<std::int32_t>& labels, float* nll, std::uint8_t* greedy) {
  MT_ASSERT(parts_->range.first && parts_->range.last);
  static_cast<void>(evaluate_trees(trees, tokens, labels, {}, nll, greedy));
}

Tensor GptStage::evaluate_trees(const std::vector<PrefixTree>& trees,
                                const std::vector<std::int32_t>& tokens,
                                const std::vector<std::int32_t>& labels, const Tensor& activations,
                                float* nll, std::uint8_t* greedy) {
  MT_ASSERT(parts_->range.first != activations.defined());
  MT_ASSERT(!parts_->sliced);  // rows of trees are no positions of one sequence
  std::vector<std::int32_t> position_ids;
  position_ids.reserve(tokens.size());
  Rows asked;
  const auto append = [&](std::int64_t first, std::int64_t count) {
    const std::size_t before = position_ids.size();
    position_ids.resize(before + static_cast<std::size_t>(count));
    std::iota(position_ids.begin() + static_cast<std::ptrdiff_t>(before), position_ids.end(),
              static_cast<std::int32_t>(first));
  };
  for (const PrefixTree& tree : trees) {
    append(0, tree.prefix);
    for (const PrefixTree::Branch& branch : tree.branches) {
      MT_ASSERT(0 <= branch.counted && branch.counted <= branch.positions);
      if (tree.prefix + branch.positions > parts_->config.max_position_embeddings) {
        throw UsageError(cat("a sequence of ", tree.prefix + branch.positions,
                             " tokens: the model has ", parts_->config.max_position_embeddings,
                             " positions"));
      }
      append(tree.prefix, branch.positions);
      const auto end = static_cast<std::int64_t>(position_ids.size());
      asked.emplace_back(end - branch.counted, end);
    }
  }
  MT_ASSERT(position_ids.size() == tokens.size() && labels.size() == tokens.size());
  // Rows differ from call to call, and so do all sizes of tensors.
  const MemoryUse use = parts_->pool->use();
  if (use.system_bytes > 2 * use.peak_total) parts_->pool->release_spare();
  const GptInput input{.batch = 1,
                       .sequence = static_cast<std::int64_t>(tokens.size()),
                       .tokens = tokens.data(),
                       .position_ids = position_ids.data()};
  parts_->check(input, 0);
  Tensor x = parts_->range.first ? parts_->embed(input, 0, {}, nullptr) : activations;
  for (const Block& block : parts_->blocks) x = block.forward_trees(x, trees);
  if (!parts_->range.last) return x;
  std::vector<std::int32_t> wanted = labels;
  x = take_rows(x.view({input.sequence, parts_->config.hidden_size}), asked, wanted);
  if (wanted.empty()) return {};
  parts_->check_labels(
      {.batch = 1, .sequence = static_cast<std::int64_t>(wanted.size()), .labels = wanted.data()});
  parts_->label_nll(parts_->final_norm->forward(x, nullptr), wanted, nll, greedy);
  return {};
}

void GptStage::Parts::label_nll(const Tensor& x, const std::vector<std::int32_t>& labels,
                                float* nll, std::uint8_t* greedy) const {
  if (labels.empty()) return;
  const Tensor uploaded = upload(*pool, labels.data(), {static_cast<std::int64_t>(labels.size())},
                                 DType::kI32, MemoryKind::kWorkspace);
  head->nll(x, head_weight(), uploaded, nll, greedy);
}

}  // namespace mt
