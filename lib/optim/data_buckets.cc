#include "optim/data_buckets.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "tensor/ops.h"

namespace mt {
namespace {

enum class Way { kIn, kOut };

// Between the pieces, one after the other, and a buffer.
void pack(const std::vector<Tensor>& pieces, const Tensor& buffer, Way way) {
  std::int64_t at = 0;
  for (const Tensor& piece : pieces) {
    const Tensor place = buffer.rows(at, at + piece.size());
    way == Way::kIn ? copy(piece, place) : copy(place, piece);
    at += piece.size();
  }
  MT_ASSERT(at == buffer.size());
}

}  // namespace

void sum_together(const Communicator& group, const std::vector<Tensor>& tensors, Pool& pool) {
  std::int64_t elements = 0;
  for (const Tensor& tensor : tensors) elements += tensor.size();
  if (group.size() == 1 || elements == 0) return;
  const Tensor whole(pool, {elements}, DType::kF32, MemoryKind::kWorkspace);
  pack(tensors, whole, Way::kIn);
  group.all_reduce(whole, ReduceOp::kSum);
  pack(tensors, whole, Way::kOut);
}

DataBuckets::DataBuckets(const Communicator& data, std::vector<Entry> entries,
                         std::int64_t bucket_bytes, Pool& pool)
    : data_(data), entries_(std::move(entries)), pool_(pool) {
  MT_ASSERT(bucket_bytes > 0);
  std::array<Bucket, 3> open;
  for (const Kind kind : {Kind::kShared, Kind::kCut, Kind::kLeft}) {
    open.at(static_cast<std::size_t>(kind)).kind = kind;
  }
  const auto put_in = [&](Kind kind, const Tensor& piece, std::size_t ready) {
    if (piece.size() > 0) put(open.at(static_cast<std::size_t>(kind)), piece, ready, bucket_bytes);
  };
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Tensor& tensor = entries_[i].tensor;
    if (!entries_[i].cut) {
      put_in(Kind::kShared, tensor, i + 1);
      continue;
    }
    const std::int64_t rows = tensor.dim(0), equal = rows / data.size() * data.size();
    put_in(Kind::kCut, tensor.rows(0, equal), i + 1);
    put_in(Kind::kLeft, tensor.rows(equal, rows), i + 1);
  }
  for (Bucket& bucket : open) close(bucket);
  std::stable_sort(buckets_.begin(), buckets_.end(),
                   [](const Bucket& a, const Bucket& b) { return a.ready < b.ready; });
}

void DataBuckets::put(Bucket& open, const Tensor& piece, std::size_t ready,
                      std::int64_t bucket_bytes) {
  if (piece.bytes() * 4 >= bucket_bytes) {
    Bucket alone{.kind = open.kind, .ready = ready, .pieces = {piece}, .elements = piece.size()};
    close(alone);
    return;
  }
  open.pieces.push_back(piece);
  open.elements += piece.size();
  open.ready = ready;
  if (open.elements * static_cast<std::int64_t>(sizeof(float)) >= bucket_bytes) close(open);
}

void DataBuckets::close(Bucket& bucket) {
  if (bucket.pieces.empty()) return;
  if (bucket.pieces.size() > 1) largest_ = std::max(largest_, bucket.elements);
  const Kind kind = bucket.kind;
  buckets_.push_back(std::move(bucket));
  bucket = Bucket{};
  bucket.kind = kind;
}

void DataBuckets::sum_ready(std::size_t ready) {
  MT_ASSERT(ready <= entries_.size());
  for (; next_ < buckets_.size() && buckets_[next_].ready <= ready; ++next_) {
    if (data_.size() > 1) sum(buckets_[next_]);
  }
}

void DataBuckets::sum_rest() {
  sum_ready(entries_.size());
  next_ = 0;
}

void DataBuckets::gather() const {
  for (const Bucket& bucket : buckets_) {
    if (data_.size() > 1 && bucket.kind != Kind::kShared) gather(bucket);
  }
}

Tensor DataBuckets::part(const Tensor& piece, int rank) const {
  const std::int64_t rows = piece.dim(0) / data_.size();
  return piece.rows(rank * rows, (rank + 1) * rows);
}

std::vector<Tensor> DataBuckets::parts(const Bucket& bucket, int rank) const {
  std::vector<Tensor> owned;
  for (const Tensor& piece : bucket.pieces) owned.push_back(part(piece, rank));
  return owned;
}

Tensor DataBuckets::buffer(const Bucket& bucket) const {
  // One size for all, so that the pool keeps one block.
  return Tensor(pool_, {largest_}, DType::kF32, MemoryKind::kWorkspace).rows(0, bucket.elements);
}

void DataBuckets::sum(const Bucket& bucket) const {
  const bool alone = bucket.pieces.size() == 1;
  if (bucket.kind != Kind::kCut) {
    // Rows that the last rank alone owns are few: all ranks get their sum.
    if (alone) return data_.all_reduce(bucket.pieces[0], ReduceOp::kSum);
    const Tensor whole = buffer(bucket);
    pack(bucket.pieces, whole, Way::kIn);
    data_.all_reduce(whole, ReduceOp::kSum);
    return pack(bucket.pieces, whole, Way::kOut);
  }
  if (alone) {
    return data_.reduce_scatter(bucket.pieces[0], part(bucket.pieces[0], data_.rank()));
  }
  const Tensor whole = buffer(bucket);
  for (int rank = 0; rank < data_.size(); ++rank) {
    pack(parts(bucket, rank), part(whole, rank), Way::kIn);
  }
  data_.reduce_scatter(whole, part(whole, data_.rank()));
  pack(parts(bucket, data_.rank()), part(whole, data_.rank()), Way::kOut);
}

void DataBuckets::gather(const Bucket& bucket) const {
  const bool alone = bucket.pieces.size() == 1;
  if (bucket.kind == Kind::kLeft) {
    const int owner = data_.size() - 1;
    if (alone) return data_.broadcast(bucket.pieces[0], owner);
    const Tensor whole = buffer(bucket);
    if (data_.rank() == owner) pack(bucket.pieces, whole, Way::kIn);
    data_.broadcast(whole, owner);
    if (data_.rank() != owner) pack(bucket.pieces, whole, Way::kOut);
    return;
  }
  if (alone) return data_.all_gather(part(bucket.pieces[0], data_.rank()), bucket.pieces[0]);
  const Tensor whole = buffer(bucket), own = part(whole, data_.rank());
  pack(parts(bucket, data_.rank()), own, Way::kIn);
  data_.all_gather(own, whole);
  for (int rank = 0; rank < data_.size(); ++rank) {
    if (rank != data_.rank()) pack(parts(bucket, rank), part(whole, rank), Way::kOut);
  }
}

}  // namespace mt
