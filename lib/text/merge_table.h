// From a pair of neighbouring ids to the rank of their merge, and from there to its result: a hash
// table that never changes once it is built. A slot has 4 bytes, a rank and 8 bits of the hash, so
// that the whole of GPT-2's lies in a second-level cache and a pair that does not merge, the usual
// case, costs one look; the pair itself stands in the list of merges.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "text/vocabulary.h"

namespace mt {

class MergeTable {
 public:
  // The lowest is merged first; kNone: the pair does not merge.
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  // `merges` must outlive the table and have less than 2^24 - 1 entries.
  MergeTable(const std::vector<BpeMerge>& merges, const std::array<std::int32_t, 256>& byte_ids)
      : merges_(&merges) {
    std::size_t size = 64;
    while (size < merges.size() * 3) size *= 2;
    slots_.assign(size, kNone);
    mask_ = size - 1;
    std::vector<int> byte_of;  // by id, -1: no single byte
    for (std::size_t byte = 0; byte < byte_ids.size(); ++byte) {
      const auto id = static_cast<std::size_t>(byte_ids[byte]);
      if (byte_of.size() <= id) byte_of.resize(id + 1, -1);
      byte_of[id] = static_cast<int>(byte);
    }
    const auto single = [&](std::int32_t id) {
      return static_cast<std::size_t>(id) < byte_of.size() ? byte_of[static_cast<std::size_t>(id)]
                                                           : -1;
    };
    bytes_.assign(std::size_t{1} << 16, kNone);
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
      const BpeMerge& m = merges[rank];
      const std::uint64_t h = hash(m.left, m.right);
      std::size_t at = h & mask_;
      while (slots_[at] != kNone) at = (at + 1) & mask_;
      slots_[at] = static_cast<std::uint32_t>(rank) | tag(h);
      const int left = single(m.left);
      const int right = single(m.right);
      if (left >= 0 && right >= 0) {
        bytes_[static_cast<std::size_t>(left * 256 + right)] = static_cast<std::uint32_t>(rank);
      }
    }
  }

  [[nodiscard]] std::uint32_t rank(std::int32_t left, std::int32_t right) const {
    const std::uint64_t h = hash(left, right);
    for (std::size_t at = h & mask_; slots_[at] != kNone; at = (at + 1) & mask_) {
      if (((slots_[at] ^ tag(h)) >> kRankBits) != 0) continue;
      const std::uint32_t rank = slots_[at] & kRankMask;
      const BpeMerge& m = (*merges_)[rank];
      if (m.left == left && m.right == right) return rank;
    }
    return kNone;
  }
  // The same for the ids of two bytes.
  [[nodiscard]] std::uint32_t rank_of_bytes(unsigned left, unsigned right) const {
    return bytes_[left * 256 + right];
  }
  [[nodiscard]] std::int32_t result(std::uint32_t rank) const { return (*merges_)[rank].result; }

 private:
  static constexpr unsigned kRankBits = 24;
  static constexpr std::uint32_t kRankMask = (1U << kRankBits) - 1;

  static std::uint64_t hash(std::int32_t left, std::int32_t right) {
    const std::uint64_t pair =
        (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
        static_cast<std::uint32_t>(right);
    const std::uint64_t x = pair * 0x9E3779B97F4A7C15U;
    return x ^ (x >> 32);
  }
  static std::uint32_t tag(std::uint64_t h) {
    return static_cast<std::uint32_t>(h >> (64 - 8)) << kRankBits;
  }

  const std::vector<BpeMerge>* merges_;
  std::vector<std::uint32_t> slots_;
  std::vector<std::uint32_t> bytes_;  // rank by two bytes
  std::size_t mask_ = 0;
};

}  // namespace mt
