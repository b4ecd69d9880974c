// The choice of tokens against Hugging Face's numbers (golden/make/sampling.py), its edges, its
// random numbers.
#include "infer/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"
#include "io/hdf5.h"
#include "shared_data.h"

namespace mt {
namespace {

std::vector<double> dense(const std::vector<Candidate>& candidates, std::size_t n) {
  std::vector<double> probability(n);
  for (const Candidate& candidate : candidates) {
    double& place = probability.at(static_cast<std::size_t>(candidate.token));
    EXPECT_EQ(place, 0) << "token " << candidate.token << " stands twice";
    place = candidate.probability;
  }
  return probability;
}

SamplingOptions options_of(const Hdf5Reader& golden, const std::string& group) {
  SamplingOptions options;
  const auto take = [&](const char* name, auto& field) {
    if (golden.has_attribute(group, name)) {
      field = static_cast<std::decay_t<decltype(field)>>(golden.number_attribute(group, name));
    }
  };
  take("temperature", options.temperature);
  take("top_k", options.top_k);
  take("top_p", options.top_p);
  take("repetition_penalty", options.repetition_penalty);
  return options;
}

// Logits are divided and multiplied in f32 there as here, so only exp and the sum differ.
TEST(Sampling, golden_probabilities) {
  const Hdf5Reader golden(testing::data_path("golden/sampling.h5"));
  const auto logits = golden.read<float>("/logits");
  const auto history = golden.read<std::int32_t>("/history");
  const std::int64_t rows = golden.shape("/logits").at(0), n = golden.shape("/logits").at(1);
  const std::int64_t past = golden.shape("/history").at(1);
  Sampler sampler;
  int compared = 0;
  for (int number = 0; golden.contains(cat("/case", number < 10 ? "0" : "", number)); ++number) {
    const std::string group = cat("/case", number < 10 ? "0" : "", number);
    const SamplingOptions options = options_of(golden, group);
    const auto expected = golden.read<double>(group + "/probability");
    for (std::int64_t row = 0; row < rows; ++row) {
      const bool nucleus = options.top_p > 0 && options.top_p < 1;
      if (nucleus && row == 2) continue;  // ties: which of equals stay is not defined there
      const auto found =
          dense(sampler.candidates(
                    logits.data() + row * n, n,
                    {history.begin() + row * past, history.begin() + (row + 1) * past}, options),
                static_cast<std::size_t>(n));
      for (std::int64_t i = 0; i < n; ++i) {
        const double wanted = expected[static_cast<std::size_t>(row * n + i)];
        ASSERT_NEAR(found[static_cast<std::size_t>(i)], wanted, 1e-13 * wanted + 1e-300)
            << group << " row " << row << " token " << i;
      }
      ++compared;
    }
  }
  EXPECT_EQ(compared, 16 * 6 - 5);
}

TEST(Sampling, exp_and_log_are_within_two_units) {
  for (int i = 0; i <= 200000; ++i) {
    const double x = -i * 0.0035;
    const double wanted = std::exp(x);
    ASSERT_NEAR(exp_of(x), wanted, wanted * 4.5e-16) << x;
  }
  EXPECT_EQ(exp_of(0), 1);
  EXPECT_EQ(exp_of(-1e30), 0);
  EXPECT_EQ(exp_of(-std::numeric_limits<double>::infinity()), 0);
  for (double x = 1; x < 1e9; x *= 1.0003) {
    const double wanted = std::log(x);
    ASSERT_NEAR(log_of(x), wanted, wanted * 4.5e-16) << x;
  }
  EXPECT_EQ(log_of(1), 0);
}

TEST(Sampling, log_probability_is_of_the_whole_distribution) {
  const std::vector<float> logits{0.5F, -3, 12, 11.5F, 0};
  double sum = 0;
  for (std::int32_t id = 0; id < 5; ++id) {
    const double found = log_probability(logits.data(), 5, id);
    double all = 0;
    for (const float x : logits) all += std::exp(static_cast<double>(x) - 12);
    EXPECT_NEAR(found,
                static_cast<double>(logits[static_cast<std::size_t>(id)]) - 12 - std::log(all),
                1e-14);
    sum += std::exp(found);
  }
  EXPECT_NEAR(sum, 1, 1e-14);
}

std::vector<float> wide_logits(std::size_t n, float scale) {
  std::vector<float> logits(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto block = philox4x32_10({static_cast<std::uint32_t>(i), 0, 0, 0}, 5, 6);
    logits[i] = scale * (static_cast<float>(block[0] >> 8) * 0x1p-24F +
                         static_cast<float>(block[1] >> 8) * 0x1p-24F - 1);
  }
  return logits;
}

// The nucleus and the top, against a full sort.
TEST(Sampling, filters_of_a_wide_vocabulary_are_those_of_a_sort) {
  constexpr std::size_t kWidth = 50257;
  Sampler sampler;
  for (const float scale : {0.0F, 1.0F, 20.0F, 300.0F}) {
    auto logits = wide_logits(kWidth, scale);
    for (std::size_t i = 100; i < 200; ++i) logits[i] = logits[7];  // ties
    std::vector<std::int32_t> order(kWidth);
    std::iota(order.begin(), order.end(), 0);
    const auto score = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return score(a) > score(b); });
    double total = 0;
    for (const std::int32_t id : order)
      total += std::exp(static_cast<double>(score(id) - score(order[0])));
    for (const double p : {0.1, 0.9, 0.999}) {
      std::size_t keep = 0;
      for (double sum = 0; sum < p * total; ++keep) {
        sum += std::exp(static_cast<double>(score(order[keep]) - score(order[0])));
      }
      const auto& found = sampler.candidates(logits.data(), kWidth, {}, {.top_p = p});
      ASSERT_NEAR(static_cast<double>(found.size()), static_cast<double>(keep), 1) << scale << p;
      for (std::size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i].token, order[i]) << i;
    }
    for (const std::size_t k : {1, 3, 40, 20000}) {
      std::size_t keep = k;
      while (keep < kWidth && score(order[keep]) == score(order[k - 1])) ++keep;
      const auto& found =
          sampler.candidates(logits.data(), kWidth, {}, {.top_k = static_cast<std::int64_t>(k)});
      ASSERT_EQ(found.size(), keep) << scale << " " << k;
      for (std::size_t i = 0; i < keep; ++i) ASSERT_EQ(found[i].token, order[i]) << i;
    }
  }
}

