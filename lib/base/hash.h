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

// The digest of a tensor, which does not know the layout: the sum modulo 2^128, over all elements,
// of a 128-bit mix of i, the element's global row-major index, and b, its bits widened with zeros
// (no element is wider than 32 bits).
// Any rank adds up its boxes in any order; sums of parts add; no elements give zero. The mix, all
// modulo 2^64:
//   low  = L(i * 9E3779B97F4A7C15 + b)
//   high = H(i * A0761D6478BD642F + b * 2^32)
//   L(x): x = (x ^ x >> 30) * BF58476D1CE4E5B9; x = (x ^ x >> 27) * 94D049BB133111EB; x ^ x >> 31
//   H(x): x = (x ^ x >> 33) * FF51AFD7ED558CCD; x = (x ^ x >> 33) * C4CEB9FE1A85EC53; x ^ x >> 33
// (L finishes SplitMix64, H finishes MurmurHash3.) Both are bijections, and (i, b) to their
// arguments is an invertible linear map, so no two (i, b) share a mix: one changed element always
// shows, and several changes cancel with a chance of about 2^-128.
//
// `data` holds the box `extent` at `offset` of `global_shape`, row-major and dense, aligned or not.
// The box lies inside the shape (callers check what comes from a file). Threads share the work.
[[nodiscard]] Digest128 tensor_digest(const void* data, DType dtype,
                                      std::span<const std::int64_t> global_shape,
                                      std::span<const std::int64_t> offset,
                                      std::span<const std::int64_t> extent);
[[nodiscard]] Digest128 operator+(const Digest128& a, const Digest128& b);

// The digest of a box whose bytes come piece by piece, in order, whole elements each; on the
// calling thread alone.
class BoxDigest {
 public:
  BoxDigest(DType dtype, std::span<const std::int64_t> global_shape,
            std::span<const std::int64_t> offset, std::span<const std::int64_t> extent);
  ~BoxDigest();
  BoxDigest(const BoxDigest&) = delete;
  BoxDigest& operator=(const BoxDigest&) = delete;
  void update(const void* data, std::size_t bytes);
  [[nodiscard]] Digest128 digest() const { return sum_; }  // of what came so far

 private:
  struct State;
  std::unique_ptr<State> state_;
  Digest128 sum_;
};

}  // namespace mt
