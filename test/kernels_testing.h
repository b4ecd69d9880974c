// What the tests of the kernels share: the sets of this machine, numbers, comparisons.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/philox.h"
#include "base/threads.h"
#include "kernels/kernels.h"

namespace mt {

// Every kernel set that this processor runs, the portable one first.
inline std::vector<const Kernels*> kernel_sets() {
  std::vector<const Kernels*> sets;
  for (const char* name : {"baseline", "avx2", "avx512"}) {
    try {
      sets.push_back(&cpu_kernels(name));
    } catch (const UsageError&) {  // counted once, by the test of this name in kernels_test.cc
    }
  }
  return sets;
}

using Numbers = std::vector<float>;

inline Numbers random_numbers(std::size_t count, std::uint32_t seed, float scale = 1.0F) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  Numbers x(count);
  for (float& value : x) value = normal(generator);
  return x;
}

inline bool same_bits(const Numbers& a, const Numbers& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The largest difference, relative to `scale`.
template <typename A, typename B>
double largest_difference(const A& got, const B& want, double scale = 1.0) {
  EXPECT_EQ(got.size(), want.size());
  double largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    largest = std::isnan(difference) ? HUGE_VAL : std::max(largest, difference);
  }
  return largest / scale;
}

// Runs f with every set and 1, 2 and 3 threads: f returns all that the kernel wrote, which must be
// the same bits each time. Returns it.
template <typename F>
Numbers same_everywhere(F f) {
  Numbers first;
  const int before = threads();
  for (const Kernels* kernels : kernel_sets()) {
    for (const int count : {1, 2, 3}) {
      set_threads(count);
      const Numbers result = f(*kernels);
      if (first.empty()) {
        first = result;
      } else {
        EXPECT_TRUE(same_bits(first, result)) << kernels->name << " with " << count << " threads";
      }
    }
  }
  set_threads(before);
  return first;
}

// The number that dropout draws for one element.
inline std::uint32_t dropout_number(const Dropout& d, std::int64_t sample, std::uint64_t element) {
  const PhiloxBlock block = philox4x32_10(
      philox_counter(static_cast<std::uint64_t>(sample), d.layer, d.site, element / 4), d.seed,
      static_cast<std::uint32_t>(RandomStream::kDropout));
  return block[element % 4];
}
inline double dropout_factor(const Dropout& d, std::int64_t sample, std::uint64_t element) {
  if (d.probability == 0) return 1;
  return dropout_number(d, sample, element) >= static_cast<double>(d.probability) * 4294967296.0
             ? 1 / (1 - static_cast<double>(d.probability))
             : 0;
}

}  // namespace mt