// G03: filters together never leave nothing, and a sharp choice is the greedy one.
TEST(Sampling, top_k_with_top_p_keeps_the_best) {
  Sampler sampler;
  const auto logits = wide_logits(1000, 8);
  const auto best =
      static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = 0.01, .top_k = 1, .top_p = 0.8},
        SamplingOptions{.temperature = 1e-30}, SamplingOptions{.temperature = 1e-38},
        SamplingOptions{.temperature = 1e-40}, SamplingOptions{.temperature = 1e-44},
        SamplingOptions{.temperature = 0.8, .top_k = 5, .top_p = 1e-9},
        SamplingOptions{.greedy = true}}) {
    for (std::uint64_t sample = 0; sample < 5; ++sample) {
      EXPECT_EQ(sampler.next(logits.data(), 1000, {}, options, sample, 9), best);
    }
  }
}

// G04: temperature comes before the filter.
TEST(Sampling, temperature_widens_the_nucleus) {
  Sampler sampler;
  const auto logits = wide_logits(1000, 8);
  const auto kept = [&](double temperature) {
    return sampler.candidates(logits.data(), 1000, {}, {.temperature = temperature, .top_p = 0.9})
        .size();
  };
  EXPECT_LT(2 * kept(0.5), kept(1));
  EXPECT_LT(2 * kept(1), kept(2));
}

