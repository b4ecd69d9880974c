// 16 float lanes and the functions of one variable, the same bits in every kernel set: each is one
// fixed sequence of IEEE operations and written-out fused multiply-adds. Tail loads give zeros in
// the lanes that are absent.
//
// Polynomials are interpolants at Chebyshev nodes, fitted here. Errors in units in the last place
// (tested over the whole range): exp 2, log 2, sine and cosine of a turn 2 (absolute, of 1.0). NaN
// propagates. Results below the smallest normal number become 0 in exp, so that no denormal number
// slows what follows; nothing else flushes.
#pragma once

// Minimal headers only: see kernel_set.h.
#include <cstdint>

#if defined(__AVX512F__)
#include "kernels/cpu/lanes_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "kernels/cpu/lanes_avx2.h"
#else
#include "kernels/cpu/lanes_portable.h"
#endif

namespace mt::cpu::MT_KERNEL_SET {

// e^x. n = round(x log2 e) sits in the low bits of t, from where a shift brings it into the
// exponent of the polynomial's value. Below -87.33654: 0. Above 88.72283: infinity.
MT_LANE_INLINE Floats exp(Floats x) {
  const Floats t = fma(x, all(1.44269504F), all(12582912.0F));
  const Floats n = t - all(12582912.0F);
  Floats r = fma(n, all(-0x1.62e43p-1F), x);
  r = fma(n, all(1.9046542e-9F), r);
  Floats p = all(0.00139262038F);
  p = fma(p, r, all(0.00836319476F));
  p = fma(p, r, all(0.0416665561F));
  p = fma(p, r, all(0.166665763F));
  p = fma(p, r, all(0.5F));
  p = fma(p, r * r, r) + all(1.0F);
  Floats y = floats_of_bits(bits_of(p) + shift_left<23>(bits_of(t)));
  y = select(less(x, all(-87.33654F)), all(0.0F), y);
  return select(not_less_equal(x, all(88.72283F)), x * all(__builtin_inff()), y);
}

// Natural logarithm: -infinity at 0, NaN below; denormal numbers have theirs.
MT_LANE_INLINE Floats log(Floats x) {
  const Mask tiny = less(x, all(0x1p-126F));
  const Ints bits = bits_of(select(tiny, x * all(0x1p23F), x)) - all_int(0x3F3504F3U);
  const Floats k = from_signed(shift_right_signed<23>(bits)) - select(tiny, all(23.0F), all(0.0F));
  const Floats f = floats_of_bits((bits & all_int(0x007FFFFFU)) + all_int(0x3F3504F3U)) - all(1.0F);
  Floats p = all(0.0697168112F);
  p = fma(p, f, all(-0.114798367F));
  p = fma(p, f, all(0.116854429F));
  p = fma(p, f, all(-0.12425676F));
  p = fma(p, f, all(0.142490536F));
  p = fma(p, f, all(-0.166678026F));
  p = fma(p, f, all(0.200007156F));
  p = fma(p, f, all(-0.24999997F));
  p = fma(p, f, all(0.333333313F));
  const Floats f2 = f * f;
  Floats y = fma(p * f, f2, k * all(-1.9046542e-9F));
  y = fma(f2, all(-0.5F), y);
  y = fma(k, all(0x1.62e43p-1F), f + y);
  const float infinity = __builtin_inff();
  y = select(less(x, all(0x1p-149F)), all(-infinity), y);
  y = select(less(x, all(0.0F)), all(__builtin_nanf("")), y);
  // Infinity and NaN stay what they are.
  return select(not_less_equal(x, all(0x1.fffffep127F)), x, y);
}

// Sine and cosine of 2 pi w / 2^32: the reduction to an eighth of a turn is exact.
MT_LANE_INLINE void sincos_of_turn(Ints w, Floats* sine, Floats* cosine) {
  const Ints quadrant = shift_right<30>(w + all_int(1U << 29));
  const Floats x = from_signed(w - shift_left<30>(quadrant)) * all(1.46291812e-9F);
  const Floats z = x * x;
  Floats s = all(-0.000195878296F);
  s = fma(s, z, all(0.00833274797F));
  s = fma(s, z, all(-0.166666642F));
  s = fma(s * z, x, x);
  Floats c = all(2.45478805e-05F);
  c = fma(c, z, all(-0.00138883025F));
  c = fma(c, z, all(0.0416666642F));
  c = fma(c, z * z, fma(z, all(-0.5F), all(1.0F)));
  const Mask swap = equal(quadrant & all_int(1), all_int(1));
  const Ints sine_sign = shift_left<30>(quadrant & all_int(2));
  const Ints cosine_sign = shift_left<30>((quadrant + all_int(1)) & all_int(2));
  *sine = floats_of_bits(bits_of(select(swap, c, s)) ^ sine_sign);
  *cosine = floats_of_bits(bits_of(select(swap, s, c)) ^ cosine_sign);
}

// GELU in its tanh form, 0.5 x (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3) (Hendrycks and
// Gimpel, arXiv:1606.08415, section 2), written with 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2 u)), which
// also keeps the small values of negative x exact. -2 u = x (a + b x^2).
constexpr float kGeluA = -1.59576917F;
constexpr float kGeluB = -0.0713548139F;

MT_LANE_INLINE Floats gelu(Floats x) {
  const Floats e = exp(x * fma(all(kGeluB), x * x, all(kGeluA)));
  return x / (all(1.0F) + e);
}

// dGELU/dx = s + x s (1 - s) (2 u)', s = 1 / (1 + e), 1 - s = e s, e = exp(-2 u). Beyond 10 it is 0
// or 1 to 35 digits, and neither x^2 nor e may overflow into infinity times 0.
MT_LANE_INLINE Floats gelu_derivative(Floats x) {
  const Floats y = min(all(10.0F), max(all(-10.0F), x));
  const Floats z = y * y;
  const Floats e = exp(y * fma(all(kGeluB), z, all(kGeluA)));
  const Floats s = all(1.0F) / (all(1.0F) + e);
  const Floats slope = fma(all(-3.0F * kGeluB), z, all(-kGeluA));
  return fma(y * slope, (e * s) * s, s);
}

// A loop over 16 elements at a time whose last step may be partial: f(index, Whole) or
// f(index, Part). Loads of a part give zeros in the absent lanes.
struct Whole {};
struct Part {
  int n;
};
MT_LANE_INLINE Floats load(const float* p, Whole) {
  return load(p);
}
MT_LANE_INLINE Floats load(const float* p, Part part) {
  return load_part(p, part.n);
}
MT_LANE_INLINE void store(float* p, Floats x, Whole) {
  store(p, x);
}
MT_LANE_INLINE void store(float* p, Floats x, Part part) {
  store_part(p, x, part.n);
}
// x where the lane is present, `absent` elsewhere.
MT_LANE_INLINE Floats fill_absent(Floats x, float, Whole) {
  return x;
}
MT_LANE_INLINE Floats fill_absent(Floats x, float absent, Part part) {
  return select(less(from_signed(lane_numbers()), all(static_cast<float>(part.n))), x, all(absent));
}
template <typename F>
MT_LANE_INLINE void sweep(std::int64_t begin, std::int64_t end, F f) {
  std::int64_t i = begin;
  for (; i + 16 <= end; i += 16) {
    f(i, Whole{});
  }
  if (i < end) {
    f(i, Part{static_cast<int>(end - i)});
  }
}

// How many elements of a sweep are worth a thread's start, and the pieces that threads share out.
constexpr std::int64_t kChunk = 16384;

}  // namespace mt::cpu::MT_KERNEL_SET
