// 16 lanes as two registers of AVX2. The meaning of each function stands in lanes_portable.h.
// Included by vector.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace mt::cpu::MT_KERNEL_SET {

#define MT_LANE_INLINE [[gnu::always_inline]] inline

struct Floats {
  __m256 a, b;
};
struct Ints {
  __m256i a, b;
};
struct Doubles {
  __m256d a, b, c, d;
};
struct Mask {
  __m256 a, b;
};

// The first n of 8 lanes; n may lie outside 0..8.
MT_LANE_INLINE __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

MT_LANE_INLINE Floats load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
MT_LANE_INLINE Floats load_part(const float* p, int n) {
  return {_mm256_maskload_ps(p, first_lanes(n)), _mm256_maskload_ps(p + 8, first_lanes(n - 8))};
}
MT_LANE_INLINE void store(float* p, Floats x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
MT_LANE_INLINE void store_part(float* p, Floats x, int n) {
  _mm256_maskstore_ps(p, first_lanes(n), x.a);
  _mm256_maskstore_ps(p + 8, first_lanes(n - 8), x.b);
}
MT_LANE_INLINE Floats all(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
MT_LANE_INLINE Floats operator+(Floats x, Floats y) {
  return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
MT_LANE_INLINE Floats operator-(Floats x, Floats y) {
  return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
MT_LANE_INLINE Floats operator*(Floats x, Floats y) {
  return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
MT_LANE_INLINE Floats operator/(Floats x, Floats y) {
  return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
MT_LANE_INLINE Floats fma(Floats x, Floats y, Floats z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
MT_LANE_INLINE Floats max(Floats x, Floats y) {
  return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
MT_LANE_INLINE Floats min(Floats x, Floats y) {
  return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
MT_LANE_INLINE Floats sqrt(Floats x) {
  return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)};
}

MT_LANE_INLINE Mask less(Floats x, Floats y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}
MT_LANE_INLINE Mask not_less_equal(Floats x, Floats y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_NLE_UQ), _mm256_cmp_ps(x.b, y.b, _CMP_NLE_UQ)};
}
MT_LANE_INLINE Mask operator&(Mask x, Mask y) {
  return {_mm256_and_ps(x.a, y.a), _mm256_and_ps(x.b, y.b)};
}
MT_LANE_INLINE Floats select(Mask m, Floats yes, Floats no) {
  return {_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
}
MT_LANE_INLINE bool any(Mask m) {
  return _mm256_movemask_ps(_mm256_or_ps(m.a, m.b)) != 0;
}

MT_LANE_INLINE Ints all_int(std::uint32_t x) {
  const __m256i v = _mm256_set1_epi32(static_cast<int>(x));
  return {v, v};
}
MT_LANE_INLINE Ints lane_numbers() {
  return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
          _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}
MT_LANE_INLINE Ints load_ints(const std::uint32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
MT_LANE_INLINE void store_ints(std::uint32_t* p, Ints x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
}
MT_LANE_INLINE Ints operator+(Ints x, Ints y) {
  return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
MT_LANE_INLINE Ints operator-(Ints x, Ints y) {
  return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
MT_LANE_INLINE Ints operator&(Ints x, Ints y) {
  return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
MT_LANE_INLINE Ints operator|(Ints x, Ints y) {
  return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
}
MT_LANE_INLINE Ints operator^(Ints x, Ints y) {
  return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)};
}
template <int N>
MT_LANE_INLINE Ints shift_left(Ints x) {
  return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)};
}
template <int N>
MT_LANE_INLINE Ints shift_right(Ints x) {
  return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)};
}
template <int N>
MT_LANE_INLINE Ints shift_right_signed(Ints x) {
  return {_mm256_srai_epi32(x.a, N), _mm256_srai_epi32(x.b, N)};
}
MT_LANE_INLINE void multiply_wide8(__m256i x, __m256i y, __m256i* high, __m256i* low) {
  const __m256i even = _mm256_mul_epu32(x, y);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(y, 32));
  *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}
MT_LANE_INLINE void multiply_wide(Ints x, Ints y, Ints* high, Ints* low) {
  multiply_wide8(x.a, y.a, &high->a, &low->a);
  multiply_wide8(x.b, y.b, &high->b, &low->b);
}
MT_LANE_INLINE Mask less_unsigned(Ints x, Ints y) {
  const __m256i flip = _mm256_set1_epi32(INT32_MIN);
  return {_mm256_castsi256_ps(
              _mm256_cmpgt_epi32(_mm256_xor_si256(y.a, flip), _mm256_xor_si256(x.a, flip))),
          _mm256_castsi256_ps(
              _mm256_cmpgt_epi32(_mm256_xor_si256(y.b, flip), _mm256_xor_si256(x.b, flip)))};
}
MT_LANE_INLINE Mask equal(Ints x, Ints y) {
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(x.a, y.a)),
          _mm256_castsi256_ps(_mm256_cmpeq_epi32(x.b, y.b))};
}
MT_LANE_INLINE Ints bits_of(Floats x) {
  return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)};
}
MT_LANE_INLINE Floats floats_of_bits(Ints x) {
  return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
}
MT_LANE_INLINE Floats from_signed(Ints x) {
  return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
MT_LANE_INLINE void interleave4_of_8(__m256i a, __m256i b, __m256i c, __m256i d,
                                     std::uint32_t* to) {
  const __m256i ab0 = _mm256_unpacklo_epi32(a, b), ab1 = _mm256_unpackhi_epi32(a, b);
  const __m256i cd0 = _mm256_unpacklo_epi32(c, d), cd1 = _mm256_unpackhi_epi32(c, d);
  const __m256i r04 = _mm256_unpacklo_epi64(ab0, cd0), r15 = _mm256_unpackhi_epi64(ab0, cd0);
  const __m256i r26 = _mm256_unpacklo_epi64(ab1, cd1), r37 = _mm256_unpackhi_epi64(ab1, cd1);
  auto* out = reinterpret_cast<__m256i*>(to);
  _mm256_storeu_si256(out, _mm256_permute2x128_si256(r04, r15, 0x20));
  _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(r26, r37, 0x20));
  _mm256_storeu_si256(out + 2, _mm256_permute2x128_si256(r04, r15, 0x31));
  _mm256_storeu_si256(out + 3, _mm256_permute2x128_si256(r26, r37, 0x31));
}
MT_LANE_INLINE void interleave4(Ints a, Ints b, Ints c, Ints d, std::uint32_t* to) {
  interleave4_of_8(a.a, b.a, c.a, d.a, to);
  interleave4_of_8(a.b, b.b, c.b, d.b, to + 32);
}

