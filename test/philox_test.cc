#include "base/philox.h"

#include <Random123/philox.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace mt {
namespace {

PhiloxBlock random123(const PhiloxBlock& counter, std::uint32_t key0, std::uint32_t key1) {
  const r123::Philox4x32 generator;
  const r123::Philox4x32::ctr_type out =
      generator({{counter[0], counter[1], counter[2], counter[3]}}, {{key0, key1}});
  return {out[0], out[1], out[2], out[3]};
}

// The lines "philox4x32 10" of Random123's known-answer tests.
TEST(Philox, gives_the_known_answers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, 0, 0),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffff, 0xffffffff),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, agrees_with_random123) {
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {
    PhiloxBlock counter{};
    for (std::uint32_t& word : counter) {
      word = static_cast<std::uint32_t>(random());
    }
    const auto key0 = static_cast<std::uint32_t>(random());
    const auto key1 = static_cast<std::uint32_t>(random());
    ASSERT_EQ(philox4x32_10(counter, key0, key1), random123(counter, key0, key1));
  }
}

TEST(Philox, counters_are_distinct_over_their_whole_ranges) {
  std::set<PhiloxBlock> counters;
  std::size_t count = 0;
  for (const std::uint64_t sample : {0ULL, 1ULL, 0xFFFFFFFFULL, 1ULL << 32, ~0ULL}) {
    for (const std::uint32_t layer : {0U, 1U, 255U, 256U, 65535U}) {
      for (const std::uint32_t site : {0U, 1U, 3U, 255U}) {
        for (const std::uint64_t block :
             {0ULL, 1ULL, 0xFFFFFFFFULL, 1ULL << 32, (1ULL << 40) - 1}) {
          counters.insert(philox_counter(sample, layer, site, block));
          ++count;
        }
      }
    }
  }
  EXPECT_EQ(counters.size(), count);
}

static_assert(philox4x32_10({0, 0, 0, 0}, 0, 0)[0] == 0x6627e8d5);

}  // namespace
}  // namespace mt
