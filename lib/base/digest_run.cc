#include "base/digest_run.h"

#include <algorithm>
#include <cstring>

namespace mt {
namespace {

// Both words are bijections of their argument, and the arguments together are an invertible
// function of (index, bits).
constexpr std::uint64_t kIndexLow = 0x9E3779B97F4A7C15U;
constexpr std::uint64_t kIndexHigh = 0xA0761D6478BD642FU;
constexpr std::uint64_t kLow1 = 0xBF58476D1CE4E5B9U, kLow2 = 0x94D049BB133111EBU;
constexpr std::uint64_t kHigh1 = 0xFF51AFD7ED558CCDU, kHigh2 = 0xC4CEB9FE1A85EC53U;

std::uint64_t finish_low(std::uint64_t x) {
  x = (x ^ (x >> 30)) * kLow1;
  x = (x ^ (x >> 27)) * kLow2;
  return x ^ (x >> 31);
}

std::uint64_t finish_high(std::uint64_t x) {
  x = (x ^ (x >> 33)) * kHigh1;
  x = (x ^ (x >> 33)) * kHigh2;
  return x ^ (x >> 33);
}

constexpr std::int64_t kLanes = 4;
using Lanes [[gnu::vector_size(32)]] = std::uint64_t;

template <typename Bits>
struct Packed {
  using Type [[gnu::vector_size(kLanes * sizeof(Bits))]] = Bits;
};

// Four elements at a time. Carries out of the low word are kept by adding its halves apart, which
// holds up to 2^34 elements. (No part of the loop is a function of its own: those of another target
// are not inlined.)
template <typename Bits>
[[gnu::target("avx2")]] DigestSum digest_block_avx2(const std::byte* data, std::int64_t count,
                                                    std::uint64_t index) {
  Lanes i = {index, index + 1, index + 2, index + 3};
  Lanes low_base = i * kIndexLow, high_base = i * kIndexHigh;
  Lanes low_sum = {}, carry_sum = {}, high_sum = {};
  for (std::int64_t at = 0; at < count; at += kLanes) {
    typename Packed<Bits>::Type packed;
    std::memcpy(&packed, data + at * static_cast<std::int64_t>(sizeof(Bits)), sizeof packed);
    const Lanes element = __builtin_convertvector(packed, Lanes);
    Lanes x = low_base + element, y = high_base + (element << 32);
    x = (x ^ (x >> 30)) * kLow1;
    y = (y ^ (y >> 33)) * kHigh1;
    x = (x ^ (x >> 27)) * kLow2;
    y = (y ^ (y >> 33)) * kHigh2;
    x ^= x >> 31;
    y ^= y >> 33;
    low_sum += x & 0xFFFFFFFFU;
    carry_sum += x >> 32;
    high_sum += y;
    low_base += static_cast<std::uint64_t>(kLanes) * kIndexLow;
    high_base += static_cast<std::uint64_t>(kLanes) * kIndexHigh;
  }
  DigestSum sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    sum += DigestSum{low_sum[lane]} + (DigestSum{carry_sum[lane]} << 32) +
           (DigestSum{high_sum[lane]} << 64);
  }
  return sum;
}

template <typename Bits>
DigestSum digest_run_avx2(const std::byte* data, std::int64_t count, std::uint64_t index) {
  constexpr std::int64_t kBlock = std::int64_t{1} << 30;
  DigestSum sum = 0;
  std::int64_t at = 0;
  while (count - at >= kLanes) {
    const std::int64_t block = std::min(kBlock, (count - at) / kLanes * kLanes);
    sum += digest_block_avx2<Bits>(data + at * static_cast<std::int64_t>(sizeof(Bits)), block,
                                   index + static_cast<std::uint64_t>(at));
    at += block;
  }
  return sum + digest_run_plain<Bits>(data + at * static_cast<std::int64_t>(sizeof(Bits)),
                                      count - at, index + static_cast<std::uint64_t>(at));
}

}  // namespace

template <typename Bits>
DigestSum digest_run_plain(const std::byte* data, std::int64_t count, std::uint64_t index) {
  DigestSum sum = 0;
  std::uint64_t low_base = index * kIndexLow;
  std::uint64_t high_base = index * kIndexHigh;
  for (std::int64_t i = 0; i < count; ++i) {
    Bits bits = 0;
    std::memcpy(&bits, data + i * static_cast<std::int64_t>(sizeof(Bits)), sizeof(Bits));
    const std::uint64_t element = bits;
    sum +=
        DigestSum{finish_high(high_base + (element << 32))} << 64 | finish_low(low_base + element);
    low_base += kIndexLow;
    high_base += kIndexHigh;
  }
  return sum;
}

template <typename Bits>
DigestSum digest_run(const std::byte* data, std::int64_t count, std::uint64_t index) {
  static const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  if (avx2) return digest_run_avx2<Bits>(data, count, index);
  return digest_run_plain<Bits>(data, count, index);
}

#define MT_DIGEST_RUN(Bits)                                                           \
  template DigestSum digest_run<Bits>(const std::byte*, std::int64_t, std::uint64_t); \
  template DigestSum digest_run_plain<Bits>(const std::byte*, std::int64_t, std::uint64_t);
MT_DIGEST_RUN(std::uint8_t)
MT_DIGEST_RUN(std::uint16_t)
MT_DIGEST_RUN(std::uint32_t)
#undef MT_DIGEST_RUN

}  // namespace mt