TEST(Sampling, the_penalty_counts_a_token_once_and_passes_over_foreign_ids) {
  Sampler sampler;
  const std::vector<float> logits{1, -1, 2};
  const auto once = sampler.candidates(logits.data(), 3, {0, 1}, {.repetition_penalty = 2});
  const auto often =
      sampler.candidates(logits.data(), 3, {1, 0, 0, 1, 0, 7, -1}, {.repetition_penalty = 2});
  ASSERT_EQ(once.size(), often.size());
  for (std::size_t i = 0; i < once.size(); ++i) {
    EXPECT_EQ(once[i].probability, often[i].probability);
  }
  EXPECT_NEAR(once[0].probability / once[1].probability, std::exp(0.5 + 2), 1e-12);
  // Greedy choice is made after it.
  EXPECT_EQ(sampler.next(logits.data(), 3, {2}, {.greedy = true, .repetition_penalty = 4}, 0, 0),
            0);
}

TEST(Sampling, draws_are_functions_of_seed_sample_and_position) {
  EXPECT_EQ(sampling_number(1, 2, 3), sampling_number(1, 2, 3));
  for (const double other :
       {sampling_number(2, 2, 3), sampling_number(1, 3, 3), sampling_number(1, 2, 4)}) {
    EXPECT_NE(sampling_number(1, 2, 3), other);
  }
  double sum = 0;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    const double u = sampling_number(9, i % 100, i / 100);
    ASSERT_TRUE(u >= 0 && u < 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.012);  // 4 standard deviations
}

TEST(Sampling, tokens_come_as_often_as_their_probability_says) {
  Sampler sampler;
  const std::vector<float> logits{0, 1, 2, -40, 1.5F};
  for (const SamplingOptions& options : {SamplingOptions{}, SamplingOptions{.top_k = 3}}) {
    const auto probability = dense(sampler.candidates(logits.data(), 5, {}, options), 5);
    std::vector<double> count(5);
    constexpr int kDraws = 40000;
    for (int i = 0; i < kDraws; ++i) {
      const std::int32_t token =
          sampler.next(logits.data(), 5, {}, options, static_cast<std::uint64_t>(i), 17);
      ++count[static_cast<std::size_t>(token)];
    }
    for (std::size_t i = 0; i < 5; ++i) {
      const double p = probability[i];
      EXPECT_NEAR(count[i] / kDraws, p, 4 * std::sqrt(p * (1 - p) / kDraws) + 1e-12) << i;
    }
  }
}

TEST(Sampling, draw_takes_the_first_sum_above_the_number) {
  const std::vector<Candidate> three{{4, 0.25}, {9, 0}, {2, 0.5}, {7, 0.25}, {8, 0}};
  EXPECT_EQ(draw(three, 0), 4);
  EXPECT_EQ(draw(three, std::nextafter(0.25, 0)), 4);
  EXPECT_EQ(draw(three, 0.25), 2);
  EXPECT_EQ(draw(three, 0.75), 7);
  EXPECT_EQ(draw(three, std::nextafter(1.0, 0)), 7);
  EXPECT_EQ(draw({{4, 0.25}, {5, 0.25}, {6, 0}}, 0.9), 5);  // never one of probability 0
}

TEST(Sampling, values_outside_their_range_are_refused_by_name) {
  const auto refused = [](const SamplingOptions& options) -> std::string {
    try {
      options.check();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused({}), "");
  EXPECT_EQ(refused({.temperature = 1e-3, .top_k = 1, .top_p = 1, .repetition_penalty = 0.5}), "");
  for (const double bad : {0.0, -1.0, std::nan(""), 1e300, 1e-60}) {
    EXPECT_NE(refused({.temperature = bad}).find("--temperature"), std::string::npos) << bad;
    EXPECT_NE(refused({.repetition_penalty = bad}).find("--repetition-penalty"), std::string::npos)
        << bad;
  }
  EXPECT_NE(refused({.top_k = -1}).find("--top-k -1"), std::string::npos);
  for (const double bad : {-0.1, 1.01, std::nan("")}) {
    EXPECT_NE(refused({.top_p = bad}).find("--top-p"), std::string::npos);
  }
  EXPECT_NE(refused({.seed = -1}).find("--seed"), std::string::npos);
  EXPECT_NE(refused({.seed = 1LL << 32}).find("--seed"), std::string::npos);
}

}  // namespace
}  // namespace mt
