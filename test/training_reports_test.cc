// What a run reports beside its loss: norms a layer, and the samples behind a loss that jumps.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "train/loss_watch.h"
#include "training_job.h"

namespace mt {
namespace {

using testing::Job;
using testing::read_metrics;
using testing::Scratch;
using testing::small_model;
using testing::small_run;
using testing::Words;
using testing::write_shard;

TEST(LossWatch, a_jump_is_a_spike_and_does_not_hide_the_next) {
  LossWatch watch(6);
  for (int i = 0; i < 60; ++i) EXPECT_FALSE(watch.is_spike(4 + 0.1 * (i % 3))) << i;
  EXPECT_NEAR(watch.mean(), 4.1, 0.02);
  EXPECT_NEAR(watch.deviation(), 0.082, 0.01);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(watch.is_spike(8)) << i;
  EXPECT_FALSE(watch.is_spike(4.1));
  LossWatch falling(6);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(falling.is_spike(10 * std::exp(-i / 20.0))) << i;
  EXPECT_TRUE(falling.is_spike(0.7));
}

TEST(LossWatch, neither_the_first_losses_nor_falling_ones_nor_an_eventless_run_are_spikes) {
  LossWatch watch(6);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(watch.is_spike(i == 9 ? 100 : 1)) << i;
  LossWatch falling(6);
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(falling.is_spike(10 * std::exp(-i / 20.0))) << i;
  LossWatch constant(6);
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(constant.is_spike(i < 100 ? 3 : 3.01)) << i;
  LossWatch noisy(6);  // about normal, with a deviation of a tenth of the mean
  std::uint32_t state = 1;
  for (int i = 0; i < 3000; ++i) {
    double sum = -6;
    for (int j = 0; j < 12; ++j) {
      state = state * 1664525U + 1013904223U;
      sum += static_cast<double>(state) * 0x1p-32;
    }
    EXPECT_FALSE(noisy.is_spike(3 + 0.3 * sum + 5 * std::exp(-i / 100.0))) << i;
  }
  LossWatch off(0);
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(off.is_spike(i == 19 ? 1e9 : 1));
}

class TrainingReports : public ::testing::Test {
 protected:
  [[nodiscard]] std::vector<Json> run(const Words& words, const std::string& name) {
    const Words files{"--data-path", scratch_ / "data.h5", "--metrics", scratch_ / name};
    EXPECT_EQ(Job(small_model() + small_run() + files + words).run(), 0);
    return read_metrics(scratch_ / name);
  }

