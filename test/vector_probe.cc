// The functions of vector.h over arrays, compiled once for each kernel set with that set's flags.
#include "kernels/cpu/vector.h"

#include <cstdint>

namespace mt::cpu::MT_KERNEL_SET {

// count is a multiple of 16.
void probe(char function, const float* x, float* y, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 16) {
    const Floats a = load(x + i);
    Floats r = a;
    Floats other = a;
    switch (function) {
      case 'e':
        r = exp(a);
        break;
      case 'l':
        r = log(a);
        break;
      case 'g':
        r = gelu(a);
        break;
      case 'd':
        r = gelu_derivative(a);
        break;
      case 's':
        sincos_of_turn(bits_of(a), &r, &other);
        break;
      case 'c':
        sincos_of_turn(bits_of(a), &other, &r);
        break;
      case '+':
        r = all(sum(a));
        break;
      case '>':
        r = all(max_lane(a));
        break;
      case 'D':
        r = all(static_cast<float>(sum(squares(a) + add_widened(zero_doubles(), a))));
        break;
      default:
        break;
    }
    store(y + i, r);
  }
}

// out[n] gets x[16 n + lane] of the first n lanes, the others 0, for n = 0..16; then the same by a
// partial store over ones.
void probe_parts(const float* x, float* out) {
  for (int n = 0; n <= 16; ++n) {
    store(out + 16 * n, load_part(x, n));
    store(out + 16 * (17 + n), all(1.0F));
    store_part(out + 16 * (17 + n), load(x), n);
  }
}

void probe_transpose(const float* x, float* out) {
  Floats m[16];
  for (int i = 0; i < 16; ++i) m[i] = load(x + 16 * i);
  transpose16(m);
  for (int i = 0; i < 16; ++i) store(out + 16 * i, m[i]);
}

// 64 words a[i], b[i], c[i], d[i] in turn; then high and low halves of a * b; then a < b.
void probe_ints(const std::uint32_t* x, std::uint32_t* out) {
  const Ints a = load_ints(x), b = load_ints(x + 16);
  interleave4(a, b, load_ints(x + 32), load_ints(x + 48), out);
  Ints high = a, low = a;
  multiply_wide(a, b, &high, &low);
  store_ints(out + 64, high);
  store_ints(out + 80, low);
  store_ints(out + 96, bits_of(select(less_unsigned(a, b), all(1.0F), all(0.0F))));
}

}  // namespace mt::cpu::MT_KERNEL_SET
