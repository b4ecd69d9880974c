#include "tensor/square_sum.h"

#include <bit>
#include <cmath>

#include "base/error.h"
#include "tensor/ops.h"

namespace mt {
namespace {

constexpr int kLast = SquareLimbs::kCount - 1, kBits = 32, kPoint = 320;

void carry(SquareLimbs& sum) {
  for (int i = 0; i < kLast; ++i) {
    sum.limbs[i + 1] += sum.limbs[i] >> kBits;
    sum.limbs[i] &= 0xFFFFFFFF;
  }
}

}  // namespace

void SquareSum::add(const Tensor& x) {
  sum_squares(x, sum_);
}

void SquareSum::add(const SquareSum& other) {
  for (int i = 0; i <= kLast; ++i) sum_.limbs[i] += other.sum_.limbs[i];
  sum_.not_finite += other.sum_.not_finite;
  carry(sum_);
}

double SquareSum::value() const {
  if (sum_.not_finite != 0) return sum_.not_finite;
  int top = kLast;
  while (top >= 0 && sum_.limbs[top] == 0) --top;
  if (top < 0) return 0;
  MT_ASSERT(sum_.limbs[top] >> kBits == 0);
  const auto limb = [&](int i) {
    return i < 0 ? std::uint64_t{0} : static_cast<std::uint64_t>(sum_.limbs[i]);
  };
  // The first 64 bits; what follows them only says whether there is more, which the conversion
  // needs to round right.
  std::uint64_t bits = limb(top) << kBits | limb(top - 1);
  const int shift = std::countl_zero(bits);
  bool more = false;
  for (int i = top - 3; i >= 0; --i) more = more || limb(i) != 0;
  if (shift > 0) bits = bits << shift | limb(top - 2) >> (kBits - shift);
  more = more || (limb(top - 2) << shift & 0xFFFFFFFF) != 0;
  return std::ldexp(static_cast<double>(bits | (more ? 1U : 0U)),
                    kBits * (top - 1) - kPoint - shift);
}

SquareSum::Parts SquareSum::parts() const {
  Parts parts;
  for (int i = 0; i <= kLast; ++i) {
    parts.at(static_cast<std::size_t>(i)) = static_cast<double>(sum_.limbs[i]);
  }
  parts.back() = sum_.not_finite;
  return parts;
}

SquareSum SquareSum::from_parts(const Parts& parts) {
  SquareSum sum;
  for (int i = 0; i <= kLast; ++i) {
    sum.sum_.limbs[i] = static_cast<std::int64_t>(parts.at(static_cast<std::size_t>(i)));
  }
  sum.sum_.not_finite = parts.back();
  carry(sum.sum_);
  return sum;
}

}  // namespace mt
