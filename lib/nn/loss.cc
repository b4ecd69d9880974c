#include "nn/loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "nn/shards.h"
#include "tensor/ops.h"

namespace mt {

namespace {

// The columns of this rank's logits that its virtual shards of the true vocabulary are.
std::vector<Interval> owned_columns(std::int64_t vocabulary, const Communicator& tp,
                                    int virtual_shards) {
  const LocalShards shards = local_shards(virtual_shards, tp);
  const std::int64_t first = owned_range(vocabulary, tp).begin;
  std::vector<Interval> columns;
  for (int i = shards.first; i < shards.first + shards.count; ++i) {
    const Interval entries = shard_of(vocabulary, i, shards.total);
    columns.push_back({.begin = entries.begin - first, .end = entries.end - first});
  }
  return columns;
}

}  // namespace

VocabParallelCrossEntropy::VocabParallelCrossEntropy(std::int64_t vocabulary,
                                                     const Communicator& tp, int virtual_shards)
    : tp_(&tp),
      first_(owned_range(vocabulary, tp).begin),
      columns_(owned_columns(vocabulary, tp, virtual_shards)) {}

void VocabParallelCrossEntropy::forward(const Tensor& logits, const Tensor& labels, float* nll,
                                        Saved* saved) const {
  const std::int64_t rows = logits.dim(0);
  const auto shards = static_cast<std::int64_t>(columns_.size());
  // The sums and targets of the shards, and the maximum, in one buffer that comes to the host at
  // once
  const Tensor numbers(logits.pool(), {2 * shards + 1, rows}, DType::kF32, MemoryKind::kWorkspace);
  const Tensor sums = numbers.rows(0, shards), targets = numbers.rows(shards, 2 * shards);
  const Tensor sum = sums.rows(0, 1), target = targets.rows(0, 1),
               max = numbers.rows(2 * shards, 2 * shards + 1);
  cross_entropy_max(logits, max);
  tp_->all_reduce(max, ReduceOp::kMax);
  for (std::int64_t i = 0; i < shards; ++i) {
    cross_entropy_sum(logits, first_, columns_[static_cast<std::size_t>(i)], labels, max,
                      saved != nullptr ? Exponentials::kKept : Exponentials::kDropped,
                      sums.rows(i, i + 1), targets.rows(i, i + 1));
  }
  sum_rows_as_tree(sums);
  sum_rows_as_tree(targets);
  tp_->all_reduce(sum, ReduceOp::kSum);
  tp_->all_reduce(target, ReduceOp::kSum);  // zero on all ranks but the label's
  if (saved != nullptr) *saved = {.labels = labels, .sum = sum};

  std::vector<float> host(static_cast<std::size_t>(numbers.size()));
  copy_to_host(numbers, host.data());
  const float* of_target = host.data() + shards * rows;
  for (std::int64_t i = 0; i < rows; ++i) {
    nll[i] = static_cast<float>(std::log(static_cast<double>(host[static_cast<std::size_t>(i)])) -
                                of_target[i]);
  }
}

void VocabParallelCrossEntropy::backward(const Tensor& logits, const Tensor& weight,
                                         const Saved& saved) const {
  cross_entropy_grad(logits, first_, saved.labels, saved.sum, weight);
}

namespace {

// Of logits [rows, V/t] from entry `first` on: whether each row's label is its best entry, the
// lowest of equals. Collective over tp (two all-reduces of one number a row; none for one rank).
void labels_are_best(const Tensor& logits, std::int64_t first, const Tensor& labels,
                     const Communicator& tp, std::uint8_t* out) {
  const std::int64_t rows = logits.dim(0);
  const auto count = static_cast<std::size_t>(rows);
  std::vector<std::int64_t> best(count);
  std::vector<std::int32_t> wanted(count);
  argmax(logits, best.data());
  copy_to_host(labels, wanted.data());
  for (std::int64_t& column : best) column += first;
  if (tp.size() > 1) {
    // The lowest entry among the ranks that have the maximum is the largest complement; the others
    // offer none.
    const Tensor max(logits.pool(), {rows}, DType::kF32, MemoryKind::kWorkspace);
    std::vector<float> own(count), all(count);
    cross_entropy_max(logits, max);
    copy_to_host(max, own.data());
    tp.all_reduce(max, ReduceOp::kMax);
    copy_to_host(max, all.data());
    constexpr std::int32_t kLast = std::numeric_limits<std::int32_t>::max();
    std::vector<std::int32_t> complement(count);
    for (std::size_t i = 0; i < count; ++i) {
      complement[i] = own[i] == all[i] ? kLast - static_cast<std::int32_t>(best[i]) : 0;
    }
    const Tensor entries =
        upload(logits.pool(), complement.data(), {rows}, DType::kI32, MemoryKind::kWorkspace);
    tp.all_reduce(entries, ReduceOp::kMax);
    copy_to_host(entries, complement.data());
    for (std::size_t i = 0; i < count; ++i) best[i] = kLast - complement[i];
  }
  for (std::size_t i = 0; i < count; ++i) out[i] = best[i] == wanted[i] ? 1 : 0;
}

}  // namespace

VocabParallelHead::VocabParallelHead(std::int64_t vocabulary, const Communicator& tp,
                                     std::int64_t block_bytes, int virtual_shards)
    : tp_(&tp),
      vocabulary_(vocabulary),
      block_bytes_(block_bytes),
      range_(owned_range(vocabulary, tp)),
      columns_(owned_columns(vocabulary, tp, virtual_shards)),
      cross_entropy_(vocabulary, tp, virtual_shards) {}

std::int64_t VocabParallelHead::block_rows() const {
  constexpr std::int64_t kLogitBytes = sizeof(float);
  // Of the rank with the most entries: all ranks must have the same blocks.
  const std::int64_t entries = (vocabulary_ + tp_->size() - 1) / tp_->size();
  return std::max<std::int64_t>(1, block_bytes_ / (entries * kLogitBytes));
}

void VocabParallelHead::nll(const Tensor& x, const Tensor& weight, const Tensor& labels, float* nll,
                            std::uint8_t* greedy) const {
  const std::int64_t rows = x.dim(0), block = std::min(rows, block_rows());
  const Tensor buffer(x.pool(), {block, range_.size()}, DType::kF32, MemoryKind::kWorkspace);
  for (std::int64_t begin = 0; begin < rows; begin += block) {
    const std::int64_t end = std::min(rows, begin + block);
    const Tensor logits = buffer.rows(0, end - begin);
    linear(x.rows(begin, end), weight, logits);
    if (greedy != nullptr) {
      labels_are_best(logits, range_.begin, labels.rows(begin, end), *tp_, greedy + begin);
    }
    cross_entropy_.forward(logits, labels.rows(begin, end), nll + begin, nullptr);
  }
}

void VocabParallelHead::nll_and_gradients(const Tensor& x, const Tensor& weight,
                                          const Tensor& dweight, const Tensor& labels,
                                          const Tensor& row_weight, float* nll, Dx dx,
                                          Output first) const {
  const std::int64_t rows = x.dim(0), block = std::min(rows, block_rows());
  const Tensor buffer(x.pool(), {block, range_.size()}, DType::kF32, MemoryKind::kWorkspace);
  for (std::int64_t begin = 0; begin < rows; begin += block) {
    const std::int64_t end = std::min(rows, begin + block);
    const Tensor logits = buffer.rows(0, end - begin);
    const Tensor x_block = x.rows(begin, end);
    VocabParallelCrossEntropy::Saved saved;
    linear(x_block, weight, logits);
    cross_entropy_.forward(logits, labels.rows(begin, end), nll + begin, &saved);
    cross_entropy_.backward(logits, row_weight.rows(begin, end), saved);
    linear_dweight(logits, x_block, dweight, begin == 0 ? first : Output::kAdd);
    // x of this block is used up
    sum_shards(static_cast<int>(columns_.size()), x_block,
               [&](int i, const Tensor& plus, const Tensor& to) {
                 const Interval& columns = columns_[static_cast<std::size_t>(i)];
                 linear_dx_parts(logits, weight, {columns}, plus, to);
               });
  }
  // Each rank has the part through its own entries.
  if (dx == Dx::kSummed) tp_->all_reduce(x, ReduceOp::kSum);
}

Tensor VocabParallelHead::logits(const Tensor& x, const Tensor& weight) const {
  // Other ranks' columns are zero here; the sum over ranks puts the parts together.
  Tensor y = Tensor::zero(x.pool(), {x.dim(0), vocabulary_}, DType::kF32, MemoryKind::kActivations);
  linear_columns(x, weight, y, range_.begin);
  tp_->all_reduce(y, ReduceOp::kSum);
  return y;
}

}  // namespace mt
