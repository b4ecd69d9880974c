// From a pair of neighbouring ids to what they merge into: an open hash table that never changes
// once it is built.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "text/vocabulary.h"

namespace mt {

class MergeTable {
 public:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  struct Merge {
    std::uint32_t rank = kNone;  // the lowest is merged first; kNone: the pair does not merge
    std::int32_t result = 0;
  };

  explicit MergeTable(const std::vector<BpeMerge>& merges) {
    std::size_t size = 64;
    while (size < merges.size() * 3) size *= 2;
    slots_.resize(size);
    mask_ = size - 1;
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
      const BpeMerge& m = merges[rank];
      std::size_t at = hash(key(m.left, m.right)) & mask_;
      while (slots_[at].merge.rank != kNone) at = (at + 1) & mask_;
      slots_[at] = {key(m.left, m.right), {static_cast<std::uint32_t>(rank), m.result}};
    }
  }

  [[nodiscard]] Merge find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t wanted = key(left, right);
    std::size_t at = hash(wanted) & mask_;
    while (slots_[at].merge.rank != kNone && slots_[at].pair != wanted) at = (at + 1) & mask_;
    return slots_[at].merge;
  }

 private:
  struct Slot {
    std::uint64_t pair = 0;
    Merge merge;
  };
  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
           static_cast<std::uint32_t>(right);
  }
  static std::size_t hash(std::uint64_t x) {
    x *= 0x9E3779B97F4A7C15U;
    return x ^ (x >> 32);
  }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
};

}  // namespace mt
