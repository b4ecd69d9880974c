// The inner loop of tensor_digest (base/hash.h, which states the mix).
#pragma once

#include <cstddef>
#include <cstdint>

namespace mt {

__extension__ using DigestSum = unsigned __int128;

// The sum of the mixes of `count` elements whose global indices follow each other from `index`;
// they need no alignment. Bits: std::uint8_t, std::uint16_t or std::uint32_t. On the calling
// thread.
template <typename Bits>
[[nodiscard]] DigestSum digest_run(const std::byte* data, std::int64_t count, std::uint64_t index);

// The same one element at a time, on any processor: what the above must be equal to.
template <typename Bits>
[[nodiscard]] DigestSum digest_run_plain(const std::byte* data, std::int64_t count,
                                         std::uint64_t index);

}  // namespace mt