MT_LANE_INLINE Doubles zero_doubles() {
  const __m256d z = _mm256_setzero_pd();
  return {z, z, z, z};
}
MT_LANE_INLINE Doubles widen(Floats x) {
  return {
      _mm256_cvtps_pd(_mm256_castps256_ps128(x.a)), _mm256_cvtps_pd(_mm256_extractf128_ps(x.a, 1)),
      _mm256_cvtps_pd(_mm256_castps256_ps128(x.b)), _mm256_cvtps_pd(_mm256_extractf128_ps(x.b, 1))};
}
MT_LANE_INLINE Doubles add_widened(Doubles s, Floats x) {
  const Doubles w = widen(x);
  return {_mm256_add_pd(s.a, w.a), _mm256_add_pd(s.b, w.b), _mm256_add_pd(s.c, w.c),
          _mm256_add_pd(s.d, w.d)};
}
MT_LANE_INLINE Doubles all_doubles(double x) {
  const __m256d v = _mm256_set1_pd(x);
  return {v, v, v, v};
}
MT_LANE_INLINE Doubles operator+(Doubles x, Doubles y) {
  return {_mm256_add_pd(x.a, y.a), _mm256_add_pd(x.b, y.b), _mm256_add_pd(x.c, y.c),
          _mm256_add_pd(x.d, y.d)};
}
MT_LANE_INLINE Doubles operator-(Doubles x, Doubles y) {
  return {_mm256_sub_pd(x.a, y.a), _mm256_sub_pd(x.b, y.b), _mm256_sub_pd(x.c, y.c),
          _mm256_sub_pd(x.d, y.d)};
}
MT_LANE_INLINE Doubles squares(Floats x) {
  const Doubles w = widen(x);
  return {_mm256_mul_pd(w.a, w.a), _mm256_mul_pd(w.b, w.b), _mm256_mul_pd(w.c, w.c),
          _mm256_mul_pd(w.d, w.d)};
}
MT_LANE_INLINE float sum(Floats x) {
  const __m256 t8 = _mm256_add_ps(x.a, x.b);
  const __m128 t4 = _mm_add_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
  const __m128 t2 = _mm_add_ps(t4, _mm_movehl_ps(t4, t4));
  return _mm_cvtss_f32(_mm_add_ss(t2, _mm_shuffle_ps(t2, t2, 1)));
}
MT_LANE_INLINE double sum(Doubles x) {
  const __m256d t4 = _mm256_add_pd(_mm256_add_pd(x.a, x.c), _mm256_add_pd(x.b, x.d));
  const __m128d t2 = _mm_add_pd(_mm256_castpd256_pd128(t4), _mm256_extractf128_pd(t4, 1));
  return _mm_cvtsd_f64(_mm_add_sd(t2, _mm_unpackhi_pd(t2, t2)));
}
MT_LANE_INLINE float max_lane(Floats x) {
  const __m256 t8 = _mm256_max_ps(x.a, x.b);
  const __m128 t4 = _mm_max_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
  const __m128 t2 = _mm_max_ps(t4, _mm_movehl_ps(t4, t4));
  return _mm_cvtss_f32(_mm_max_ss(t2, _mm_shuffle_ps(t2, t2, 1)));
}
MT_LANE_INLINE void transpose8(__m256& r0, __m256& r1, __m256& r2, __m256& r3, __m256& r4,
                               __m256& r5, __m256& r6, __m256& r7) {
  const __m256 a0 = _mm256_unpacklo_ps(r0, r1), a1 = _mm256_unpackhi_ps(r0, r1);
  const __m256 a2 = _mm256_unpacklo_ps(r2, r3), a3 = _mm256_unpackhi_ps(r2, r3);
  const __m256 a4 = _mm256_unpacklo_ps(r4, r5), a5 = _mm256_unpackhi_ps(r4, r5);
  const __m256 a6 = _mm256_unpacklo_ps(r6, r7), a7 = _mm256_unpackhi_ps(r6, r7);
  const __m256 b0 = _mm256_shuffle_ps(a0, a2, 0x44), b1 = _mm256_shuffle_ps(a0, a2, 0xEE);
  const __m256 b2 = _mm256_shuffle_ps(a1, a3, 0x44), b3 = _mm256_shuffle_ps(a1, a3, 0xEE);
  const __m256 b4 = _mm256_shuffle_ps(a4, a6, 0x44), b5 = _mm256_shuffle_ps(a4, a6, 0xEE);
  const __m256 b6 = _mm256_shuffle_ps(a5, a7, 0x44), b7 = _mm256_shuffle_ps(a5, a7, 0xEE);
  r0 = _mm256_permute2f128_ps(b0, b4, 0x20);
  r1 = _mm256_permute2f128_ps(b1, b5, 0x20);
  r2 = _mm256_permute2f128_ps(b2, b6, 0x20);
  r3 = _mm256_permute2f128_ps(b3, b7, 0x20);
  r4 = _mm256_permute2f128_ps(b0, b4, 0x31);
  r5 = _mm256_permute2f128_ps(b1, b5, 0x31);
  r6 = _mm256_permute2f128_ps(b2, b6, 0x31);
  r7 = _mm256_permute2f128_ps(b3, b7, 0x31);
}
MT_LANE_INLINE void transpose16(Floats (&m)[16]) {
  transpose8(m[0].a, m[1].a, m[2].a, m[3].a, m[4].a, m[5].a, m[6].a, m[7].a);
  transpose8(m[0].b, m[1].b, m[2].b, m[3].b, m[4].b, m[5].b, m[6].b, m[7].b);
  transpose8(m[8].a, m[9].a, m[10].a, m[11].a, m[12].a, m[13].a, m[14].a, m[15].a);
  transpose8(m[8].b, m[9].b, m[10].b, m[11].b, m[12].b, m[13].b, m[14].b, m[15].b);
  for (int i = 0; i < 8; ++i) {
    const __m256 t = m[i].b;
    m[i].b = m[i + 8].a;
    m[i + 8].a = t;
  }
}

}  // namespace mt::cpu::MT_KERNEL_SET
