// Blends, ramps and runs by samples or tokens: where samples come from and how many a step takes.
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "training_job.h"

namespace mt {
namespace {

using testing::directory_bytes;
using testing::Job;
using testing::small_model;
using testing::small_run;
using testing::Training;
using testing::Words;
using testing::write_shard;

// Samples of each shard that a checkpoint of a blend has counted, by tokens of the shard.
std::map<std::int64_t, std::int64_t> blend_counts(const std::string& directory) {
  std::map<std::int64_t, std::int64_t> counts;
  const CheckpointReader reader(directory);
  for (const Json& source : reader.training()["data"]["blend"]) {
    counts[source["tokens"].get<std::int64_t>()] = source["consumed_samples"].get<std::int64_t>();
  }
  return counts;
}

TEST_F(Training, a_blend_cut_anywhere_is_the_run_without_a_cut) {
  write_shard(scratch_ / "more.h5", 17, 5);
  write_shard(scratch_ / "tiny.h5", 1, 9);
  const Words blend = small_model() + small_run() +
                      Words{"--data-path",
                            "0.7",
                            scratch_ / "data.h5",
                            "0.299",
                            scratch_ / "more.h5",
                            "0.001",
                            scratch_ / "tiny.h5",
                            "--split",
                            "1,0,0"};
  ASSERT_EQ(Job(blend + saving("whole")).run(), 0);
  for (const char* cut : {"5", "7"}) {
    const std::string name = std::string("cut") + cut;
    ASSERT_EQ(Job(blend + saving(name) + Words{"--exit-interval", cut}).run(), 75);
    ASSERT_EQ(Job(blend + saving(name)).run(), 0);
    EXPECT_EQ(directory_bytes(last(name)), directory_bytes(last("whole"))) << cut;
  }
  const auto counts = blend_counts(last("whole"));
  ASSERT_EQ(counts.size(), 3U);
  std::vector<std::int64_t> taken;
  for (const auto& [tokens, count] : counts) taken.push_back(count);
  EXPECT_EQ(taken[0] + taken[1] + taken[2], 96);
  EXPECT_NEAR(static_cast<double>(taken[2]), 0.7 * 96, 1);
  EXPECT_NEAR(static_cast<double>(taken[1]), 0.299 * 96, 1);
}

// D05, C10: other weights, a new shard, one that leaves and comes back.
TEST_F(Training, a_blend_may_change_and_loses_no_sample) {
  write_shard(scratch_ / "more.h5", 17, 5);
  write_shard(scratch_ / "third.h5", 23, 9);
  const auto tokens = [&](const char* name) { return TokenShardReader(scratch_ / name).tokens(); };
  const auto run = [&](const Words& data, const char* iters) {
    const Words split{"--split", "1,0,0", "--lr-decay-style", "constant", "--lr-warmup-iters", "0"};
    return Job(small_model() + small_run() + saving("run") + data + split +
               Words{"--train-iters", iters})
        .run();
  };
  const auto counts = [&](int iteration) { return blend_counts(last("run", iteration)); };
  ASSERT_EQ(run({"--data-path", scratch_ / "data.h5"}, "2"), 0);
  ASSERT_EQ(run({"--data-path", "1", scratch_ / "data.h5", "1", scratch_ / "more.h5"}, "4"), 0);
  EXPECT_EQ(counts(4)[tokens("data.h5")], 16 + 8);
  EXPECT_EQ(counts(4)[tokens("more.h5")], 8);
  ASSERT_EQ(run({"--data-path", "3", scratch_ / "third.h5", "1", scratch_ / "more.h5"}, "6"), 0);
  EXPECT_EQ(counts(6)[tokens("data.h5")], 24);
  EXPECT_EQ(counts(6)[tokens("third.h5")], 12);
  EXPECT_EQ(counts(6)[tokens("more.h5")], 8 + 4);
  ASSERT_EQ(run({"--data-path", "1", scratch_ / "data.h5", "1", scratch_ / "third.h5"}, "8"), 0);
  EXPECT_EQ(counts(8)[tokens("data.h5")], 24 + 8);
  EXPECT_EQ(counts(8)[tokens("third.h5")], 12 + 8);
  EXPECT_EQ(counts(8)[tokens("more.h5")], 12);
  // Nothing in common is no change of a blend but other data.
  write_shard(scratch_ / "other.h5", 11, 77);
  EXPECT_THROW((void)run({"--data-path", scratch_ / "other.h5"}, "9"), DataError);
}

TEST_F(Training, a_ramp_grows_the_batch_and_a_cut_does_not_show) {
  const Words ramp = small_model() + Words{"--data-path",
                                           scratch_ / "data.h5",
                                           "--seq-length",
                                           "16",
                                           "--micro-batch-size",
                                           "2",
                                           "--global-batch-size",
                                           "8",
                                           "--rampup-batch-size",
                                           "2",
                                           "2",
                                           "30",
                                           "--train-samples",
                                           "61",
                                           "--lr",
                                           "1e-2",
                                           "--lr-warmup-samples",
                                           "12",
                                           "--lr-decay-style",
                                           "linear",
                                           "--eval-iters",
                                           "0",
                                           "--quiet"};
  ASSERT_EQ(Job(ramp + saving("whole")).run(), 0);
  const auto lines = metrics("whole");
  // 2 for samples 0 to 9, 4 to 19, 6 to 29, 8 from 30 on: a batch has the size of its first sample.
  const std::vector<std::int64_t> wanted{2, 2, 2, 2, 2, 4, 4, 4, 6, 6, 8, 8, 8};
  ASSERT_EQ(lines.size(), wanted.size());
  std::int64_t before = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(lines[i]["batch"], wanted[i]) << i;
    const double rate = before <= 12 ? 1e-2 * static_cast<double>(before) / 12
                                     : 1e-2 * static_cast<double>(61 - before) / (61 - 12);
    EXPECT_NEAR(lines[i]["lr"].get<double>(), rate, 1e-12) << i;
    before += wanted[i];
    EXPECT_EQ(lines[i]["samples"], before);
  }
  EXPECT_EQ(before, 58);  // 3 samples are no whole batch
  for (const char* cut : {"4", "9"}) {
    const std::string name = std::string("cut") + cut;
    ASSERT_EQ(Job(ramp + saving(name) + Words{"--exit-interval", cut}).run(), 75);
    ASSERT_EQ(Job(ramp + saving(name)).run(), 0);
    EXPECT_EQ(directory_bytes(last(name, 13)), directory_bytes(last("whole", 13))) << cut;
  }
  // R07: another ramp or unit is a contradiction; the flags say who wins.
  const Words other = ramp + saving("whole") + Words{"--rampup-batch-size", "4", "4", "30"};
  EXPECT_THROW((void)Job(other).start(), UsageError);
  EXPECT_NO_THROW((void)Job(other + Words{"--override-opt_param-scheduler"}).start());
  EXPECT_EQ(Job(other + Words{"--use-checkpoint-opt_param-scheduler"}).start().options.run.ramp,
            (BatchRamp{.start = 2, .increment = 2, .samples = 30}));
}

TEST_F(Training, tokens_count_as_samples_do) {
  const Words common = small_model() + Words{"--data-path",
                                             scratch_ / "data.h5",
                                             "--seq-length",
                                             "16",
                                             "--micro-batch-size",
                                             "4",
                                             "--global-batch-size",
                                             "8",
                                             "--lr",
                                             "1e-2",
                                             "--lr-decay-style",
                                             "cosine",
                                             "--eval-iters",
                                             "0",
                                             "--quiet"};
  ASSERT_EQ(
      Job(common + saving("tokens") +
          Words{"--train-tokens", "1000", "--lr-warmup-tokens", "256", "--lr-decay-tokens", "896"})
          .run(),
      0);
  ASSERT_EQ(
      Job(common + saving("samples") +
          Words{"--train-samples", "62", "--lr-warmup-samples", "16", "--lr-decay-samples", "56"})
          .run(),
      0);
  ASSERT_EQ(Job(common + saving("iters") +
                Words{"--train-iters", "7", "--lr-warmup-iters", "2", "--lr-decay-iters", "7"})
                .run(),
            0);
  for (const char* name : {"tokens", "samples"}) {
    const auto lines = metrics(name), wanted = metrics("iters");
    ASSERT_EQ(lines.size(), 7U);  // R09: 7 batches of 8 x 16 fit into 1,000
    for (std::size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(lines[i]["loss"], wanted[i]["loss"]) << name << ", step " << i;
      EXPECT_EQ(lines[i]["lr"], wanted[i]["lr"]) << name << ", step " << i;
    }
    EXPECT_THROW((void)Job(common + saving(name) + Words{"--train-iters", "9"}).start(),
                 UsageError);
  }
}

TEST_F(Training, time_that_is_up_ends_a_run_after_a_checkpoint) {
  const Words words = base() + saving("run");
  ASSERT_EQ(Job(words + Words{"--exit-duration-in-mins", "1e-9"}).run(), 75);
  EXPECT_EQ(newest_iteration(scratch_ / "run"), 1);
  ASSERT_EQ(Job(words + Words{"--exit-duration-in-mins", "1000"}).run(), 0);
  EXPECT_EQ(newest_iteration(scratch_ / "run"), 12);
}

}  // namespace
}  // namespace mt
