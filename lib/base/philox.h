// Philox4x32-10: counter-based random numbers, a pure function of key and counter (Salmon et al.,
// "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011). Key (seed, stream); counter (global
// sample, layer, site, element inside the sample). Nothing about layout, micro-batch or the history
// of a run enters, so any rank draws just its own part.
#pragma once

#include <array>
#include <cstdint>

namespace mt {

using PhiloxBlock = std::array<std::uint32_t, 4>;

[[nodiscard]] constexpr PhiloxBlock philox4x32_10(PhiloxBlock counter, std::uint32_t key0,
                                                  std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(p0)};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return counter;
}

// What a number is drawn for: the second word of the key. Values are part of the meaning of a seed:
// never renumber.
enum class RandomStream : std::uint32_t { kInit = 0, kDropout = 1, kDataOrder = 2, kSampling = 3 };

// The places inside a layer where dropout draws; part of the counter.
enum class DropoutSite : std::uint32_t {
  kEmbedding = 0,
  kAttention = 1,
  kAttentionOutput = 2,
  kMlpOutput = 3
};

// Counter of the four numbers for elements 4 * block ... 4 * block + 3 of a sample (block below
// 2^40, layer below 2^16).
[[nodiscard]] constexpr PhiloxBlock philox_counter(std::uint64_t sample, std::uint32_t layer,
                                                   std::uint32_t site, std::uint64_t block) {
  return {static_cast<std::uint32_t>(block),
          (static_cast<std::uint32_t>(block >> 32) << 24) | (layer << 8) | site,
          static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(sample >> 32)};
}

}  // namespace mt
