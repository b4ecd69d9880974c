#include "nn/loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tensor/ops.h"

namespace mt {

VocabParallelCrossEntropy::VocabParallelCrossEntropy(std::int64_t vocabulary,
                                                     const Communicator& tp)
    : tp_(&tp), first_(owned_range(vocabulary, tp).begin) {}

void VocabParallelCrossEntropy::forward(const Tensor& logits, const Tensor& labels, float* nll,
                                        Saved* saved) const {
  const std::int64_t rows = logits.dim(0);
  // max, sum and target in one buffer that comes to the host at once
  const Tensor numbers(logits.pool(), {3, rows}, DType::kF32, MemoryKind::kWorkspace);
  const Tensor max = numbers.rows(0, 1), sum = numbers.rows(1, 2), target = numbers.rows(2, 3);
  cross_entropy_max(logits, max);
  tp_->all_reduce(max, ReduceOp::kMax);
  cross_entropy_sum(logits, first_, labels, max,
                    saved != nullptr ? Exponentials::kKept : Exponentials::kDropped, sum, target);
  tp_->all_reduce(sum, ReduceOp::kSum);
  tp_->all_reduce(target, ReduceOp::kSum);  // zero on all ranks but the label's
  if (saved != nullptr) *saved = {.labels = labels, .sum = sum};

  std::vector<float> host(static_cast<std::size_t>(3 * rows));
  copy_to_host(numbers, host.data());
  const float* sums = host.data() + rows;
  const float* targets = host.data() + 2 * rows;
  for (std::int64_t i = 0; i < rows; ++i) {
    nll[i] = static_cast<float>(std::log(static_cast<double>(sums[i])) - targets[i]);
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
                                     std::int64_t block_bytes)
    : tp_(&tp),
      vocabulary_(vocabulary),
      block_bytes_(block_bytes),
      range_(owned_range(vocabulary, tp)),
      cross_entropy_(vocabulary, tp) {}

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
                                          const Tensor& row_weight, float* nll, Dx dx) const {
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
    linear_dweight(logits, x_block, dweight);
    linear_dx(logits, weight, x_block);  // x of this block is used up
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
