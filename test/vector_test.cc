// The vector functions against double, and each kernel set against the portable one, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#define MT_DECLARE_PROBES(set)                                   \
  namespace mt::cpu::set {                                       \
  void probe(char function, const float*, float*, std::int64_t); \
  void probe_parts(const float*, float*);                        \
  void probe_transpose(const float*, float*);                    \
  void probe_ints(const std::uint32_t*, std::uint32_t*);         \
  }
MT_DECLARE_PROBES(baseline)
MT_DECLARE_PROBES(avx2)
MT_DECLARE_PROBES(avx512)

namespace mt::cpu {
namespace {

struct Probes {
  const char* name;
  void (*probe)(char, const float*, float*, std::int64_t);
  void (*parts)(const float*, float*);
  void (*transpose)(const float*, float*);
  void (*ints)(const std::uint32_t*, std::uint32_t*);
};

std::vector<Probes> usable_sets() {
  std::vector<Probes> sets = {{"baseline", baseline::probe, baseline::probe_parts,
                               baseline::probe_transpose, baseline::probe_ints}};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    sets.push_back(
        {"avx2", avx2::probe, avx2::probe_parts, avx2::probe_transpose, avx2::probe_ints});
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")) {
    sets.push_back({"avx512", avx512::probe, avx512::probe_parts, avx512::probe_transpose,
                    avx512::probe_ints});
  }
  return sets;
}

float from_bits(std::uint32_t bits) {
  float x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// Every step-th float of all 2^32, NaN and infinities among them, in blocks of `block`.
template <typename F>
void over_all_floats(std::uint32_t step, F f) {
  constexpr std::size_t kBlock = 1 << 16;
  std::vector<float> x;
  x.reserve(kBlock);
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += step) {
    x.push_back(from_bits(static_cast<std::uint32_t>(bits)));
    if (x.size() == kBlock) {
      f(x);
      x.clear();
    }
  }
  while (x.size() % 16 != 0) x.push_back(1.0F);
  f(x);
}

double ulp_of(double value) {
  const double a = std::max(std::fabs(value), 0x1p-126);
  return std::ldexp(1.0, std::ilogb(a) - 23);
}

double worst_error(char function, const std::function<double(double)>& exact) {
  const Probes probes = usable_sets().back();
  double worst = 0;
  std::vector<float> y;
  over_all_floats(977, [&](const std::vector<float>& x) {
    y.resize(x.size());
    probes.probe(function, x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double want = exact(static_cast<double>(x[i]));
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(y[i])) << x[i] << " gives " << y[i];
      } else if (std::fabs(want) >= std::ldexp(1 - 0x1p-25, 128)) {
        EXPECT_EQ(y[i], std::copysign(std::numeric_limits<float>::infinity(), want)) << x[i];
      } else {
        const double error = std::fabs(static_cast<double>(y[i]) - want) / ulp_of(want);
        EXPECT_LT(error, 4) << function << " at " << x[i] << ": " << y[i] << " for " << want;
        worst = std::max(worst, error);
      }
    }
  });
  return worst;
}

TEST(Vector, exp_is_within_2_ulp_and_0_where_the_result_would_be_denormal) {
  const double worst = worst_error('e', [](double x) {
    const double y = std::exp(x);
    return y < 0x1p-126 ? 0.0 : y;
  });
  std::printf("exp: %.3f ulp\n", worst);
  EXPECT_LE(worst, 2);
}

TEST(Vector, exp_of_0_is_1) {
  for (const Probes& set : usable_sets()) {
    std::vector<float> x(16, 0.0F), y(16);
    x[1] = -0.0F;
    set.probe('e', x.data(), y.data(), 16);
    EXPECT_EQ(y, std::vector<float>(16, 1.0F));
  }
}

TEST(Vector, log_is_within_2_ulp) {
  const double worst = worst_error('l', [](double x) { return std::log(x); });
  std::printf("log: %.3f ulp\n", worst);
  EXPECT_LE(worst, 2);
}

TEST(Vector, sine_and_cosine_of_a_turn_are_within_2_ulp_of_1) {
  const Probes probes = usable_sets().back();
  double worst = 0;
  std::vector<float> s, c;
  over_all_floats(1009, [&](const std::vector<float>& x) {
    s.resize(x.size());
    c.resize(x.size());
    probes.probe('s', x.data(), s.data(), static_cast<std::int64_t>(x.size()));
    probes.probe('c', x.data(), c.data(), static_cast<std::int64_t>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      std::uint32_t w = 0;
      std::memcpy(&w, &x[i], sizeof w);
      const double angle = 2 * M_PI * w / 4294967296.0;
      worst =
          std::max({worst, std::fabs(s[i] - std::sin(angle)), std::fabs(c[i] - std::cos(angle))});
    }
  });
  std::printf("sine, cosine: %.3f ulp of 1\n", worst / 0x1p-23);
  EXPECT_LE(worst, 2 * 0x1p-23);
}

