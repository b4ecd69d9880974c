// 16 lanes as one register of AVX-512. The meaning of each function stands in lanes_portable.h.
// Included by vector.h.
#pragma once

// GCC 12 takes the deliberately undefined source operands inside its own header for mistakes.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <cstdint>

namespace mt::cpu::MT_KERNEL_SET {

#define MT_LANE_INLINE [[gnu::always_inline]] inline

struct Floats {
  __m512 v;
};
struct Ints {
  __m512i v;
};
struct Doubles {
  __m512d a, b;
};
struct Mask {
  __mmask16 v;
};

MT_LANE_INLINE __mmask16 first_lanes(int n) {
  return static_cast<__mmask16>(n >= 16 ? 0xFFFF : n <= 0 ? 0 : (1 << n) - 1);
}

MT_LANE_INLINE Floats load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
MT_LANE_INLINE Floats load_part(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(first_lanes(n), p)};
}
MT_LANE_INLINE void store(float* p, Floats x) {
  _mm512_storeu_ps(p, x.v);
}
MT_LANE_INLINE void store_part(float* p, Floats x, int n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), x.v);
}
MT_LANE_INLINE Floats all(float x) {
  return {_mm512_set1_ps(x)};
}
MT_LANE_INLINE Floats operator+(Floats x, Floats y) {
  return {_mm512_add_ps(x.v, y.v)};
}
MT_LANE_INLINE Floats operator-(Floats x, Floats y) {
  return {_mm512_sub_ps(x.v, y.v)};
}
MT_LANE_INLINE Floats operator*(Floats x, Floats y) {
  return {_mm512_mul_ps(x.v, y.v)};
}
MT_LANE_INLINE Floats operator/(Floats x, Floats y) {
  return {_mm512_div_ps(x.v, y.v)};
}
MT_LANE_INLINE Floats fma(Floats x, Floats y, Floats z) {
  return {_mm512_fmadd_ps(x.v, y.v, z.v)};
}
MT_LANE_INLINE Floats max(Floats x, Floats y) {
  return {_mm512_max_ps(x.v, y.v)};
}
MT_LANE_INLINE Floats min(Floats x, Floats y) {
  return {_mm512_min_ps(x.v, y.v)};
}
MT_LANE_INLINE Floats sqrt(Floats x) {
  return {_mm512_sqrt_ps(x.v)};
}

MT_LANE_INLINE Mask less(Floats x, Floats y) {
  return {_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ)};
}
MT_LANE_INLINE Mask not_less_equal(Floats x, Floats y) {
  return {_mm512_cmp_ps_mask(x.v, y.v, _CMP_NLE_UQ)};
}
MT_LANE_INLINE Mask operator&(Mask x, Mask y) {
  return {static_cast<__mmask16>(x.v & y.v)};
}
MT_LANE_INLINE Floats select(Mask m, Floats yes, Floats no) {
  return {_mm512_mask_blend_ps(m.v, no.v, yes.v)};
}
MT_LANE_INLINE bool any(Mask m) {
  return m.v != 0;
}

MT_LANE_INLINE Ints all_int(std::uint32_t x) {
  return {_mm512_set1_epi32(static_cast<int>(x))};
}
MT_LANE_INLINE Ints lane_numbers() {
  return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}
