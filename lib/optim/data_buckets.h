// Tensors on their way through the data axis: sums of gradients, and updated values back to all
// ranks. Small tensors travel together in buckets; large ones alone, where they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "tensor/tensor.h"

namespace mt {

// Sums f32 tensors over the ranks of a group in one call: overwritten. Collective over group.
void sum_together(const Communicator& group, const std::vector<Tensor>& tensors, Pool& pool);

class DataBuckets {
 public:
  // A tensor in which each rank owns its equal share of the first rows and the last one also what
  // the division leaves over (optim/zero1.h), or one that all ranks own alike.
  struct Entry {
    Tensor tensor;  // f32; the same shape on every rank
    bool cut = false;
  };

  // entries: in the order in which they become ready, the same on every rank. A bucket is closed
  // when it holds bucket_bytes; what has at least a quarter of that travels alone. data and pool
  // must outlive it. Holds no memory of its own: a bucket is taken from the pool while it is used.
  DataBuckets(const Communicator& data, std::vector<Entry> entries, std::int64_t bucket_bytes,
              Pool& pool);

  // Sums the buckets whose entries are all among the first `ready` ones and which were not summed
  // in this round: the tensors that are not cut, and of those that are the owned rows, become the
  // sums over the ranks (their tree: comm/communicator.h); other rows of cut tensors are left
  // undefined. Collective over data.
  void sum_ready(std::size_t ready);
  // Those that are left, and the round ends. Collective over data.
  void sum_rest();

  // Brings the owned rows of cut tensors to all ranks. Collective over data.
  void gather() const;

  // How many buckets there are, and how many of them were summed in this round.
  [[nodiscard]] std::size_t buckets() const { return buckets_.size(); }
  [[nodiscard]] std::size_t summed() const { return next_; }

 private:
  enum class Kind { kShared, kCut, kLeft };  // owned alike; equal parts; the last rank's rest
  struct Bucket {
    Kind kind = Kind::kShared;
    std::size_t ready = 0;  // entries that must be ready
    std::vector<Tensor> pieces = {};
    std::int64_t elements = 0;
  };
  void close(Bucket& bucket);
  void put(Bucket& open, const Tensor& piece, std::size_t ready, std::int64_t bucket_bytes);
  void sum(const Bucket& bucket) const;
  void gather(const Bucket& bucket) const;
  [[nodiscard]] Tensor buffer(const Bucket& bucket) const;
  // Rows of a piece that rank `rank` owns.
  [[nodiscard]] Tensor part(const Tensor& piece, int rank) const;
  [[nodiscard]] std::vector<Tensor> parts(const Bucket& bucket, int rank) const;

  const Communicator& data_;
  std::vector<Entry> entries_;
  Pool& pool_;
  std::vector<Bucket> buckets_;  // in the order in which they become ready
  std::int64_t largest_ = 0;     // elements of the largest bucket that is packed
  std::size_t next_ = 0;         // the first bucket that was not summed in this round
};

}  // namespace mt
