// 16 lanes without vector instructions: std::fma gives the same bits as the hardware's. Included by
// vector.h.
#pragma once

#include <cstdint>

namespace mt::cpu::MT_KERNEL_SET {

#define MT_LANES for (int i = 0; i < 16; ++i)
#define MT_LANE_INLINE [[gnu::always_inline]] inline

struct Floats {
  float v[16];
};
struct Ints {
  std::uint32_t v[16];
};
struct Doubles {
  double v[16];
};
struct Mask {
  bool v[16];
};

MT_LANE_INLINE Floats load(const float* p) {
  Floats r;
  MT_LANES r.v[i] = p[i];
  return r;
}
MT_LANE_INLINE Floats load_part(const float* p, int n) {
  Floats r;
  MT_LANES r.v[i] = i < n ? p[i] : 0.0F;
  return r;
}
MT_LANE_INLINE void store(float* p, const Floats& a) {
  MT_LANES p[i] = a.v[i];
}
MT_LANE_INLINE void store_part(float* p, const Floats& a, int n) {
  MT_LANES if (i < n) p[i] = a.v[i];
}
MT_LANE_INLINE Floats all(float x) {
  Floats r;
  MT_LANES r.v[i] = x;
  return r;
}
MT_LANE_INLINE Floats operator+(const Floats& a, const Floats& b) {
  Floats r;
  MT_LANES r.v[i] = a.v[i] + b.v[i];
  return r;
}
MT_LANE_INLINE Floats operator-(const Floats& a, const Floats& b) {
  Floats r;
  MT_LANES r.v[i] = a.v[i] - b.v[i];
  return r;
}
MT_LANE_INLINE Floats operator*(const Floats& a, const Floats& b) {
  Floats r;
  MT_LANES r.v[i] = a.v[i] * b.v[i];
  return r;
}
MT_LANE_INLINE Floats operator/(const Floats& a, const Floats& b) {
  Floats r;
  MT_LANES r.v[i] = a.v[i] / b.v[i];
  return r;
}
MT_LANE_INLINE Floats fma(const Floats& a, const Floats& b, const Floats& c) {
  Floats r;
  MT_LANES r.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
  return r;
}
MT_LANE_INLINE Floats max(const Floats& a, const Floats& b) {
  Floats r;
  MT_LANES r.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return r;
}
MT_LANE_INLINE Floats min(const Floats& a, const Floats& b) {
  Floats r;
  MT_LANES r.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return r;
}
MT_LANE_INLINE Floats sqrt(const Floats& a) {
  Floats r;
  MT_LANES r.v[i] = __builtin_sqrtf(a.v[i]);
  return r;
}

MT_LANE_INLINE Mask less(const Floats& a, const Floats& b) {
  Mask r;
  MT_LANES r.v[i] = a.v[i] < b.v[i];
  return r;
}
MT_LANE_INLINE Mask not_less_equal(const Floats& a, const Floats& b) {
  Mask r;
  MT_LANES r.v[i] = !(a.v[i] <= b.v[i]);
  return r;
}
MT_LANE_INLINE Mask operator&(const Mask& a, const Mask& b) {
  Mask r;
  MT_LANES r.v[i] = a.v[i] && b.v[i];
  return r;
}
MT_LANE_INLINE Floats select(const Mask& m, const Floats& yes, const Floats& no) {
  Floats r;
  MT_LANES r.v[i] = m.v[i] ? yes.v[i] : no.v[i];
  return r;
}
MT_LANE_INLINE bool any(const Mask& m) {
  bool r = false;
  MT_LANES r = r || m.v[i];
  return r;
}

MT_LANE_INLINE Ints all_int(std::uint32_t x) {
  Ints r;
  MT_LANES r.v[i] = x;
  return r;
}
MT_LANE_INLINE Ints lane_numbers() {
  Ints r;
  MT_LANES r.v[i] = static_cast<std::uint32_t>(i);
  return r;
}
MT_LANE_INLINE Ints load_ints(const std::uint32_t* p) {
  Ints r;
  MT_LANES r.v[i] = p[i];
  return r;
}
MT_LANE_INLINE void store_ints(std::uint32_t* p, const Ints& a) {
  MT_LANES p[i] = a.v[i];
}
MT_LANE_INLINE Ints operator+(const Ints& a, const Ints& b) {
  Ints r;
  MT_LANES r.v[i] = a.v[i] + b.v[i];
  return r;
}
MT_LANE_INLINE Ints operator-(const Ints& a, const Ints& b) {
  Ints r;
  MT_LANES r.v[i] = a.v[i] - b.v[i];
  return r;
}
MT_LANE_INLINE Ints operator&(const Ints& a, const Ints& b) {
  Ints r;
  MT_LANES r.v[i] = a.v[i] & b.v[i];
  return r;
}
MT_LANE_INLINE Ints operator|(const Ints& a, const Ints& b) {
  Ints r;
  MT_LANES r.v[i] = a.v[i] | b.v[i];
  return r;
}
MT_LANE_INLINE Ints operator^(const Ints& a, const Ints& b) {
  Ints r;
  MT_LANES r.v[i] = a.v[i] ^ b.v[i];
  return r;
}
template <int N>
MT_LANE_INLINE Ints shift_left(const Ints& a) {
  Ints r;
  MT_LANES r.v[i] = a.v[i] << N;
  return r;
}
template <int N>
MT_LANE_INLINE Ints shift_right(const Ints& a) {
  Ints r;
  MT_LANES r.v[i] = a.v[i] >> N;
  return r;
}
template <int N>
MT_LANE_INLINE Ints shift_right_signed(const Ints& a) {
  Ints r;
  MT_LANES r.v[i] = static_cast<std::uint32_t>(static_cast<std::int32_t>(a.v[i]) >> N);
  return r;
}
// a * b as 64 bits a lane, in two halves.
MT_LANE_INLINE void multiply_wide(const Ints& a, const Ints& b, Ints* high, Ints* low) {
  MT_LANES {
    const std::uint64_t p = std::uint64_t{a.v[i]} * b.v[i];
    high->v[i] = static_cast<std::uint32_t>(p >> 32);
    low->v[i] = static_cast<std::uint32_t>(p);
  }
}
MT_LANE_INLINE Mask less_unsigned(const Ints& a, const Ints& b) {
  Mask r;
  MT_LANES r.v[i] = a.v[i] < b.v[i];
  return r;
}
MT_LANE_INLINE Mask equal(const Ints& a, const Ints& b) {
  Mask r;
  MT_LANES r.v[i] = a.v[i] == b.v[i];
  return r;
}
MT_LANE_INLINE Ints bits_of(const Floats& a) {
  Ints r;
  __builtin_memcpy(&r, &a, sizeof r);
  return r;
}
MT_LANE_INLINE Floats floats_of_bits(const Ints& a) {
  Floats r;
  __builtin_memcpy(&r, &a, sizeof r);
  return r;
}
MT_LANE_INLINE Floats from_signed(const Ints& a) {
  Floats r;
  MT_LANES r.v[i] = static_cast<float>(static_cast<std::int32_t>(a.v[i]));
  return r;
}
// Word w of lane l goes to to[4 l + w].
MT_LANE_INLINE void interleave4(const Ints& a, const Ints& b, const Ints& c, const Ints& d,
                                std::uint32_t* to) {
  MT_LANES {
    to[4 * i] = a.v[i];
    to[4 * i + 1] = b.v[i];
    to[4 * i + 2] = c.v[i];
    to[4 * i + 3] = d.v[i];
  }
}

MT_LANE_INLINE Doubles zero_doubles() {
  Doubles r;
  MT_LANES r.v[i] = 0.0;
  return r;
}
MT_LANE_INLINE Doubles add_widened(const Doubles& a, const Floats& x) {
  Doubles r;
  MT_LANES r.v[i] = a.v[i] + static_cast<double>(x.v[i]);
  return r;
}
MT_LANE_INLINE Doubles all_doubles(double x) {
  Doubles r;
  MT_LANES r.v[i] = x;
  return r;
}
MT_LANE_INLINE Doubles operator+(const Doubles& a, const Doubles& b) {
  Doubles r;
  MT_LANES r.v[i] = a.v[i] + b.v[i];
  return r;
}
MT_LANE_INLINE Doubles operator-(const Doubles& a, const Doubles& b) {
  Doubles r;
  MT_LANES r.v[i] = a.v[i] - b.v[i];
  return r;
}
// x * x, which is exact.
MT_LANE_INLINE Doubles squares(const Floats& x) {
  Doubles r;
  MT_LANES r.v[i] = static_cast<double>(x.v[i]) * static_cast<double>(x.v[i]);
  return r;
}
MT_LANE_INLINE float sum(const Floats& a) {
  float t[8];
  for (int i = 0; i < 8; ++i) t[i] = a.v[i] + a.v[i + 8];
  for (int i = 0; i < 4; ++i) t[i] = t[i] + t[i + 4];
  return (t[0] + t[2]) + (t[1] + t[3]);
}
MT_LANE_INLINE double sum(const Doubles& a) {
  double t[8];
  for (int i = 0; i < 8; ++i) t[i] = a.v[i] + a.v[i + 8];
  for (int i = 0; i < 4; ++i) t[i] = t[i] + t[i + 4];
  return (t[0] + t[2]) + (t[1] + t[3]);
}
MT_LANE_INLINE float max_lane(const Floats& a) {
  float t[16];
  MT_LANES t[i] = a.v[i];
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) t[i] = t[i] > t[i + half] ? t[i] : t[i + half];
  }
  return t[0];
}
// Rows of 16 become columns: m[i] lane j -> m[j] lane i.
MT_LANE_INLINE void transpose16(Floats (&m)[16]) {
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < i; ++j) {
      const float t = m[i].v[j];
      m[i].v[j] = m[j].v[i];
      m[j].v[i] = t;
    }
  }
}

#undef MT_LANES

}  // namespace mt::cpu::MT_KERNEL_SET