double gelu_exact(double x) {
  return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST(Vector, gelu_and_its_derivative_match_double) {
  const Probes probes = usable_sets().back();
  std::vector<float> x, y(1 << 16), d(1 << 16);
  for (int i = 0; i < (1 << 16); ++i) x.push_back((static_cast<float>(i) - 32768) / 2000);
  probes.probe('g', x.data(), y.data(), 1 << 16);
  probes.probe('d', x.data(), d.data(), 1 << 16);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double want = gelu_exact(x[i]);
    EXPECT_NEAR(y[i], want, 4e-7 * std::max(1.0, std::fabs(want))) << x[i];
    const double h = 1e-5;
    EXPECT_NEAR(d[i], (gelu_exact(x[i] + h) - gelu_exact(x[i] - h)) / (2 * h), 1e-6) << x[i];
  }
  for (const float far : {1e5F, 1e20F, 3e38F}) {
    std::vector<float> in(16, far), out(16);
    probes.probe('d', in.data(), out.data(), 16);
    EXPECT_EQ(out[0], 1.0F);
    in.assign(16, -far);
    probes.probe('d', in.data(), out.data(), 16);
    EXPECT_LT(std::fabs(out[0]), 1e-35F);
    probes.probe('g', in.data(), out.data(), 16);
    EXPECT_EQ(out[0], 0.0F);
  }
}

TEST(Vector, every_set_gives_the_portable_bits) {
  const std::vector<Probes> sets = usable_sets();
  if (sets.size() < 2) GTEST_SKIP() << "this processor has no vector set";
  for (const char function : std::string("eltgdsc+>D")) {
    for (std::size_t k = 1; k < sets.size(); ++k) {
      std::vector<float> want, got;
      std::size_t differences = 0;
      over_all_floats(100003, [&](const std::vector<float>& x) {
        want.resize(x.size());
        got.resize(x.size());
        sets[0].probe(function, x.data(), want.data(), static_cast<std::int64_t>(x.size()));
        sets[k].probe(function, x.data(), got.data(), static_cast<std::int64_t>(x.size()));
        for (std::size_t i = 0; i < x.size(); ++i) {
          if (std::isnan(want[i]) && std::isnan(got[i])) continue;
          differences += std::memcmp(&want[i], &got[i], 4) != 0;
        }
      });
      EXPECT_EQ(differences, 0U) << function << " of " << sets[k].name;
    }
  }
}

TEST(Vector, sum_adds_the_lanes_in_the_stated_tree) {
  std::vector<float> x(16), y(16);
  for (int i = 0; i < 16; ++i) x[i] = std::ldexp(1.0F + i / 7.0F, (i * 5) % 11);
  std::vector<float> t = x;
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) t[i] += t[i + half];
  }
  for (const Probes& set : usable_sets()) {
    set.probe('+', x.data(), y.data(), 16);
    EXPECT_EQ(y[0], t[0]) << set.name;
    set.probe('>', x.data(), y.data(), 16);
    EXPECT_EQ(y[0], *std::max_element(x.begin(), x.end())) << set.name;
  }
}

TEST(Vector, moves_between_lanes_are_right) {
  for (const Probes& set : usable_sets()) {
    std::vector<float> x(256), y(256), parts(34 * 16);
    for (int i = 0; i < 256; ++i) x[i] = static_cast<float>(i + 3);
    set.transpose(x.data(), y.data());
    set.parts(x.data(), parts.data());
    for (int i = 0; i < 256; ++i) EXPECT_EQ(y[i], x[(i % 16) * 16 + i / 16]);
    for (int n = 0; n <= 16; ++n) {
      for (int lane = 0; lane < 16; ++lane) {
        EXPECT_EQ(parts[16 * n + lane], lane < n ? x[lane] : 0.0F);
        EXPECT_EQ(parts[16 * (17 + n) + lane], lane < n ? x[lane] : 1.0F);
      }
    }
    std::vector<std::uint32_t> words(64), out(112);
    for (std::uint32_t i = 0; i < 64; ++i) words[i] = i * 2654435761U + 12345;
    set.ints(words.data(), out.data());
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], words[(i % 4) * 16 + i / 4]);
    for (std::size_t i = 0; i < 16; ++i) {
      const std::uint64_t p = std::uint64_t{words[i]} * words[16 + i];
      EXPECT_EQ(out[64 + i], p >> 32);
      EXPECT_EQ(out[80 + i], p & 0xFFFFFFFFU);
      EXPECT_EQ(from_bits(out[96 + i]), words[i] < words[16 + i] ? 1.0F : 0.0F);
    }
  }
}

}  // namespace
}  // namespace mt::cpu
