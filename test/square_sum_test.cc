// The sum of squares against exact integers, in every kernel set and order.
#include "tensor/square_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <boost/multiprecision/cpp_int.hpp>
#include <limits>

#include "kernels_testing.h"
#include "tensor/ops.h"
#include "testing.h"

namespace mt {
namespace {

using Exact = boost::multiprecision::cpp_int;

// In units of 2^-298, the square of the smallest float.
Exact exact_square(float x) {
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(static_cast<double>(x)), &exponent);
  if (fraction == 0) return 0;
  const auto digits = static_cast<std::int64_t>(std::ldexp(fraction, 24));  // x = digits * 2^(e-24)
  const Exact square(digits * digits);
  const int shift = 2 * (exponent - 24) + 298;
  // Below the normal numbers the last digits are zeros.
  return shift >= 0 ? Exact(square << shift) : Exact(square >> -shift);
}

Exact exact_sum(const Numbers& x) {
  Exact sum = 0;
  for (const float value : x) sum += exact_square(value);
  return sum;
}

Exact exact_of(const SquareLimbs& sum) {
  Exact total = 0;
  for (int i = SquareLimbs::kCount - 1; i >= 0; --i) total = (total << 32) + sum.limbs[i];
  EXPECT_EQ(total & ((Exact(1) << 22) - 1), 0);
  return total >> 22;  // 2^-320 to 2^-298
}

// Numbers of one kind each, long enough for several blocks and pieces of the kernel.
struct Kind {
  const char* name;
  Numbers numbers;
};
std::vector<Kind> kinds() {
  std::mt19937 generator(5);
  const auto with_exponents = [&](std::size_t count, int low, int high) {
    std::uniform_int_distribution<int> exponent(low, high);
    std::uniform_real_distribution<float> fraction(-2.0F, 2.0F);
    Numbers x(count);
    for (float& value : x) value = std::ldexp(fraction(generator), exponent(generator));
    return x;
  };
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<Kind> all{{"like gradients", random_numbers(200'003, 1, 1e-3F)},
                        {"one", {3.0F}},
                        {"zeros", Numbers(5000, 0.0F)},
                        {"the largest", Numbers(70'000, std::nextafter(infinity, 0.0F))},
                        {"the smallest", Numbers(3000, std::numeric_limits<float>::denorm_min())},
                        {"below the normal numbers", with_exponents(5000, -149, -127)},
                        {"every exponent", with_exponents(5000, -149, 126)},
                        {"large", with_exponents(5000, 120, 126)}};
  // Spreads around those at which another number of digits is taken, with the extremes present and
  // all bits of the fractions set.
  for (const int spread : {0, 1, 18, 19, 20, 21, 40, 41, 42, 43, 100}) {
    for (const int high : {-100, 0, 127}) {
      const int low = std::max(-149, high - spread);
      Numbers x(3000, std::ldexp(std::nextafter(2.0F, 0.0F), high));
      for (std::size_t i = 0; i < x.size(); i += 3) {
        x[i] = std::ldexp(std::nextafter(2.0F, 0.0F), low) * (i % 2 == 0 ? 1.0F : -1.0F);
      }
      all.push_back({"two magnitudes", x});
      all.push_back({"between two magnitudes", with_exponents(3000, low, std::max(low, high - 1))});
    }
  }
  // What the digits leave of each square has one sign and is all but the most that it can be, and
  // the smallest element is odd: a double has no bit to spare at a spread of 19 (of 41 with three
  // digits), and one more would be rounded.
  const float filling = 16777216.0F - 13.0F;  // its square is 9 modulo 32
  for (const auto& [middle, spreads] :
       {std::pair{0, std::array{18, 19, 20, 21}}, {22, std::array{40, 41, 42, 43}}}) {
    for (const int spread : spreads) {
      Numbers x(1024, std::ldexp(filling, -middle));
      x.front() = filling;
      x.back() = std::ldexp(filling, -spread);
      all.push_back({"filling digits", x});
    }
  }
  return all;
}

TEST(SquareSum, every_kernel_set_gives_the_exact_sum) {
  for (const auto& [name, x] : kinds()) {
    const Exact want = exact_sum(x);
    static_cast<void>(same_everywhere([&, &name = name, &x = x](const Kernels& kernels) {
      SquareLimbs sum;
      kernels.sum_squares(DType::kF32, x.data(), static_cast<std::int64_t>(x.size()), sum);
      EXPECT_EQ(exact_of(sum), want) << name << ", " << kernels.name;
      EXPECT_EQ(sum.not_finite, 0) << name;
      for (int i = 0; i + 1 < SquareLimbs::kCount; ++i) {
        EXPECT_TRUE(0 <= sum.limbs[i] && sum.limbs[i] < std::int64_t{1} << 32);
      }
      return Numbers{1.0F};
    }));
  }
}

Tensor tensor_of(Pool& pool, const Numbers& x) {
  return upload(pool, x.data(), {static_cast<std::int64_t>(x.size())}, DType::kF32,
                MemoryKind::kWorkspace);
}

// By comparing distances to the neighbours, exactly.
void expect_nearest(double value, const Exact& sum, const std::string& what) {
  const auto distance = [&](double x) {
    int exponent = 0;
    const auto digits = static_cast<std::int64_t>(std::ldexp(std::frexp(x, &exponent), 53));
    const int shift = exponent - 53 + 298;
    const Exact wide = sum << 600, number = Exact(digits) << (600 + shift);
    return Exact(abs(wide - number));
  };
  const Exact here = distance(value);
  EXPECT_LE(here, distance(std::nextafter(value, HUGE_VAL))) << what;
  EXPECT_LE(here, distance(std::nextafter(value, 0.0))) << what;
}

TEST(SquareSum, the_value_is_the_nearest_double) {
  TestRig rig;
  for (const auto& [name, x] : kinds()) {
    SquareSum sum;
    sum.add(tensor_of(rig.pool, x));
    const Exact want = exact_sum(x);
    if (want == 0) {
      EXPECT_EQ(sum.value(), 0) << name;
    } else {
      expect_nearest(sum.value(), want, name);
    }
  }
  // A tie goes to the even number: 2^53 + 1 lies between two doubles, and 2^53 + 1 + a trifle does
  // not.
  Numbers tie(1, 94906264.0F);  // its square and three more make 2^53 + 1
  std::int64_t rest = (std::int64_t{1} << 53) + 1 - std::int64_t{94906264} * 94906264;
  while (rest > 0) {
    const auto root = static_cast<std::int64_t>(std::sqrt(static_cast<double>(rest)));
    tie.push_back(static_cast<float>(root));
    rest -= root * root;
  }
  ASSERT_EQ(rest, 0);
  SquareSum even;
  even.add(tensor_of(rig.pool, tie));
  EXPECT_EQ(even.value(), 9007199254740992.0);
  even.add(tensor_of(rig.pool, {1e-30F}));
  EXPECT_EQ(even.value(), 9007199254740994.0);
}

TEST(SquareSum, no_order_and_no_cut_changes_a_bit) {
  TestRig rig;
  std::mt19937 generator(9);
  Numbers x = random_numbers(30'000, 3, 1e-2F);
  for (const auto& [name, more] : kinds()) {
    x.insert(x.end(), more.begin(), more.begin() + std::min<long>(200, more.end() - more.begin()));
  }
  SquareSum whole;
  whole.add(tensor_of(rig.pool, x));
  for (int round = 0; round < 10; ++round) {
    std::shuffle(x.begin(), x.end(), generator);
    std::vector<SquareSum> parts;
    for (std::size_t begin = 0; begin < x.size();) {
      const std::size_t length = std::uniform_int_distribution<std::size_t>(1, 9000)(generator);
      const std::size_t end = std::min(x.size(), begin + length);
      parts.emplace_back().add(tensor_of(
          rig.pool, {x.begin() + static_cast<long>(begin), x.begin() + static_cast<long>(end)}));
      begin = end;
    }
    std::shuffle(parts.begin(), parts.end(), generator);
    // Half of them as ranks combine them, half as one rank does.
    SquareSum::Parts over_ranks{};
    SquareSum sum;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i % 2 == 0) {
        sum.add(parts[i]);
        continue;
      }
      const SquareSum::Parts part = parts[i].parts();
      for (std::size_t k = 0; k < part.size(); ++k) over_ranks[k] += part[k];
    }
    sum.add(SquareSum::from_parts(over_ranks));
    EXPECT_EQ(sum.parts(), whole.parts());
    EXPECT_EQ(sum.value(), whole.value());
  }
}

TEST(SquareSum, what_is_not_finite_shows) {
  TestRig rig;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::size_t at : {0U, 1023U, 1024U, 2999U}) {
    Numbers x = random_numbers(3000, 2);
    x[at] = -infinity;
    SquareSum sum;
    sum.add(tensor_of(rig.pool, x));
    EXPECT_EQ(sum.value(), HUGE_VAL);
    x[(at + 5) % 3000] = std::numeric_limits<float>::quiet_NaN();
    sum.add(tensor_of(rig.pool, x));
    EXPECT_TRUE(std::isnan(sum.value()));
    EXPECT_TRUE(std::isnan(SquareSum::from_parts(sum.parts()).value()));
  }
}

}  // namespace
}  // namespace mt
