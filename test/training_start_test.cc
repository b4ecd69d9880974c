// What a training job refuses before its first step, with the class of the error and what the
// message names.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "training_job.h"

namespace mt {
namespace {

using testing::Job;
using testing::Scratch;
using testing::small_model;
using testing::small_run;
using testing::Words;
using testing::write_shard;

class TrainingRefusals : public ::testing::Test {
 protected:
  void SetUp() override { write_shard(scratch_ / "data.h5", 40); }

  [[nodiscard]] Words base() const {
    return small_model() + small_run() + Words{"--data-path", scratch_ / "data.h5"};
  }
  [[nodiscard]] Words folder(const std::string& name) const {
    return {"--save", scratch_ / name, "--load", scratch_ / name};
  }

  void expect(const Words& words, ExitStatus status, const Words& named) {
    try {
      const TrainingStart start = Job(words).start();
      ADD_FAILURE() << "accepted: " << words.back();
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_EQ(error.status(), status) << what;
      for (const std::string& part : named) {
        EXPECT_NE(what.find(part), std::string::npos) << "\"" << part << "\" not in: " << what;
      }
      EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    }
  }
  void refused(const Words& more, const Words& named) {
    expect(base() + more, ExitStatus::kUsage, named);
  }

  Scratch scratch_;
};

TEST_F(TrainingRefusals, sizes_that_do_not_fit_come_with_the_arithmetic) {
  refused({"--global-batch-size", "10"},
          {"--global-batch-size 10: not divisible by --micro-batch-size 4: 10 = 2 * 4 + 2"});
  refused({"--seq-length", "17"}, {"--seq-length 17", "--max-position-embeddings 16"});
  refused({"--num-attention-heads", "3"}, {"--num-attention-heads 3", "16"});
  refused({"--micro-batch-size", "0"}, {"--micro-batch-size 0"});
  refused({"--train-iters", "0"}, {"--train-iters 0"});
  refused({"--train-iters", "4000000000000000000"}, {"--train-iters 4000000000000000000"});
  refused({"--seed", "4294967296"}, {"--seed 4294967296"});
  refused({"--seed", "-1"}, {"--seed -1"});
  refused({"--eval-interval", "0"}, {"--eval-interval 0"});
  refused({"--lr", "0"}, {"--lr 0"});
  refused({"--precision", "bf16"}, {"--precision bf16", "fp32"});
  refused({"--fp16"}, {"--precision fp16"});
  refused({"--keep", "3"}, {"--keep", "--save"});
  refused({"--finetune"}, {"--finetune", "--load"});
  refused({"--vocab-file", "x"}, {"--merge-file"});
}

TEST_F(TrainingRefusals, absurd_sizes_are_refused_with_an_estimate) {
  refused({"--hidden-size", "100000", "--num-layers", "100"}, {"GiB", "needs about"});
  refused({"--micro-batch-size", "100000000", "--global-batch-size", "100000000"},
          {"GiB", "needs about"});
  EXPECT_THROW((void)Job(base() + Words{"--hidden-size", "4000000000000"}).start(), UsageError);
  EXPECT_GT(available_memory(), 1 << 20);
  EXPECT_LT(available_memory(), std::int64_t{1} << 50);
}

TEST_F(TrainingRefusals, parts_of_the_data) {
  write_shard(scratch_ / "one.h5", 1);
  const Words one = small_model() + small_run() + Words{"--data-path", scratch_ / "one.h5"};
  const Words evaluated{"--eval-iters", "2"};
  // One document: training takes it, nothing is left to validate on.
  EXPECT_NO_THROW((void)Job(one).start());
  expect(one + evaluated, ExitStatus::kUsage, {"validation", "--split 969,30,1", "one.h5"});
  expect(one + Words{"--split", "0,1,0"}, ExitStatus::kUsage, {"training", "--split 0,1,0"});
  expect(base() + evaluated + Words{"--split", "100,0,0"}, ExitStatus::kUsage, {"validation"});
  // A test part that was asked for in so many words must be there; the default's may be empty.
  expect(base() + evaluated + Words{"--split", "900,99,1"}, ExitStatus::kUsage, {"test"});
  EXPECT_NO_THROW((void)Job(base() + evaluated + Words{"--split", "90,10,0"}).start());
  refused({"--split", "a,b"}, {"--split a,b"});
  expect(small_model() + small_run(), ExitStatus::kUsage, {"--data-path"});
  refused({"--data-path", "0.5", scratch_ / "one.h5", "0.5"}, {"--data-path", "3 words"});
  refused({"--data-path", "0.5", scratch_ / "one.h5", "-1", scratch_ / "data.h5"},
          {"--data-path", "weight above 0", "-1"});
  // D10: a shard once, a copy of it never, and no part of it in two roles.
  refused({"--data-path", "1", scratch_ / "data.h5", "2", scratch_ / "data.h5"},
          {"data.h5", "same documents", "once"});
  std::filesystem::copy_file(scratch_ / "data.h5", scratch_ / "copy.h5");
  refused({"--data-path", "1", scratch_ / "data.h5", "2", scratch_ / "copy.h5"},
          {"copy.h5", "same documents", "data.h5"});
  refused({"--valid-data-path", scratch_ / "one.h5"}, {"--valid-data-path", "--split"});
  const Words train{"--train-data-path", scratch_ / "data.h5"};
  expect(small_model() + small_run() + train + evaluated, ExitStatus::kUsage,
         {"--valid-data-path"});
  expect(small_model() + small_run() + train + evaluated +
             Words{"--valid-data-path", scratch_ / "." + ("/" + std::string("data.h5"))},
         ExitStatus::kUsage, {"--valid-data-path", "same file", "--train-data-path"});
  expect(small_model() + small_run() + Words{"--data-path", scratch_ / "none.h5"},
         ExitStatus::kEnvironment, {"none.h5"});
}

TEST_F(TrainingRefusals, lengths_ramps_and_units) {
  const Words samples = small_model() + Words{"--data-path",
                                              scratch_ / "data.h5",
                                              "--seq-length",
                                              "16",
                                              "--micro-batch-size",
                                              "2",
                                              "--global-batch-size",
                                              "8",
                                              "--lr",
                                              "1e-2",
                                              "--eval-iters",
                                              "0",
                                              "--quiet"};
  const auto refuse = [&](const Words& words, const Words& parts) {
    expect(samples + words, ExitStatus::kUsage, parts);
  };
  refuse({}, {"--train-iters 0", "--train-samples"});
  refuse({"--train-iters", "3", "--train-samples", "24"}, {"--train-samples 24", "--train-iters"});
  refuse({"--train-samples", "-24"}, {"--train-samples -24"});
  refuse({"--train-samples", "7"}, {"--train-samples 7", "8 samples"});
  refuse({"--train-tokens", "127"}, {"--train-tokens 127", "16 tokens"});
  refuse({"--train-samples", "24", "--lr-warmup-iters", "1"}, {"--lr-warmup-iters 1", "samples"});
  refuse({"--train-iters", "3", "--lr-decay-samples", "24"}, {"--lr-decay-samples 24", "iters"});
  refuse({"--train-samples", "24", "--lr-warmup-samples", "25"}, {"--lr-warmup-samples 25", "24"});
  refuse({"--train-iters", "3", "--rampup-batch-size", "2", "2", "8"},
         {"--rampup-batch-size", "--train-samples"});
  const auto ramp = [&](const std::string& a, const std::string& b, const std::string& c,
                        const Words& parts) {
    refuse({"--train-samples", "80", "--rampup-batch-size", a, b, c}, parts);
  };
  ramp("4", "3", "40", {"--rampup-batch-size 4 3 40", "no way", "8"});
  ramp("3", "5", "40", {"--rampup-batch-size", "start 3", "--micro-batch-size 2"});
  ramp("0", "2", "40", {"--rampup-batch-size 0 2 40", "above 0"});
  ramp("10", "2", "40", {"--rampup-batch-size 10 2 40", "no way"});
  refuse({"--train-samples", "80", "--rampup-batch-size", "2", "2"}, {"found 2 words"});
  refuse({"--train-samples", "80", "--exit-duration-in-mins", "-1"},
         {"--exit-duration-in-mins -1"});
}

TEST_F(TrainingRefusals, the_suffix_of_a_shard_may_be_left_out) {
  const Words words = small_model() + small_run() + Words{"--data-path", scratch_ / "data"};
  EXPECT_EQ(Job(words).start().data->shard().documents(), 40);
}

TEST_F(TrainingRefusals, tokenizers_that_differ) {
  write_shard(scratch_ / "other.h5", 10, 1, {"ab"});
  const Words both{"--train-data-path",   scratch_ / "data.h5", "--valid-data-path",
                   scratch_ / "other.h5", "--eval-iters",       "1"};
  expect(small_model() + small_run() + both, ExitStatus::kData, {"other.h5", "tokenizer"});
  const TokenizerFiles files = testing::byte_level_files({"ab"});
  testing::spill(scratch_ / "vocab.json", files.vocab);
  testing::spill(scratch_ / "merges.txt", files.merges);
  const Words named{"--vocab-file", scratch_ / "vocab.json", "--merge-file",
                    scratch_ / "merges.txt"};
  expect(base() + named, ExitStatus::kData, {"--vocab-file", "vocab.json"});
  const TokenizerFiles same = testing::byte_level_files();
  testing::spill(scratch_ / "vocab.json", same.vocab);
  testing::spill(scratch_ / "merges.txt", same.merges);
  EXPECT_NO_THROW((void)Job(base() + named).start());

  ASSERT_EQ(Job(base() + folder("run") + Words{"--exit-interval", "4"}).run(), 75);
  expect(small_run() + folder("run") + Words{"--data-path", scratch_ / "other.h5"},
         ExitStatus::kData, {"other.h5", "tokenizer", "iter_0000004"});
}

TEST_F(TrainingRefusals, what_contradicts_the_checkpoint) {
  ASSERT_EQ(Job(base() + folder("run") + Words{"--exit-interval", "4"}).run(), 75);
  const Words go =
      Words{"--data-path", scratch_ / "data.h5", "--micro-batch-size", "4", "--eval-iters", "0"} +
      folder("run");
  {  // Nothing needs to be said again.
    const TrainingStart start = Job(go).start();
    EXPECT_EQ(start.options.run.length.iters, 12);
    EXPECT_EQ(start.options.run.global_batch_size, 8);
    EXPECT_EQ(start.options.schedule.lr, 1e-2);
    EXPECT_EQ(start.options.schedule.warmup.iters, 3);
    EXPECT_EQ(start.options.model.hidden_size, 16);
    EXPECT_EQ(start.state.consumed_samples, 32);
  }
  const Words overriding{"--override-opt_param-scheduler"};
  const std::vector<std::pair<std::string, std::string>> always = {
      {"hidden-size", "32"}, {"num-layers", "3"}, {"num-attention-heads", "4"},
      {"seed", "7"},         {"seq-length", "8"}, {"max-position-embeddings", "32"}};
  for (const auto& [option, value] : always) {
    for (const Words& more : {Words{}, overriding}) {
      expect(go + Words{"--" + option, value} + more, ExitStatus::kUsage, {"--" + option});
    }
  }
  expect(go + Words{"--eod-mask-loss"}, ExitStatus::kUsage, {"--eod-mask-loss"});
  const std::vector<std::pair<std::string, std::string>> unless = {
      {"lr", "1e-3"},          {"min-lr", "1e-4"},           {"lr-decay-style", "linear"},
      {"weight-decay", "0.1"}, {"lr-warmup-iters", "2"},     {"lr-warmup-fraction", "0.5"},
      {"adam-beta1", "0.8"},   {"adam-beta2", "0.95"},       {"adam-eps", "1e-6"},
      {"clip-grad", "2"},      {"global-batch-size", "16"},  {"lr-decay-iters", "20"},
      {"hidden-dropout", "0"}, {"attention-dropout", "0.2"}, {"train-iters", "24"}};
  for (const auto& [option, value] : unless) {
    const Words wish = go + Words{"--" + option, value};
    const std::string named = option == "lr-warmup-fraction" ? "lr-warmup-iters" : option;
    expect(wish, ExitStatus::kUsage, {"--" + named, "--override-opt_param-scheduler"});
    EXPECT_NO_THROW((void)Job(wish + overriding).start()) << option;
  }
  // The same values are no contradiction.
  EXPECT_NO_THROW((void)Job(go + small_model() + small_run()).start());
}

TEST_F(TrainingRefusals, a_longer_run_says_what_becomes_of_the_rate) {
  ASSERT_EQ(Job(base() + folder("run") + Words{"--exit-interval", "4"}).run(), 75);
  const Words longer = base() + folder("run") + Words{"--train-iters", "24"};
  expect(longer, ExitStatus::kUsage, {"--train-iters 24", "--lr-decay-iters 12"});
  EXPECT_EQ(Job(longer + Words{"--lr-decay-iters", "12"}).start().options.schedule.decay.iters, 12);
  EXPECT_EQ(
      Job(longer + Words{"--override-opt_param-scheduler"}).start().options.schedule.decay.iters,
      24);
  expect(base() + folder("run") + Words{"--train-iters", "3", "--lr-decay-iters", "12"},
         ExitStatus::kUsage, {"--train-iters 3", "4"});
}

TEST_F(TrainingRefusals, other_data) {
  ASSERT_EQ(Job(base() + folder("run") + Words{"--exit-interval", "4"}).run(), 75);
  write_shard(scratch_ / "more.h5", 41);
  write_shard(scratch_ / "other.h5", 40, 2);
  for (const char* name : {"more.h5", "other.h5"}) {
    expect(small_run() + folder("run") + Words{"--data-path", scratch_ / name}, ExitStatus::kData,
           {name, "--finetune"});
  }
  std::filesystem::rename(scratch_ / "data.h5", scratch_ / "moved.h5");
  const Words moved = small_run() + folder("run") + Words{"--data-path", scratch_ / "moved.h5"};
  EXPECT_NO_THROW((void)Job(moved).start());  // the content counts, not the name
}

TEST_F(TrainingRefusals, folders) {
  expect(base() + Words{"--load", scratch_ / "none"}, ExitStatus::kEnvironment, {"none"});
  expect(base() + Words{"--load", scratch_ / "none", "--save", scratch_ / "run"},
         ExitStatus::kEnvironment, {"none"});
  std::filesystem::create_directory(scratch_ / "empty");
  expect(base() + Words{"--load", scratch_ / "empty"}, ExitStatus::kEnvironment, {"empty"});
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "run"));  // nothing was written
  testing::spill(scratch_ / "file", "x");
  expect(base() + Words{"--save", scratch_ / "file"}, ExitStatus::kEnvironment, {"file"});
  ASSERT_EQ(Job(base() + folder("run") + Words{"--exit-interval", "4"}).run(), 75);
  expect(base() + Words{"--save", scratch_ / "run"}, ExitStatus::kUsage,
         {"--save", "iteration 4", "--load"});
  EXPECT_NO_THROW(
      (void)Job(base() + Words{"--load", scratch_ / "run", "--save", scratch_ / "on"}).start());

  Job first(base() + folder("run"));
  const TrainingStart holder = first.start();
  expect(base() + folder("run"), ExitStatus::kEnvironment, {"run"});
}

TEST_F(TrainingRefusals, metrics_that_are_not_ours) {
  testing::spill(scratch_ / "foreign", "{\"step\":1}\n");
  EXPECT_THROW((void)Job(base() + Words{"--metrics", scratch_ / "foreign"}).run(), UsageError);
  for (const char* content : {"no json\n", "no newline", "{\"loss\":1}\n", "[1]\n"}) {
    testing::spill(scratch_ / "foreign", content);
    const Words words = base() + folder("run") + Words{"--metrics", scratch_ / "foreign"};
    EXPECT_THROW((void)Job(words).run(), DataError) << content;
    EXPECT_EQ(testing::slurp(scratch_ / "foreign"), content);
  }
  EXPECT_THROW((void)Job(base() + Words{"--metrics", "/dev/full"}).run(), EnvironmentError);
  EXPECT_THROW((void)Job(base() + Words{"--metrics", scratch_ / "no/such"}).run(),
               EnvironmentError);
}

}  // namespace
}  // namespace mt
