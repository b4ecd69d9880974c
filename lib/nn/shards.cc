#include "nn/shards.h"

namespace mt {
namespace {

void sum_subtree(int first, int count, const Tensor& out, const ShardPart& part) {
  if (count == 1) {
    part(first, {}, out);
    return;
  }
  const Tensor other(out.pool(), out.shape(), DType::kF32, MemoryKind::kWorkspace);
  if (count == 2) {  // the sum is the epilogue of the second product
    part(first, {}, other);
    part(first + 1, other, out);
    return;
  }
  sum_subtree(first, count / 2, out, part);
  sum_subtree(first + count / 2, count / 2, other, part);
  add(other, out);
}

bool is_power_of_two(std::int64_t n) {
  return n > 0 && (n & (n - 1)) == 0;
}

}  // namespace

Interval shard_of(std::int64_t n, std::int64_t i, std::int64_t shards) {
  // In 128 bits, as owned_range.
  const auto boundary = [&](std::int64_t at) {
    return static_cast<std::int64_t>(static_cast<__int128>(at) * n / shards);
  };
  return {.begin = boundary(i), .end = boundary(i + 1)};
}

LocalShards local_shards(int virtual_shards, const Communicator& tp) {
  if (virtual_shards == 1) return {.first = tp.rank(), .count = 1, .total = tp.size()};
  MT_ASSERT(is_power_of_two(virtual_shards) && virtual_shards % tp.size() == 0);
  const int count = virtual_shards / tp.size();
  return {.first = tp.rank() * count, .count = count, .total = virtual_shards};
}

void sum_shards(int count, const Tensor& out, const ShardPart& part) {
  MT_ASSERT(is_power_of_two(count));
  sum_subtree(0, count, out, part);
}

void sum_rows_as_tree(const Tensor& x) {
  const std::int64_t n = x.dim(0);
  MT_ASSERT(is_power_of_two(n));
  for (std::int64_t step = 1; step < n; step *= 2) {
    for (std::int64_t i = 0; i < n; i += 2 * step) {
      add(x.rows(i + step, i + step + 1), x.rows(i, i + 1));
    }
  }
}

void add_gradient_shards(Parameter& parameter, const LayerSetup& setup) {
  const int shards = setup.layout.virtual_shards;
  if (shards == 1 || !parameter.grad.defined()) return;
  const int here = setup.layout.sequence_parallel ? local_shards(shards, setup.tp).count : shards;
  parameter.grad_shards =
      Tensor::zero(setup.pool, {here, parameter.grad.size()}, DType::kF32, MemoryKind::kGradients);
}

void each_position_shard(std::int64_t shards, std::int64_t batch, std::int64_t positions,
                         const PositionPiece& piece) {
  for (std::int64_t sample = 0; sample < batch; ++sample) {
    for (std::int64_t i = 0; i < shards; ++i) {
      const Interval part = shard_of(positions, i, shards);
      if (part.begin == part.end) continue;
      piece(i, sample * positions + part.begin, sample * positions + part.end);
    }
  }
}

void collapse_gradient_shards(const Parameter& parameter) {
  if (!parameter.grad_shards.defined()) return;
  sum_rows_as_tree(parameter.grad_shards);
  copy(parameter.grad_shards.rows(0, 1), parameter.grad);
  parameter.grad_shards.fill_zero();
}

}  // namespace mt
