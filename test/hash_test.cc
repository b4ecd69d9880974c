#include "base/hash.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "base/digest_run.h"
#include "base/error.h"

namespace mt {
namespace {

using Dims = std::vector<std::int64_t>;

std::int64_t product(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

// The dense box cut out of a dense whole, by the definition of row-major order.
template <typename T>
std::vector<T> cut(const std::vector<T>& whole, const Dims& shape, const Dims& offset,
                   const Dims& extent) {
  std::vector<T> box;
  for (std::int64_t i = 0; i < product(shape); ++i) {
    bool inside = true;
    std::int64_t rest = i;
    for (std::size_t d = shape.size(); d-- > 0;) {
      const std::int64_t at = rest % shape[d];
      rest /= shape[d];
      inside = inside && at >= offset[d] && at < offset[d] + extent[d];
    }
    if (inside) {
      box.push_back(whole[static_cast<std::size_t>(i)]);
    }
  }
  return box;
}

template <typename T>
Digest128 whole_digest(const std::vector<T>& data, DType dtype, const Dims& shape) {
  return tensor_digest(data.data(), dtype, shape, Dims(shape.size(), 0), shape);
}

// Cuts the box at a random place of a random dim until the pieces are small; adds the digests.
template <typename T>
Digest128 cut_digest(const std::vector<T>& whole, DType dtype, const Dims& shape, Dims offset,
                     Dims extent, int depth, std::mt19937& random) {
  if (depth == 0) {
    return tensor_digest(cut(whole, shape, offset, extent).data(), dtype, shape, offset, extent);
  }
  const std::size_t d = random() % shape.size();
  const auto first =
      static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(extent[d] + 1));
  Dims low = extent;
  low[d] = first;
  Dims high = extent;
  high[d] = extent[d] - first;
  Dims high_offset = offset;
  high_offset[d] += first;
  // The later part first: the order must not enter.
  const Digest128 b = cut_digest(whole, dtype, shape, high_offset, high, depth - 1, random);
  return b + cut_digest(whole, dtype, shape, offset, low, depth - 1, random);
}

TEST(Xxh3, gives_the_known_answers) {
  EXPECT_EQ(to_hex(xxh3_128("", 0)), "99aa06d3014798d86001c324468d497f");
  const std::string text = "a tensor, a block, a file";
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(text.data(), text.size()));
  std::string hex;
  for (const unsigned char byte : canonical.digest) {
    const char* const digits = "0123456789abcdef";
    hex += digits[byte >> 4];
    hex += digits[byte & 15];
  }
  EXPECT_EQ(to_hex(xxh3_128(text.data(), text.size())), hex);
}

TEST(Xxh3, is_the_same_over_pieces) {
  std::mt19937 random(2);
  std::string bytes(300000, '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(random());
  }
  for (int trial = 0; trial < 20; ++trial) {
    StreamHash hash;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t piece = std::min<std::size_t>(random() % 20000, bytes.size() - at);
      hash.update(bytes.data() + at, piece);
      at += piece;
    }
    ASSERT_EQ(hash.digest(), xxh3_128(bytes.data(), bytes.size()));
  }
  StreamHash nothing;
  nothing.update(nullptr, 0);
  EXPECT_EQ(nothing.digest(), xxh3_128("", 0));
}

TEST(Hex, goes_there_and_back_and_refuses_the_rest) {
  const Digest128 digest{0x0123456789abcdefU, 0xfedcba9876543210U};
  EXPECT_EQ(to_hex(digest), "fedcba98765432100123456789abcdef");
  EXPECT_EQ(from_hex(to_hex(digest), "x"), digest);
  for (const char* const text :
       {"", "fedcba98765432100123456789abcde", "fedcba98765432100123456789abcdefa",
        "FEDCBA98765432100123456789abcdef", "fedcba9876543210 123456789abcdef"}) {
    EXPECT_THROW(static_cast<void>(from_hex(text, "manifest")), DataError) << text;
  }
}

// Numbers of a program written from the specification in another language.
TEST(TensorDigest, gives_the_specified_mix) {
  const float zero = 0.0F;
  EXPECT_EQ(to_hex(tensor_digest(&zero, DType::kF32, Dims{1}, Dims{0}, Dims{1})),
            std::string(32, '0'));
  std::vector<float> numbers(24);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<float>(i) - 2.5F;
  }
  EXPECT_EQ(to_hex(whole_digest(numbers, DType::kF32, {2, 3, 4})),
            "122e63547004832deb4ce7a559b91733");
  std::vector<std::uint16_t> halves(10000);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    halves[i] = static_cast<std::uint16_t>(i * 7 % 65536);
  }
  EXPECT_EQ(to_hex(whole_digest(halves, DType::kBf16, {100, 100})),
            "ad83917a2a8880a70a19fc2648f3834c");
}

template <typename Bits>
void expect_equal_runs() {
  std::mt19937_64 random(5);
  std::vector<std::byte> bytes(4200 * sizeof(Bits) + 1);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (std::size_t i = 0; i < 400; ++i) bytes[bytes.size() / 2 + i] = std::byte{0xFF};
  for (std::int64_t count = 0; count < 4200; count += count < 40 ? 1 : 371) {
    for (const std::uint64_t index : {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{1} << 45}) {
      for (const std::ptrdiff_t shift : {0, 1}) {
        ASSERT_TRUE(digest_run<Bits>(bytes.data() + shift, count, index) ==
                    digest_run_plain<Bits>(bytes.data() + shift, count, index))
            << sizeof(Bits) << " bytes, " << count << " elements from " << index;
      }
    }
  }
}