MT_LANE_INLINE Ints load_ints(const std::uint32_t* p) {
  return {_mm512_loadu_si512(p)};
}
MT_LANE_INLINE void store_ints(std::uint32_t* p, Ints x) {
  _mm512_storeu_si512(p, x.v);
}
MT_LANE_INLINE Ints operator+(Ints x, Ints y) {
  return {_mm512_add_epi32(x.v, y.v)};
}
MT_LANE_INLINE Ints operator-(Ints x, Ints y) {
  return {_mm512_sub_epi32(x.v, y.v)};
}
MT_LANE_INLINE Ints operator&(Ints x, Ints y) {
  return {_mm512_and_si512(x.v, y.v)};
}
MT_LANE_INLINE Ints operator|(Ints x, Ints y) {
  return {_mm512_or_si512(x.v, y.v)};
}
MT_LANE_INLINE Ints operator^(Ints x, Ints y) {
  return {_mm512_xor_si512(x.v, y.v)};
}
template <int N>
MT_LANE_INLINE Ints shift_left(Ints x) {
  return {_mm512_slli_epi32(x.v, N)};
}
template <int N>
MT_LANE_INLINE Ints shift_right(Ints x) {
  return {_mm512_srli_epi32(x.v, N)};
}
template <int N>
MT_LANE_INLINE Ints shift_right_signed(Ints x) {
  return {_mm512_srai_epi32(x.v, N)};
}
MT_LANE_INLINE void multiply_wide(Ints x, Ints y, Ints* high, Ints* low) {
  const __m512i even = _mm512_mul_epu32(x.v, y.v);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x.v, 32), _mm512_srli_epi64(y.v, 32));
  high->v = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
  low->v = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
}
MT_LANE_INLINE Mask less_unsigned(Ints x, Ints y) {
  return {_mm512_cmplt_epu32_mask(x.v, y.v)};
}
MT_LANE_INLINE Mask equal(Ints x, Ints y) {
  return {_mm512_cmpeq_epi32_mask(x.v, y.v)};
}
MT_LANE_INLINE Ints bits_of(Floats x) {
  return {_mm512_castps_si512(x.v)};
}
MT_LANE_INLINE Floats floats_of_bits(Ints x) {
  return {_mm512_castsi512_ps(x.v)};
}
MT_LANE_INLINE Floats from_signed(Ints x) {
  return {_mm512_cvtepi32_ps(x.v)};
}
MT_LANE_INLINE void interleave4(Ints a, Ints b, Ints c, Ints d, std::uint32_t* to) {
  const __m512i ab0 = _mm512_unpacklo_epi32(a.v, b.v), ab1 = _mm512_unpackhi_epi32(a.v, b.v);
  const __m512i cd0 = _mm512_unpacklo_epi32(c.v, d.v), cd1 = _mm512_unpackhi_epi32(c.v, d.v);
  const __m512i r0 = _mm512_unpacklo_epi64(ab0, cd0), r1 = _mm512_unpackhi_epi64(ab0, cd0);
  const __m512i r2 = _mm512_unpacklo_epi64(ab1, cd1), r3 = _mm512_unpackhi_epi64(ab1, cd1);
  const __m512i low01 = _mm512_shuffle_i32x4(r0, r1, 0x44);
  const __m512i low23 = _mm512_shuffle_i32x4(r2, r3, 0x44);
  const __m512i high01 = _mm512_shuffle_i32x4(r0, r1, 0xEE);
  const __m512i high23 = _mm512_shuffle_i32x4(r2, r3, 0xEE);
  _mm512_storeu_si512(to, _mm512_shuffle_i32x4(low01, low23, 0x88));
  _mm512_storeu_si512(to + 16, _mm512_shuffle_i32x4(low01, low23, 0xDD));
  _mm512_storeu_si512(to + 32, _mm512_shuffle_i32x4(high01, high23, 0x88));
  _mm512_storeu_si512(to + 48, _mm512_shuffle_i32x4(high01, high23, 0xDD));
}