  Scratch scratch_;
};

constexpr std::int64_t kBadDocument = 100;

// 200 documents of a few letters; one in the middle holds bytes that no other does.
void write_shard_with_a_bad_document(const std::string& path) {
  const auto tokenizer = make_bpe_tokenizer(testing::byte_level_files({}), "test vocabulary");
  TokenShardWriter writer({.path = path, .replace = false, .options = {}}, *tokenizer);
  std::uint32_t state = 1;
  for (std::int64_t d = 0; d < 200; ++d) {
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < (d == kBadDocument ? 40 : 130); ++i) {
      state = state * 1664525U + 1013904223U;
      const std::int64_t noise = state >> 30;
      const std::int64_t id = d == kBadDocument ? 150 + i * 37 % 100 : 65 + (d + i) % 7 + noise;
      ids.push_back(static_cast<std::int32_t>(id));
    }
    ids.push_back(tokenizer->end_of_document());
    writer.add_document(ids.data(), ids.size(), -1);
  }
  writer.close();
}

// R: a loss that jumps has to lead to the text that made it jump.
TEST_F(TrainingReports, a_spike_names_the_samples_of_the_bad_document) {
  write_shard_with_a_bad_document(scratch_ / "data.h5");
  const TokenShardReader shard(scratch_ / "data.h5");
  const std::int64_t begin = shard.document_offset(kBadDocument);
  const std::int64_t end = shard.document_offset(kBadDocument + 1);
  int spikes = 0;
  for (const Json& line : run({"--train-iters", "300"}, "bad.jsonl")) {
    if (!line.contains("spike_loss")) continue;
    ++spikes;
    EXPECT_GT(line["spike_loss"].get<double>(), line["spike_mean"].get<double>());
    const Json& worst = line["spike_samples"].at(0);
    EXPECT_EQ(worst["shard"], shard.path());
    const std::int64_t first = shard.document_offset(worst["document"].get<std::int64_t>()) +
                               worst["offset"].get<std::int64_t>();
    EXPECT_LT(first, end);
    EXPECT_GT(first + 17, begin);
    EXPECT_GE(worst["nll"].get<double>(), line["spike_samples"].at(1)["nll"].get<double>());
    const std::int64_t step = line["step"].get<std::int64_t>();
    EXPECT_EQ(line["spike_first_sample"], (step - 1) * 8);
    EXPECT_EQ(line["spike_last_sample"], step * 8 - 1);
    EXPECT_GE(worst["sample"].get<std::int64_t>(), (step - 1) * 8);
    EXPECT_LT(worst["sample"].get<std::int64_t>(), step * 8);
  }
  EXPECT_GE(spikes, 1);
}

TEST_F(TrainingReports, reports_leave_the_run_as_it_is) {
  write_shard_with_a_bad_document(scratch_ / "data.h5");
  const Words longer{"--train-iters", "60"};
  const Words all{"--log-params-norm", "--log-num-zeros-in-grad", "--loss-spike-sigmas", "0.01"};
  ASSERT_EQ(
      run(longer + Words{"--loss-spike-sigmas", "0", "--save", scratch_ / "plain"}, "plain.jsonl")
          .size(),
      60U);
  ASSERT_GT(run(longer + all + Words{"--save", scratch_ / "watched"}, "watched.jsonl").size(), 60U);
  EXPECT_EQ(testing::directory_bytes(iteration_directory(scratch_ / "plain", 60)),
            testing::directory_bytes(iteration_directory(scratch_ / "watched", 60)));
}

TEST_F(TrainingReports, norms_a_layer_add_up_to_those_of_the_whole) {
  write_shard(scratch_ / "data.h5", 40);
  const auto lines = run({"--log-params-norm", "--log-num-zeros-in-grad"}, "norms");
  ASSERT_EQ(lines.size(), 12U);
  for (const Json& line : lines) {
    for (const auto& [whole, parts] : {std::pair{"grad_norm", "layer_grad_norm"},
                                       std::pair{"params_norm", "layer_params_norm"}}) {
      double squares = 0;
      for (const auto& part : line.at(parts)) squares += std::pow(part.get<double>(), 2);
      const double norm = line.at(whole).get<double>();
      EXPECT_NEAR(std::sqrt(squares), norm, 1e-9 * norm) << whole;
      EXPECT_TRUE(line.at(parts).contains("layers.0"));
      EXPECT_TRUE(line.at(parts).contains("layers.1"));
    }
    std::int64_t zeros = 0;
    for (const auto& part : line.at("layer_num_zeros_in_grad")) zeros += part.get<std::int64_t>();
    EXPECT_EQ(line.at("num_zeros_in_grad"), zeros);
  }
  // Weights that a step has not moved yet: no warm-up step of rate 0 changes them.
  EXPECT_EQ(lines[0]["params_norm"], lines[1]["params_norm"]);
  EXPECT_NE(lines[1]["params_norm"], lines[2]["params_norm"]);
  for (const Json& line : run({}, "without")) EXPECT_FALSE(line.contains("params_norm"));
}

TEST_F(TrainingReports, a_threshold_that_is_no_number_is_refused) {
  write_shard(scratch_ / "data.h5", 4);
  for (const char* sigmas : {"-1", "nan", "inf"}) {
    EXPECT_THROW(
        (void)Job(small_model() + small_run() +
                  Words{"--data-path", scratch_ / "data.h5", "--loss-spike-sigmas", sigmas})
            .start(),
        UsageError);
  }
}

}  // namespace
}  // namespace mt
