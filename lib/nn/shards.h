// --reduction tree: every sum that a layout could cut is cut into virtual shards instead, each
// summed in one fixed order, and the shards are added in one balanced binary tree, of which a rank
// computes its subtree and the communicator the rest. The results then have the same bits on every
// layout whose ranks are powers of two that divide the number of shards.
#pragma once

#include <cstdint>
#include <functional>

#include "nn/linear.h"
#include "tensor/ops.h"

namespace mt {

// Shard i of n things cut into `shards`: [floor(i n / shards), floor((i + 1) n / shards)), empty
// where shards exceed n. The cuts of ranks whose number divides shards are among these.
[[nodiscard]] Interval shard_of(std::int64_t n, std::int64_t i, std::int64_t shards);

// Those shards [first, first + count) of `total` of a sum which tp cuts that this rank adds.
struct LocalShards {
  int first = 0, count = 1, total = 1;
};
[[nodiscard]] LocalShards local_shards(int virtual_shards, const Communicator& tp);

// Overwrites `to` with part i + plus, where plus, of to's shape, may be undefined.
using ShardPart = std::function<void(int i, const Tensor& plus, const Tensor& to)>;
// out = ((part 0 + part 1) + (part 2 + part 3)) + ...: overwritten. count is a power of two. Takes
// log2(count) tensors like out as workspace.
void sum_shards(int count, const Tensor& out, const ShardPart& part);
// Row 0 of x [n, ..] := the same tree over its rows; the other rows hold nothing of use then.
void sum_rows_as_tree(const Tensor& x);

// Gives a vector's parameter grad_shards, zero, where the layout wants them: see
// Parameter::grad_shards.
void add_gradient_shards(Parameter& parameter, const LayerSetup& setup);
// For sums over the positions of [batch, positions] rows in that many shards: calls piece(shard,
// first row, end of rows) for the rows that are one shard's in one sample, sample after sample.
using PositionPiece = std::function<void(std::int64_t shard, std::int64_t begin, std::int64_t end)>;
void each_position_shard(std::int64_t shards, std::int64_t batch, std::int64_t positions,
                         const PositionPiece& piece);
// grad := the tree over the rows of grad_shards, which become zero. To be called after the sums
// over samples and ranks of the data axis; with Parameter::sum_over_tensor grad is to be summed
// over the tensor axis afterwards, which continues the tree. Nothing to do without grad_shards.
void collapse_gradient_shards(const Parameter& parameter);

}  // namespace mt
