#include "base/small_floats.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "io/hdf5.h"
#include "shared_data.h"

namespace mt {
namespace {

// Every pattern of 16 bits comes back from its f32; a NaN stays one, of its sign.
template <typename Widen, typename Round>
void round_trips(Widen widen, Round round, std::uint32_t magnitude_of_infinity) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const float wide = widen(static_cast<std::uint16_t>(bits));
    const std::uint16_t back = round(wide);
    if ((bits & 0x7FFFU) <= magnitude_of_infinity) {
      ASSERT_EQ(back, bits);
    } else {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      ASSERT_GT(back & 0x7FFFU, magnitude_of_infinity) << bits;
      ASSERT_EQ(back & 0x8000U, bits & 0x8000U) << bits;
    }
  }
}

TEST(SmallFloats, what_was_widened_comes_back) {
  round_trips(from_bf16, to_bf16, 0x7F80U);
  round_trips(from_f16, to_f16, 0x7C00U);
}

TEST(SmallFloats, values_of_patterns) {
  EXPECT_EQ(from_bf16(0x3F80), 1.0F);
  EXPECT_EQ(from_bf16(0xC0A0), -5.0F);
  EXPECT_EQ(from_f16(0x3C00), 1.0F);
  EXPECT_EQ(from_f16(0xC500), -5.0F);
  EXPECT_EQ(from_f16(0x0001), 0x1p-24F);
  EXPECT_EQ(from_f16(0x03FF), 1023 * 0x1p-24F);
  EXPECT_EQ(from_f16(0x7BFF), 65504.0F);
  EXPECT_EQ(from_f16(0xFC00), -INFINITY);
}

// Between two neighbours of 16 bits: below the middle down, above it up, the middle to the even.
TEST(SmallFloats, every_middle_goes_to_the_even_neighbour) {
  const auto check = [](auto widen, auto round, std::uint32_t end, float last) {
    for (std::uint32_t low = 0; low < end; ++low) {
      const double a = widen(static_cast<std::uint16_t>(low));
      const double b = low + 1 == end ? last : widen(static_cast<std::uint16_t>(low + 1));
      const auto middle = static_cast<float>((a + b) / 2);  // exact
      const std::uint32_t even = low % 2 == 0 ? low : low + 1;
      ASSERT_EQ(round(middle), even) << low;
      ASSERT_EQ(round(-middle), even | 0x8000U) << low;
      ASSERT_EQ(round(std::nextafter(middle, 0.0F)), low);
      ASSERT_EQ(round(std::nextafter(middle, INFINITY)), low + 1);
    }
  };
  check(from_f16, to_f16, 0x7C00U, 65536.0F);
  // The last middle of bf16 lies between the largest number and 2^128, which f32 lacks.
  check(from_bf16, to_bf16, 0x7F7FU, from_bf16(0x7F7F));
  const float last_middle = std::bit_cast<float>(0x7F7F8000U);
  EXPECT_EQ(to_bf16(last_middle), 0x7F80U);
  EXPECT_EQ(to_bf16(std::nextafter(last_middle, 0.0F)), 0x7F7FU);
}

TEST(SmallFloats, nans_whose_payload_would_be_lost_stay_nan) {
  for (const std::uint32_t bits :
       {0x7F800001U, 0xFF800001U, 0x7FC00000U, 0xFFFFFFFFU, 0x7F80FFFFU}) {
    const auto x = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(from_bf16(to_bf16(x)))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(from_f16(to_f16(x)))) << std::hex << bits;
    EXPECT_EQ(to_bf16(x) >> 15, bits >> 31);
    EXPECT_EQ(to_f16(x) >> 15, bits >> 31);
  }
}

TEST(SmallFloats, golden_roundings_bit_for_bit) {
  const Hdf5Reader golden(testing::data_path("golden/sampling.h5"));
  const auto wide = golden.read<float>("/rounding/float32");
  const auto bf16 = golden.read<std::uint16_t>("/rounding/bfloat16_bits");
  const auto f16 = golden.read<std::uint16_t>("/rounding/float16_bits");
  ASSERT_GE(wide.size(), 4000U);
  std::vector<std::uint16_t> ours(wide.size());
  convert_floats(wide.data(), DType::kF32, ours.data(), DType::kBf16, wide.size());
  for (std::size_t i = 0; i < wide.size(); ++i) {
    if (std::isnan(wide[i])) {
      EXPECT_TRUE(std::isnan(from_bf16(ours[i])) && std::isnan(from_f16(to_f16(wide[i]))));
      continue;
    }
    EXPECT_EQ(ours[i], bf16[i]) << wide[i];
    EXPECT_EQ(to_bf16(wide[i]), bf16[i]) << wide[i];
    EXPECT_EQ(to_f16(wide[i]), f16[i]) << wide[i];
  }
}

TEST(SmallFloats, converts_between_any_two_at_any_alignment) {
  const std::array<float, 5> numbers{1.0F, -2.5F, 0x1p-14F, 0.0F, 1024.0F};  // exact in all three
  constexpr std::array<DType, 3> kTypes{DType::kF32, DType::kBf16, DType::kF16};
  for (const DType from : kTypes) {
    for (const DType to : kTypes) {
      std::array<std::byte, 21> a{}, b{}, c{};
      convert_floats(numbers.data(), DType::kF32, a.data() + 1, from, numbers.size());
      convert_floats(a.data() + 1, from, b.data() + 1, to, numbers.size());
      convert_floats(b.data() + 1, to, c.data() + 1, DType::kF32, numbers.size());
      EXPECT_EQ(std::memcmp(c.data() + 1, numbers.data(), sizeof(numbers)), 0)
          << dtype_name(from) << " " << dtype_name(to);
    }
  }
  float x = 0;
  EXPECT_THROW(convert_floats(&x, DType::kI32, &x, DType::kF32, 1), UsageError);
  EXPECT_THROW(convert_floats(&x, DType::kF32, &x, DType::kU16, 1), UsageError);
}

TEST(SmallFloats, finds_what_another_type_cannot_hold) {
  const float infinity = std::numeric_limits<float>::infinity();
  // The largest bf16, what still rounds to it, and what does not.
  std::vector<float> numbers(9000, 0x1.fefffep127F);
  numbers[0] = infinity;
  numbers[1] = std::nanf("");
  const auto first = [&](DType from, DType to) {
    return first_beyond(numbers.data(), from, to, numbers.size());
  };
  EXPECT_EQ(first(DType::kF32, DType::kBf16), 9000U);
  EXPECT_EQ(first(DType::kF32, DType::kF32), 9000U);
  EXPECT_EQ(first(DType::kF32, DType::kF16), 2U);
  numbers[8999] = -0x1.ffp127F;
  EXPECT_EQ(first(DType::kF32, DType::kBf16), 8999U);
  numbers[4500] = 0x1.ffp127F;
  EXPECT_EQ(first(DType::kF32, DType::kBf16), 4500U);
  EXPECT_THROW(static_cast<void>(first(DType::kI32, DType::kF32)), UsageError);
}

}  // namespace
}  // namespace mt
