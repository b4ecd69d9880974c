// Proportions of blends, and what a command line may say of them.
#include "data/blend.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace mt {
namespace {

// The largest distance of any source from its share over all prefixes of n samples.
double worst(const std::vector<double>& weights, std::int64_t n) {
  const Blend blend(weights);
  BlendPosition position = blend.start();
  double distance = 0;
  for (std::int64_t i = 1; i <= n; ++i) {
    const SamplePlace place = blend.next(position);
    EXPECT_EQ(place.index + 1, position.consumed[static_cast<std::size_t>(place.source)]);
    for (std::int64_t s = 0; s < blend.sources(); ++s) {
      const auto taken = static_cast<double>(position.since[static_cast<std::size_t>(s)]);
      distance = std::max(distance, std::abs(taken - blend.share(s) * static_cast<double>(i)));
    }
  }
  return distance;
}

TEST(Blend, every_prefix_has_the_proportions_within_one_sample) {
  const std::vector<std::vector<double>> cases = {
      {1},
      {1, 1},
      {0.3, 0.7},
      {2, 1, 1},
      {0.001, 0.999},  // D03
      {1e-9, 1},       // D03
      {0.14336, 0.00873, 0.09446, 0.19336, 0.01007, 0.13017, 0.05689, 0.00208, 0.15652, 0.02897,
       0.01359, 0.08962, 0.04771, 0.01588, 0.00859},  // MT-NLG's
      std::vector<double>(37, 1.0)};
  for (const auto& weights : cases) {
    EXPECT_LT(worst(weights, 20000), 1.0) << weights.size() << " sources";
  }
  // Weights that hurt a rule of largest remainders: many small ones beside a large one.
  std::vector<double> many(60, 1.0);
  many.push_back(60.0);
  many.push_back(7.3);
  EXPECT_LT(worst(many, 20000), 1.0);
}

TEST(Blend, tens_of_thousands_of_sources_are_drawn_once_each) {
  const Blend blend(std::vector<double>(40000, 1.0));  // more than 16 bits count
  BlendPosition position = blend.start();
  for (int i = 0; i < 3000; ++i) EXPECT_EQ(blend.next(position).index, 0);
}

TEST(Blend, the_position_is_all_that_there_is) {
  const Blend blend({0.2, 0.5, 0.3});
  BlendPosition one = blend.start(), two = blend.start();
  std::vector<SamplePlace> places;
  for (int i = 0; i < 100; ++i) places.push_back(blend.next(one));
  for (int i = 0; i < 100; ++i) {
    const BlendPosition copy = two;  // as a checkpoint would
    two = copy;
    EXPECT_EQ(blend.next(two), places[static_cast<std::size_t>(i)]);
  }
}

// D05: other weights in mid-run repeat nothing and leave nothing out.
TEST(Blend, weights_may_change) {
  BlendPosition position = Blend({1, 1}).start();
  const Blend first({1, 1}), then({2, 1});
  std::vector<std::int64_t> next(2, 0);
  for (int i = 0; i < 101; ++i) {
    const SamplePlace place = first.next(position);
    EXPECT_EQ(place.index, next[static_cast<std::size_t>(place.source)]++);
  }
  position.since = {0, 0};
  for (int i = 0; i < 99; ++i) {
    const SamplePlace place = then.next(position);
    EXPECT_EQ(place.index, next[static_cast<std::size_t>(place.source)]++);
  }
  EXPECT_EQ(position.since, (std::vector<std::int64_t>{66, 33}));
}

TEST(Blend, words_of_a_command_line) {
  const auto path_at = [](const std::vector<WeightedPath>& parts, std::size_t i) {
    return cat(parts.at(i).weight, " ", parts.at(i).path);
  };
  EXPECT_EQ(path_at(parse_blend({"a.h5"}, "data-path"), 0), "1 a.h5");
  EXPECT_EQ(path_at(parse_blend({"7"}, "data-path"), 0), "1 7");  // a file of that name
  const auto two = parse_blend({"0.3", "a", "7e1", "b c"}, "data-path");
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(path_at(two, 1), "70 b c");
  EXPECT_EQ(parse_blend({"a", "b", "c"}, "data-path").size(), 3U);
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"1", "a", "2"},
                                             {"1", "a", "b", "c"},
                                             {"0", "a", "1", "b"},
                                             {"-1", "a", "1", "b"},
                                             {"nan", "a", "1", "b"},
                                             {"inf", "a", "1", "b"},
                                             {"1", "a", "1e-999", "b"}}) {
    try {
      static_cast<void>(parse_blend(words, "data-path"));
      ADD_FAILURE() << words[0] << " ... accepted";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("--data-path"), std::string::npos);
    }
  }
  EXPECT_THROW(Blend({}), UsageError);
  EXPECT_THROW(Blend({1, 0}), UsageError);
  EXPECT_THROW(Blend({1e308, 1e308}), UsageError);
}

}  // namespace
}  // namespace mt
