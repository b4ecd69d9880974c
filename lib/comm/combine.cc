#include "comm/combine.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"

namespace mt {
namespace {

// Elements of a block that stays in the first-level cache while a tree is taken over it.
constexpr std::int64_t kBlock = 1024;
constexpr std::int64_t kWidest = 8;  // bytes of an element
constexpr std::size_t kLevels = 14;  // of a tree

template <typename T>
void combine_typed(ReduceOp op, T* __restrict into, const T* __restrict from, std::int64_t count) {
  if (op == ReduceOp::kSum) {
    for (std::int64_t i = 0; i < count; ++i) into[i] = into[i] + from[i];
  } else {
    // What is not a number on either side stays.
    for (std::int64_t i = 0; i < count; ++i) {
      into[i] = into[i] > from[i] || into[i] != into[i] ? into[i] : from[i];
    }
  }
}

// out = a + b; out may be either.
void add_two(const float* a, const float* b, std::int64_t count, float* out) {
  constexpr std::int64_t kTogether = 16;  // a fixed number becomes vector instructions
  std::int64_t i = 0;
  for (; i + kTogether <= count; i += kTogether) {
    std::array<float, kTogether> sums;
    for (std::size_t j = 0; j < kTogether; ++j)
      sums[j] = a[i + static_cast<std::int64_t>(j)] + b[i + static_cast<std::int64_t>(j)];
    std::memcpy(out + i, sums.data(), sizeof(sums));
  }
  for (; i < count; ++i) out[i] = a[i] + b[i];
}

}  // namespace

std::int64_t element_bytes(ElementKind kind) {
  switch (kind) {
    case ElementKind::kF32:
    case ElementKind::kI32:
      return 4;
    case ElementKind::kF64:
      return 8;
    case ElementKind::kByte:
      return 1;
  }
  return 0;
}

std::int64_t Elements::bytes() const {
  return count * element_bytes(kind);
}

void combine(ElementKind kind, ReduceOp op, void* into, const void* from, std::int64_t count) {
  switch (kind) {
    case ElementKind::kF32:
      return combine_typed(op, static_cast<float*>(into), static_cast<const float*>(from), count);
    case ElementKind::kF64:
      return combine_typed(op, static_cast<double*>(into), static_cast<const double*>(from), count);
    case ElementKind::kI32:
      return combine_typed(op, static_cast<std::int32_t*>(into),
                           static_cast<const std::int32_t*>(from), count);
    case ElementKind::kByte:
      break;
  }
  MT_ASSERT(!"bytes are not reduced");
}

void combine_tree(ElementKind kind, ReduceOp op, const std::vector<const void*>& parts,
                  std::int64_t count, void* out) {
  const std::int64_t width = element_bytes(kind);
  const std::size_t ranks = parts.size();
  // Sums that wait for a partner of their size: one a level at most, and the newest part.
  std::array<std::array<std::byte, kBlock * kWidest>, kLevels> waiting;
  MT_ASSERT(0 < ranks && ranks < (std::size_t{1} << (kLevels - 1)));
  if (ranks == 2 && kind == ElementKind::kF32 && op == ReduceOp::kSum) {  // needs no copies
    return add_two(static_cast<const float*>(parts[0]), static_cast<const float*>(parts[1]), count,
                   static_cast<float*>(out));
  }
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t length = std::min(kBlock, count - begin);
    const auto bytes = static_cast<std::size_t>(length * width);
    // A binary counter: slot l holds the sum of 2^l ranks, and two of one size become one.
    std::size_t held = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::memcpy(waiting[held].data(), static_cast<const std::byte*>(parts[rank]) + begin * width,
                  bytes);
      ++held;
      for (std::size_t bits = rank + 1; bits % 2 == 0; bits /= 2) {
        combine(kind, op, waiting[held - 2].data(), waiting[held - 1].data(), length);
        --held;
      }
    }
    for (; held > 1; --held) {
      combine(kind, op, waiting[held - 2].data(), waiting[held - 1].data(), length);
    }
    std::memcpy(static_cast<std::byte*>(out) + begin * width, waiting[0].data(), bytes);
  }
}

Slice slice_of(std::int64_t count, int parts, int index) {
  const std::int64_t piece = ((count + parts - 1) / parts + 15) / 16 * 16;
  return {std::min(count, piece * index), std::min(count, piece * (index + 1))};
}

}  // namespace mt
