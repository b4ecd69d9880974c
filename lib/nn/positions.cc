#include "nn/positions.h"

#include "tensor/ops.h"

namespace mt {
namespace {

enum class Order { kSamplesOfRanks, kRanksOfSamples };

// Between [t, b, s/t, n], as collectives want it, and [b, t, s/t, n], which is [b, s, n]: blocks of
// [s/t, n] change their places. `order` is that of `from`.
void permute(const Tensor& from, Order order, std::int64_t batch, std::int64_t ranks,
             const Tensor& to) {
  const Shape blocks{batch * ranks, from.size() / (batch * ranks)};
  const Tensor source = from.view(blocks), target = to.view(blocks);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    for (std::int64_t sample = 0; sample < batch; ++sample) {
      const std::int64_t by_rank = rank * batch + sample, by_sample = sample * ranks + rank;
      const std::int64_t i = order == Order::kSamplesOfRanks ? by_rank : by_sample;
      const std::int64_t j = order == Order::kSamplesOfRanks ? by_sample : by_rank;
      copy(source.rows(i, i + 1), target.rows(j, j + 1));
    }
  }
}

}  // namespace

bool holds_slices(const LayerLayout& layout, const Communicator& tp) {
  return layout.sequence_parallel && tp.size() > 1;
}

Tensor gather_positions(const Tensor& slice, const Communicator& tp) {
  const std::int64_t batch = slice.dim(0), ranks = tp.size();
  const Shape whole{batch, slice.dim(1) * ranks, slice.dim(2)};
  Tensor gathered(slice.pool(), whole, DType::kF32, MemoryKind::kActivations);
  tp.all_gather(slice, gathered);
  if (batch == 1) return gathered;
  Tensor y(slice.pool(), whole, DType::kF32, MemoryKind::kActivations);
  permute(gathered, Order::kSamplesOfRanks, batch, ranks, y);
  return y;
}

Tensor scatter_positions(const Tensor& whole, const Communicator& tp) {
  const std::int64_t batch = whole.dim(0), ranks = tp.size();
  MT_ASSERT(whole.dim(1) % ranks == 0);
  Tensor slice(whole.pool(), {batch, whole.dim(1) / ranks, whole.dim(2)}, DType::kF32,
               MemoryKind::kActivations);
  if (batch == 1) {
    tp.reduce_scatter(whole, slice);
    return slice;
  }
  const Tensor parts(whole.pool(), whole.shape(), DType::kF32, MemoryKind::kActivations);
  permute(whole, Order::kRanksOfSamples, batch, ranks, parts);
  tp.reduce_scatter(parts, slice);
  return slice;
}

}  // namespace mt
