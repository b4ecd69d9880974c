// Philox4x32-10 over 16 counters at once (the scalar form and its meaning: base/philox.h), and the
// masks of dropout.
#pragma once

#include "kernels/cpu/vector.h"
#include "kernels/kernels.h"

namespace mt::cpu::MT_KERNEL_SET {

// The 64 numbers of blocks block .. block + 15 of one sample, in order.
MT_LANE_INLINE void philox_64(std::uint32_t seed, std::uint32_t stream, std::uint64_t sample,
                              std::uint32_t layer, std::uint32_t site, std::uint64_t block,
                              std::uint32_t* out) {
  const auto low = static_cast<std::uint32_t>(block);
  const auto high = static_cast<std::uint32_t>(block >> 32);
  const std::uint32_t place = (layer << 8) | site;
  Ints c0 = all_int(low) + lane_numbers();
  Ints c1 = all_int((high << 24) | place);
  if (low > 0xFFFFFFF0U) {  // some lanes carry into the high word
    const Ints carried = all_int(((high + 1) << 24) | place);
    c1 = bits_of(
        select(less_unsigned(c0, all_int(low)), floats_of_bits(carried), floats_of_bits(c1)));
  }
  Ints c2 = all_int(static_cast<std::uint32_t>(sample));
  Ints c3 = all_int(static_cast<std::uint32_t>(sample >> 32));
  std::uint32_t key0 = seed, key1 = stream;
  for (int round = 0; round < 10; ++round) {
    Ints high0, low0, high1, low1;
    multiply_wide(all_int(0xD2511F53U), c0, &high0, &low0);
    multiply_wide(all_int(0xCD9E8D57U), c2, &high1, &low1);
    c0 = high1 ^ c1 ^ all_int(key0);
    c1 = low1;
    c2 = high0 ^ c3 ^ all_int(key1);
    c3 = low0;
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  interleave4(c0, c1, c2, c3, out);
}

// A Dropout made ready: a number below `threshold` drops its element.
struct DropoutMask {
  std::uint32_t seed, layer, site, threshold;
  float scale;
};

MT_LANE_INLINE DropoutMask dropout_mask(const Dropout& d) {
  const double exact = static_cast<double>(d.probability) * 4294967296.0;
  const auto whole = static_cast<std::uint64_t>(exact);
  const std::uint64_t threshold = whole + (static_cast<double>(whole) < exact ? 1 : 0);
  return {d.seed, d.layer, d.site,
          threshold > 0xFFFFFFFFU ? 0xFFFFFFFFU : static_cast<std::uint32_t>(threshold),
          1.0F / (1.0F - d.probability)};
}

// Factors, 0 or the scale, for elements 4 block .. 4 block + 63 of a sample.
MT_LANE_INLINE void dropout_factors(const DropoutMask& mask, std::int64_t sample,
                                    std::uint64_t block, float* factors) {
  constexpr std::uint32_t kDropoutStream = 1;  // RandomStream::kDropout
  alignas(64) std::uint32_t words[64];
  philox_64(mask.seed, kDropoutStream, static_cast<std::uint64_t>(sample), mask.layer, mask.site,
            block, words);
  for (int i = 0; i < 64; i += 16) {
    const Mask dropped = less_unsigned(load_ints(words + i), all_int(mask.threshold));
    store(factors + i, select(dropped, all(0.0F), all(mask.scale)));
  }
}

}  // namespace mt::cpu::MT_KERNEL_SET
