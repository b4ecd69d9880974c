#include "infer/exp_log.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace mt {
namespace {

constexpr double kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kLog2E = 0x1.71547652b82fep0;
constexpr double kRound = 0x1.8p52;  // x + kRound has round(x) in its lowest bits
constexpr double kSmallest = -700;
// The Taylor series of e^r, |r| <= ln 2 / 2, from 1 / 13! to 1.
constexpr std::array<double, 14> kTaylor{1.0 / 6227020800,
                                         1.0 / 479001600,
                                         1.0 / 39916800,
                                         1.0 / 3628800,
                                         1.0 / 362880,
                                         1.0 / 40320,
                                         1.0 / 5040,
                                         1.0 / 720,
                                         1.0 / 120,
                                         1.0 / 24,
                                         1.0 / 6,
                                         1.0 / 2,
                                         1,
                                         1};

// Two are a register of every processor; four of them hide the latency of each other.
constexpr std::size_t kPair = 2, kPairs = 4, kBlock = kPair * kPairs;
using Doubles = double __attribute__((vector_size(kPair * sizeof(double))));
using Words = std::int64_t __attribute__((vector_size(kPair * sizeof(double))));

// The operations of exp_of() on kBlock elements, in its order on each.
void exps_of_block(const double* x, double* out) {
  Doubles r[kPairs], y[kPairs];
  Words power[kPairs];
  for (std::size_t i = 0; i < kPairs; ++i) {
    const Doubles v = {x[kPair * i], x[kPair * i + 1]};
    const Doubles rounded = v * kLog2E + kRound;
    const Doubles n = rounded - kRound;
    r[i] = (v - n * kLn2High) - n * kLn2Low;
    power[i] = (std::bit_cast<Words>(rounded) << 52) + (std::int64_t{1023} << 52);
    power[i] &= v >= kSmallest;
    y[i] = Doubles{} + kTaylor[0];
  }
#pragma GCC unroll 16
  for (std::size_t k = 1; k < kTaylor.size(); ++k) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kPairs; ++i) y[i] = y[i] * r[i] + kTaylor[k];
  }
  for (std::size_t i = 0; i < kPairs; ++i) {
    // Below the smallest the series is of anything.
    const Words mask = power[i] != 0;
    const Words series = std::bit_cast<Words>(y[i]) & mask;
    const Doubles value = std::bit_cast<Doubles>(series) * std::bit_cast<Doubles>(power[i]);
    out[kPair * i] = value[0];
    out[kPair * i + 1] = value[1];
  }
}

}  // namespace

double exp_of(double x) {
  if (x < kSmallest) return 0;
  // x = n ln 2 + r
  const double rounded = x * kLog2E + kRound;
  const double n = rounded - kRound;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double y = kTaylor[0];
  for (std::size_t k = 1; k < kTaylor.size(); ++k) y = y * r + kTaylor[k];
  return y * std::bit_cast<double>(static_cast<std::uint64_t>(static_cast<int>(n) + 1023) << 52);
}

double log_of(double x) {
  // x = 2^n m with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh(s), s = (m - 1) / (m + 1).
  const auto bits = std::bit_cast<std::uint64_t>(x);
  int n = static_cast<int>(bits >> 52) - 1023;
  double m =
      std::bit_cast<double>((bits & ((std::uint64_t{1} << 52) - 1)) | (std::uint64_t{1023} << 52));
  if (m > 1.4142135623730951) {
    m /= 2;
    ++n;
  }
  const double s = (m - 1) / (m + 1), s2 = s * s;
  double y = 0;
  for (int k = 23; k >= 3; k -= 2) y = (y + 1.0 / k) * s2;
  return n * kLn2High + (n * kLn2Low + 2 * (s + s * y));
}

void exps_below(const float* scores, std::size_t n, double largest, double* out) {
  double x[kBlock] = {};
  std::size_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    for (std::size_t j = 0; j < kBlock; ++j) x[j] = static_cast<double>(scores[i + j]) - largest;
    exps_of_block(x, out + i);
  }
  for (; i < n; ++i) out[i] = exp_of(static_cast<double>(scores[i]) - largest);
}

}  // namespace mt
