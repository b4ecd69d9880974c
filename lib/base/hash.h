// Content hashes. XXH3-128 finds accidents, not forgers; it covers every byte of what we write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/dtype.h"

namespace mt {

struct Digest128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const Digest128&, const Digest128&) = default;
};

// 32 lower-case hexadecimal digits, high word first (the canonical form of xxhsum), and back.
[[nodiscard]] std::string to_hex(const Digest128& digest);
// Throws DataError naming `where` if the text is not 32 such digits.
[[nodiscard]] Digest128 from_hex(const std::string& text, const std::string& where);

[[nodiscard]] Digest128 xxh3_128(const void* data, std::size_t bytes);

// The same over pieces.
class StreamHash {
 public:
  StreamHash();
  ~StreamHash();
  StreamHash(StreamHash&&) noexcept;
  StreamHash& operator=(StreamHash&&) noexcept;
  void update(const void* data, std::size_t bytes);
  [[nodiscard]] Digest128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The digest of a tensor, which does not know the layout: the 128-bit sum (modulo 2^128), over all
// elements, of a mix of (global row-major index, bits). Any rank adds up its boxes in any order;
// sums of parts add. The mix is specified in mt-checkpoint(5). An element of 2 bytes is widened
// with zero bits.
//
// `data` holds the box `extent` at `offset` of `global_shape`, row-major and dense. Threads share
// the work.
[[nodiscard]] Digest128 tensor_digest(const void* data, DType dtype,
                                      std::span<const std::int64_t> global_shape,
                                      std::span<const std::int64_t> offset,
                                      std::span<const std::int64_t> extent);
[[nodiscard]] Digest128 operator+(const Digest128& a, const Digest128& b);

}  // namespace mt