TEST(TensorDigest, vectors_give_what_single_elements_give) {
  expect_equal_runs<std::uint8_t>();
  expect_equal_runs<std::uint16_t>();
  expect_equal_runs<std::uint32_t>();
}

TEST(TensorDigest, does_not_know_the_layout) {
  std::mt19937 random(3);
  const std::vector<Dims> shapes = {{17},   {7, 13}, {5, 1, 9}, {3, 4, 5, 6},
                                    {1, 1}, {90001}, {2, 70000}};
  for (const Dims& shape : shapes) {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(product(shape)));
    for (std::uint32_t& word : words) {
      word = static_cast<std::uint32_t>(random());
    }
    const Digest128 whole = whole_digest(words, DType::kF32, shape);
    const int trials = words.size() > 1000 ? 3 : 40;
    for (int trial = 0; trial < trials; ++trial) {
      ASSERT_EQ(cut_digest(words, DType::kF32, shape, Dims(shape.size(), 0), shape,
                           static_cast<int>(random() % 4), random),
                whole);
    }
  }
}

TEST(TensorDigest, shows_every_flipped_bit_and_every_swap) {
  std::mt19937 random(4);
  std::vector<std::uint32_t> words(31);
  for (std::uint32_t& word : words) {
    word = static_cast<std::uint32_t>(random());
  }
  const Dims shape = {31};
  const Digest128 whole = whole_digest(words, DType::kF32, shape);
  for (std::uint32_t& word : words) {
    for (int bit = 0; bit < 32; ++bit) {
      word ^= 1U << bit;
      ASSERT_NE(whole_digest(words, DType::kF32, shape), whole);
      word ^= 1U << bit;
    }
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      std::swap(words[i], words[j]);
      const Digest128 swapped = whole_digest(words, DType::kF32, shape);
      ASSERT_NE(swapped.low, whole.low);
      ASSERT_NE(swapped.high, whole.high);
      std::swap(words[i], words[j]);
    }
  }
}

// Changes that a weak mix would let cancel: the same bit in two elements, +1 here and -1 there, a
// shift by one place, one sign each.
TEST(TensorDigest, shows_changes_in_pairs) {
  std::vector<std::uint32_t> words(64, 0x3F800000U);
  const Dims shape = {64};
  const Digest128 whole = whole_digest(words, DType::kF32, shape);
  for (std::size_t i = 0; i < words.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      for (const std::uint32_t change : {1U, 0x80000000U, 0x00400000U, 0xFFFFFFFFU}) {
        auto changed = words;
        changed[i] += change;
        changed[j] -= change;
        const Digest128 digest = whole_digest(changed, DType::kF32, shape);
        ASSERT_TRUE(digest.low != whole.low && digest.high != whole.high);
      }
    }
  }
  std::iota(words.begin(), words.end(), 0U);
  auto shifted = words;
  std::rotate(shifted.begin(), shifted.begin() + 1, shifted.end());
  EXPECT_NE(whole_digest(words, DType::kI32, shape), whole_digest(shifted, DType::kI32, shape));
}

TEST(TensorDigest, reads_each_size_at_any_alignment) {
  std::vector<unsigned char> bytes(4 * 1000 + 3);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(7));
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kU8}) {
    const Dims shape = {1000};
    std::vector<unsigned char> aligned(bytes.begin() + 3, bytes.end());
    ASSERT_EQ(tensor_digest(bytes.data() + 3, dtype, shape, Dims{0}, shape),
              tensor_digest(aligned.data(), dtype, shape, Dims{0}, shape));
  }
  const std::vector<std::uint16_t> narrow = {1, 2, 65535};
  const std::vector<std::uint32_t> wide = {1, 2, 65535};
  EXPECT_EQ(whole_digest(narrow, DType::kU16, {3}), whole_digest(wide, DType::kI32, {3}));
}

TEST(TensorDigest, of_nothing_is_zero_and_of_a_scalar_is_not) {
  const std::uint32_t one = 1;
  EXPECT_EQ(tensor_digest(&one, DType::kF32, Dims{4, 0}, Dims{0, 0}, Dims{4, 0}), Digest128{});
  EXPECT_EQ(tensor_digest(&one, DType::kF32, Dims{4, 3}, Dims{2, 3}, Dims{1, 0}), Digest128{});
  EXPECT_EQ(tensor_digest(&one, DType::kF32, Dims{}, Dims{}, Dims{}),
            tensor_digest(&one, DType::kF32, Dims{1}, Dims{0}, Dims{1}));
  EXPECT_NE(tensor_digest(&one, DType::kF32, Dims{}, Dims{}, Dims{}), Digest128{});
}

TEST(TensorDigest, adds_with_the_carry_between_its_words) {
  EXPECT_EQ((Digest128{~std::uint64_t{0}, 5} + Digest128{1, ~std::uint64_t{0}}), (Digest128{0, 5}));
}

}  // namespace
}  // namespace mt