MT_LANE_INLINE Doubles zero_doubles() {
  return {_mm512_setzero_pd(), _mm512_setzero_pd()};
}
MT_LANE_INLINE Doubles widen(Floats x) {
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(x.v)),
          _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1))};
}
MT_LANE_INLINE Doubles add_widened(Doubles s, Floats x) {
  const Doubles w = widen(x);
  return {_mm512_add_pd(s.a, w.a), _mm512_add_pd(s.b, w.b)};
}
MT_LANE_INLINE Doubles all_doubles(double x) {
  return {_mm512_set1_pd(x), _mm512_set1_pd(x)};
}
MT_LANE_INLINE Doubles operator+(Doubles x, Doubles y) {
  return {_mm512_add_pd(x.a, y.a), _mm512_add_pd(x.b, y.b)};
}
MT_LANE_INLINE Doubles operator-(Doubles x, Doubles y) {
  return {_mm512_sub_pd(x.a, y.a), _mm512_sub_pd(x.b, y.b)};
}
MT_LANE_INLINE Doubles squares(Floats x) {
  const Doubles w = widen(x);
  return {_mm512_mul_pd(w.a, w.a), _mm512_mul_pd(w.b, w.b)};
}
MT_LANE_INLINE float sum(Floats x) {
  const __m256 t8 = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 t4 = _mm_add_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
  const __m128 t2 = _mm_add_ps(t4, _mm_movehl_ps(t4, t4));
  return _mm_cvtss_f32(_mm_add_ss(t2, _mm_shuffle_ps(t2, t2, 1)));
}
MT_LANE_INLINE double sum(Doubles x) {
  const __m512d t8 = _mm512_add_pd(x.a, x.b);
  const __m256d t4 = _mm256_add_pd(_mm512_castpd512_pd256(t8), _mm512_extractf64x4_pd(t8, 1));
  const __m128d t2 = _mm_add_pd(_mm256_castpd256_pd128(t4), _mm256_extractf128_pd(t4, 1));
  return _mm_cvtsd_f64(_mm_add_sd(t2, _mm_unpackhi_pd(t2, t2)));
}
MT_LANE_INLINE float max_lane(Floats x) {
  const __m256 t8 = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 t4 = _mm_max_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
  const __m128 t2 = _mm_max_ps(t4, _mm_movehl_ps(t4, t4));
  return _mm_cvtss_f32(_mm_max_ss(t2, _mm_shuffle_ps(t2, t2, 1)));
}
// Rows of 4 lanes inside each quarter, then the quarters.
MT_LANE_INLINE void transpose16(Floats (&m)[16]) {
  __m512 q[16];
  for (int i = 0; i < 16; i += 4) {
    const __m512 a0 = _mm512_unpacklo_ps(m[i].v, m[i + 1].v);
    const __m512 a1 = _mm512_unpackhi_ps(m[i].v, m[i + 1].v);
    const __m512 a2 = _mm512_unpacklo_ps(m[i + 2].v, m[i + 3].v);
    const __m512 a3 = _mm512_unpackhi_ps(m[i + 2].v, m[i + 3].v);
    q[i] = _mm512_shuffle_ps(a0, a2, 0x44);
    q[i + 1] = _mm512_shuffle_ps(a0, a2, 0xEE);
    q[i + 2] = _mm512_shuffle_ps(a1, a3, 0x44);
    q[i + 3] = _mm512_shuffle_ps(a1, a3, 0xEE);
  }
  // q[4 g + c], quarter k: rows 4 g .. 4 g + 3 of column 4 k + c.
  for (int c = 0; c < 4; ++c) {
    const __m512 low01 = _mm512_shuffle_f32x4(q[c], q[4 + c], 0x44);
    const __m512 low23 = _mm512_shuffle_f32x4(q[8 + c], q[12 + c], 0x44);
    const __m512 high01 = _mm512_shuffle_f32x4(q[c], q[4 + c], 0xEE);
    const __m512 high23 = _mm512_shuffle_f32x4(q[8 + c], q[12 + c], 0xEE);
    m[c].v = _mm512_shuffle_f32x4(low01, low23, 0x88);
    m[4 + c].v = _mm512_shuffle_f32x4(low01, low23, 0xDD);
    m[8 + c].v = _mm512_shuffle_f32x4(high01, high23, 0x88);
    m[12 + c].v = _mm512_shuffle_f32x4(high01, high23, 0xDD);
  }
}

}  // namespace mt::cpu::MT_KERNEL_SET
#pragma GCC diagnostic pop
