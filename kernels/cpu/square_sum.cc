// The sum of squares without rounding. The square of a float is exact in double and has 48 bits.
// Where the exponents of a block of 1,024 elements lie close together, their squares are cut into
// two or three digits of at most 44 bits by adding and subtracting a large power of two, and each
// digit is summed in double, exactly, since 44 bits and a carry of 10 leave a double's 53 unrounded
// (the extraction of Rump, Ogita and Oishi, SIAM J. Sci. Comput. 31, 2008, section 3, with
// constants such that nothing is lost). Where they do not, each element goes into the fixed-point
// number by itself.
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector.h"

namespace mt::cpu::MT_KERNEL_SET {
namespace {

constexpr std::int64_t kBlock = 1024;         // elements whose digits are summed in double
constexpr std::int64_t kPiece = 64 * kBlock;  // that a thread takes at once
constexpr std::int64_t kLow = 0xFFFFFFFF;
constexpr int kPoint = 320;  // limbs[0] counts 2^-320
// A digit of 43 or 44 bits, 10 bits of count, 53 in all. With the spread of the exponents of the
// floats in a block: (spread + 1) * 2 + 46 bits reach from the largest square to the last bit of
// the smallest.
constexpr int kTopDigit = 43, kDigit = 44, kTwoDigits = 19, kThreeDigits = 41;

struct alignas(64) ThreadSum {
  std::int64_t limbs[SquareLimbs::kCount];
  double not_finite;
};

// 2^exponent of a normal number.
MT_LANE_INLINE double power_of_two(int exponent) {
  return __builtin_bit_cast(double, static_cast<std::uint64_t>(exponent + 1023) << 52);
}

// The exponent field of a float that is not negative, as that of its last bit: what is below the
// normal numbers counts as the smallest of them.
MT_LANE_INLINE int exponent_field(float x) {
  const auto field = static_cast<int>(__builtin_bit_cast(std::uint32_t, x) >> 23);
  return field > 0 ? field : 1;
}

// limbs += value * 2^exponent; |value| <= 2^53.
MT_LANE_INLINE void deposit(std::int64_t value, int exponent, std::int64_t* limbs) {
  const int at = exponent + kPoint, shift = at & 31;
  std::int64_t* const limb = limbs + (at >> 5);
  const std::int64_t low = (value & kLow) << shift;  // below 2^63
  const std::int64_t high = (value >> 32) * (std::int64_t{1} << shift);
  limb[0] += low & kLow;
  limb[1] += (low >> 32) + (high & kLow);
  limb[2] += high >> 32;
}

MT_LANE_INLINE void deposit(double sum, int exponent, std::int64_t* limbs) {
  deposit(static_cast<std::int64_t>(sum * power_of_two(-exponent)), exponent, limbs);
}

MT_LANE_INLINE void carry(std::int64_t* limbs) {
  for (int i = 0; i + 1 < SquareLimbs::kCount; ++i) {
    limbs[i + 1] += limbs[i] >> 32;
    limbs[i] &= kLow;
  }
}

void add_one_by_one(const float* x, std::int64_t count, ThreadSum& sum) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = __builtin_bit_cast(std::uint32_t, x[i]) & 0x7FFFFFFFU;
    if (bits >= 0x7F800000U) {
      const auto wide = static_cast<double>(x[i]);
      sum.not_finite += wide * wide;
      continue;
    }
    const auto field = static_cast<std::int64_t>(bits >> 23);
    const std::int64_t fraction = bits & 0x7FFFFFU;
    const std::int64_t digits = field > 0 ? fraction | 0x800000 : fraction;
    const auto exponent = static_cast<int>(field > 0 ? field : 1) - 150;
    deposit(digits * digits, 2 * exponent, sum.limbs);
  }
}

// The digit of q that is a multiple of the unit of `large`, 1.5 * 2^52 units.
MT_LANE_INLINE Doubles take_digit(Doubles& q, Doubles large) {
  const Doubles digit = (q + large) - large;
  q = q - digit;
  return digit;
}

template <int Digits>
MT_LANE_INLINE void add_digits(const float* x, std::int64_t count, int top, int last,
                               ThreadSum& sum) {
  const int second = top - kDigit;
  const Doubles large = all_doubles(1.5 * power_of_two(top + 52));
  const Doubles middle = all_doubles(1.5 * power_of_two(second + 52));
  Doubles first = zero_doubles(), between = zero_doubles(), rest = zero_doubles();
  sweep(0, count, [&](std::int64_t i, auto part) {
    Doubles q = squares(load(x + i, part));
    first = first + take_digit(q, large);
    if (Digits == 3) between = between + take_digit(q, middle);
    rest = rest + q;
  });
  deposit(mt::cpu::MT_KERNEL_SET::sum(first), top, sum.limbs);
  if (Digits == 3) deposit(mt::cpu::MT_KERNEL_SET::sum(between), second, sum.limbs);
  deposit(mt::cpu::MT_KERNEL_SET::sum(rest), last, sum.limbs);
}

void add_block(const float* x, std::int64_t count, ThreadSum& sum) {
  const float infinity = __builtin_inff();
  const Floats zero = all(0.0F);
  Floats largest = zero, smallest = all(-infinity), odd = zero;  // smallest: negated, of not zero
  sweep(0, count, [&](std::int64_t i, auto part) {
    const Floats v = load(x + i, part);
    const Floats negative = min(v, zero - v);
    largest = max(zero - negative, largest);
    smallest = max(select(less(negative, zero), negative, all(-infinity)), smallest);
    odd = fma(v, zero, odd);  // not a number if v is none or infinite
  });
  if (any(not_less_equal(odd, zero))) return add_one_by_one(x, count, sum);
  const float most = max_lane(largest);
  if (most == 0.0F) return;
  const int high = exponent_field(most), low = exponent_field(-max_lane(smallest));
  const int top = 2 * (high - 126) - kTopDigit, last = 2 * (low - 150);
  if (high - low <= kTwoDigits) {
    add_digits<2>(x, count, top, last, sum);
  } else if (high - low <= kThreeDigits) {
    add_digits<3>(x, count, top, last, sum);
  } else {
    add_one_by_one(x, count, sum);
  }
}

}  // namespace

void sum_squares(DType dtype, const void* x, std::int64_t count, SquareLimbs& sum) {
  require_f32(dtype);
  const auto* in = static_cast<const float*>(x);
  const int most = count > kPiece ? threads() : 1;
  auto* of_thread =
      static_cast<ThreadSum*>(scratch(static_cast<std::size_t>(most) * sizeof(ThreadSum)));
  __builtin_memset(of_thread, 0, static_cast<std::size_t>(most) * sizeof(ThreadSum));
  parallel_parts((count + kPiece - 1) / kPiece, most, [&](std::int64_t part, int thread) {
    const std::int64_t end = (part + 1) * kPiece < count ? (part + 1) * kPiece : count;
    for (std::int64_t begin = part * kPiece; begin < end; begin += kBlock) {
      const std::int64_t length = begin + kBlock < end ? kBlock : end - begin;
      add_block(in + begin, length, of_thread[thread]);
    }
    carry(of_thread[thread].limbs);
  });
  for (int thread = 0; thread < most; ++thread) {
    for (int i = 0; i < SquareLimbs::kCount; ++i) sum.limbs[i] += of_thread[thread].limbs[i];
    sum.not_finite += of_thread[thread].not_finite;
  }
  carry(sum.limbs);
}

}  // namespace mt::cpu::MT_KERNEL_SET
