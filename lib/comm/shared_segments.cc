#include "comm/shared_segments.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "comm/combine.h"

namespace mt {
namespace {

constexpr std::int64_t kHeader = 128;  // of a segment; the adjacent-line prefetcher takes pairs
constexpr std::int64_t kPastCache = std::int64_t{1} << 19;  // bytes of a part
constexpr int kSpins = 100;                                 // before the core is offered to others
constexpr int kYields = 64;                                 // between two calls of progress

std::byte* at(void* data, std::int64_t offset) {
  return static_cast<std::byte*>(data) + offset;
}

// A call and its bytes in one word; the lowest bit tells a maximum from a sum.
constexpr int kCallBits = 8;
std::uint64_t purpose(CommCall call, std::int64_t detail) {
  return static_cast<std::uint64_t>(detail) << kCallBits | static_cast<std::uint64_t>(call);
}

std::string purpose_text(std::uint64_t purpose) {
  const auto call = static_cast<CommCall>(purpose & ((1U << kCallBits) - 1));
  const std::uint64_t detail = purpose >> kCallBits;
  return cat(comm_call_name(call), detail % 2 == 1 ? " (max)" : "", " of ", detail / 2, " bytes");
}

}  // namespace

SharedSegments::SharedSegments(std::vector<std::byte*> base, int rank, std::int64_t piece,
                               std::function<void()> progress)
    : base_(std::move(base)),
      rank_(static_cast<std::size_t>(rank)),
      piece_(piece),
      progress_(std::move(progress)) {}

std::int64_t SharedSegments::bytes(std::int64_t piece) {
  return kHeader + 2 * piece;
}

std::int64_t SharedSegments::piece_bytes(int ranks) {
  constexpr std::int64_t kAll = std::int64_t{8} << 20, kMost = std::int64_t{1} << 20,
                         kLeast = std::int64_t{1} << 16;
  return std::clamp(kAll / ranks / 4096 * 4096, kLeast, kMost);
}

std::byte* SharedSegments::half(std::size_t r) const {
  return base_[r] + kHeader + turn_ * piece_;
}

SharedSegments::Segment& SharedSegments::segment(std::size_t r) const {
  // The bits of a zeroed segment are those of a fresh one.
  return *reinterpret_cast<Segment*>(base_[r]);
}

void SharedSegments::barrier() {
  purpose_ = purpose(CommCall::kBarrier, 0);
  wait_for_all();
}

void SharedSegments::wait_for_all() {
  ++epoch_;
  segment(rank_).purpose[epoch_ % 2].store(purpose_, std::memory_order_relaxed);
  segment(rank_).epoch.store(epoch_, std::memory_order_release);
  for (std::size_t r = 0; r < base_.size(); ++r) {
    for (int tries = 0; segment(r).epoch.load(std::memory_order_acquire) < epoch_; ++tries) {
      if (tries < kSpins) continue;
      sched_yield();
      if (tries % kYields == 0) progress_();
    }
  }
  for (std::size_t r = 0; r < base_.size(); ++r) {
    if (segment(r).purpose[epoch_ % 2].load(std::memory_order_relaxed) != purpose_) differ();
  }
}

void SharedSegments::differ() const {
  const auto of = [&](std::size_t r) { return segment(r).purpose[epoch_ % 2].load(); };
  std::size_t other = 1;
  while (of(other) == of(0)) ++other;
  throw Error(
      ExitStatus::kPeer,
      cat("ranks of one group are not in the same operation: the first in ", purpose_text(of(0)),
          ", number ", other + 1, " of ", base_.size(), " in ", purpose_text(of(other))));
}

void SharedSegments::reduce_all(const Elements& x, ReduceOp op) {
  purpose_ = purpose(CommCall::kAllReduce, x.bytes() * 2 + (op == ReduceOp::kMax ? 1 : 0));
  const std::int64_t width = element_bytes(x.kind), step = piece_ / width;
  const int ranks = static_cast<int>(base_.size());
  std::vector<const void*> parts(base_.size());
  for (std::int64_t begin = 0; begin < x.count; begin += step) {
    const std::int64_t count = std::min(step, x.count - begin);
    std::byte* const here = at(x.data, begin * width);
    // Nobody else reads this rank's own slice of its own piece: it is not shown, and the sum may
    // lie in its place.
    const Slice mine = slice_of(count, ranks, static_cast<int>(rank_));
    const auto show = [&](std::int64_t from, std::int64_t to) {
      std::memcpy(half(rank_) + from * width, here + from * width,
                  static_cast<std::size_t>((to - from) * width));
    };
    show(0, mine.begin);
    show(mine.end, count);
    wait_for_all();
    for (std::size_t r = 0; r < parts.size(); ++r) {
      parts[r] = (r == rank_ ? here : half(r)) + mine.begin * width;
    }
    combine_tree(x.kind, op, parts, mine.end - mine.begin, half(rank_) + mine.begin * width);
    wait_for_all();
    for (std::size_t r = 0; r < parts.size(); ++r) {
      const Slice slice = slice_of(count, ranks, static_cast<int>(r));
      std::memcpy(here + slice.begin * width, half(r) + slice.begin * width,
                  static_cast<std::size_t>((slice.end - slice.begin) * width));
    }
    turn();
  }
}

void SharedSegments::scatter_sum(const Elements& whole, const Elements& part) {
  purpose_ = purpose(CommCall::kReduceScatter, whole.bytes() * 2);
  const std::int64_t width = element_bytes(whole.kind);
  const auto ranks = static_cast<std::int64_t>(base_.size());
  const std::int64_t step = piece_ / width / ranks;
  std::vector<const void*> parts(base_.size());
  for (std::int64_t begin = 0; begin < part.count; begin += step) {
    const std::int64_t count = std::min(step, part.count - begin);
    const auto own = static_cast<std::int64_t>(rank_);
    for (std::int64_t r = 0; r < ranks; ++r) {
      if (r == own) continue;  // nobody else reads it
      std::memcpy(half(rank_) + r * count * width, at(whole.data, (r * part.count + begin) * width),
                  static_cast<std::size_t>(count * width));
    }
    wait_for_all();
    for (std::size_t r = 0; r < parts.size(); ++r) {
      parts[r] = r == rank_ ? at(whole.data, (own * part.count + begin) * width)
                            : half(r) + own * count * width;
    }
    combine_tree(whole.kind, ReduceOp::kSum, parts, count, at(part.data, begin * width));
    turn();
  }
}

void SharedSegments::gather_all(const Elements& part, const Elements& whole) {
  const std::int64_t bytes = part.bytes();
  purpose_ = purpose(CommCall::kAllGather, whole.bytes() * 2);
  for (std::int64_t begin = 0; begin < bytes; begin += piece_) {
    const auto count = static_cast<std::size_t>(std::min(piece_, bytes - begin));
    std::memcpy(half(rank_), at(part.data, begin), count);
    wait_for_all();
    for (std::size_t r = 0; r < base_.size(); ++r) {
      std::byte* const to = at(whole.data, static_cast<std::int64_t>(r) * bytes + begin);
      if (to == at(part.data, begin)) continue;
      // What is gathered is as large as the model, and read again only when all of it is there.
      if (bytes >= kPastCache) {
        copy_past_cache(to, half(r), count);
      } else {
        std::memcpy(to, half(r), count);
      }
    }
    turn();
  }
}

void SharedSegments::broadcast(const Elements& x, int root) {
  purpose_ = purpose(CommCall::kBroadcast, x.bytes() * 2);
  for (std::int64_t begin = 0; begin < x.bytes(); begin += piece_) {
    const auto count = static_cast<std::size_t>(std::min(piece_, x.bytes() - begin));
    const auto from = static_cast<std::size_t>(root);
    if (rank_ == from) std::memcpy(half(from), at(x.data, begin), count);
    wait_for_all();
    if (rank_ != from) std::memcpy(at(x.data, begin), half(from), count);
    turn();
  }
}

}  // namespace mt
