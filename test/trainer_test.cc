// Training: what a step, an evaluation, a stop and a resumption must do. All jobs are tiny.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "ckpt/parameters.h"
#include "training_job.h"

namespace mt {
namespace {

using testing::directory_bytes;
using testing::Job;
using testing::read_metrics;
using testing::Scratch;
using testing::small_model;
using testing::small_run;
using testing::spill;
using testing::tensor_digests;
using testing::Training;
using testing::Words;
using testing::write_shard;

TEST_F(Training, loss_falls) {
  ASSERT_EQ(
      Job(base() + saving("run") + Words{"--train-iters", "60", "--lr-decay-style", "constant"})
          .run(),
      0);
  const auto lines = metrics("run");
  ASSERT_EQ(lines.size(), 60U);
  // The start is no better than chance among 257 tokens; ten kinds of token are used.
  EXPECT_NEAR(lines[0]["loss"].get<double>(), std::log(257.0), 0.1);
  EXPECT_LT(lines[59]["loss"].get<double>(), std::log(10.0));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["step"], i + 1);
    EXPECT_EQ(lines[i]["samples"], 8 * (i + 1));
    EXPECT_EQ(lines[i]["tokens"], 8 * 16 * (i + 1));
    EXPECT_GT(lines[i]["tokens_per_second"].get<double>(), 0);
    EXPECT_GT(lines[i]["model_flops_per_second"].get<double>(), 0);
    EXPECT_GT(lines[i]["peak_memory_bytes"].get<std::int64_t>(), 0);
    EXPECT_GT(lines[i]["predicted_memory_bytes"].get<std::int64_t>(), 0);
  }
}

TEST_F(Training, rate_follows_the_schedule) {
  ASSERT_EQ(Job(base() + saving("run") + Words{"--min-lr", "1e-3"}).run(), 0);
  const auto lines = metrics("run");
  ASSERT_EQ(lines.size(), 12U);
  for (int k = 0; k < 12; ++k) {
    const double cosine = 0.5 * (1 + std::cos(std::acos(-1.0) * (k - 3) / 9.0));
    const double wanted = k <= 3 ? 1e-2 * k / 3 : 1e-3 + 9e-3 * cosine;
    EXPECT_NEAR(lines[static_cast<std::size_t>(k)]["lr"].get<double>(), wanted, 1e-12) << k;
  }
}

TEST_F(Training, micro_batch_size_changes_no_bit) {
  // Windows with unequal numbers of counted tokens, which a mean of means would weigh wrongly.
  const Words packed{"--eod-mask-loss", "--reset-position-ids", "--reset-attention-mask"};
  std::map<std::string, std::string> wanted;
  std::vector<Json> lines;
  for (const char* micro : {"8", "4", "2", "1"}) {
    const std::string name = std::string("micro") + micro;
    ASSERT_EQ(Job(base() + packed + saving(name) + Words{"--micro-batch-size", micro}).run(), 0);
    const auto found = metrics(name);
    if (wanted.empty()) {
      wanted = directory_bytes(last(name));
      lines = found;
      continue;
    }
    EXPECT_EQ(directory_bytes(last(name)), wanted) << micro;
    ASSERT_EQ(found.size(), lines.size());
    for (std::size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(found[i]["grad_norm"], lines[i]["grad_norm"]) << micro << ", step " << i + 1;
      // The sum over tokens is cut into micro-batches: double rounding.
      EXPECT_NEAR(found[i]["loss"].get<double>(), lines[i]["loss"].get<double>(), 1e-12);
    }
  }
}

TEST_F(Training, a_global_batch_is_not_a_mean_of_means) {
  // The loss of step 1 equals that of the same 8 samples in one evaluation-like sum.
  const Words packed{"--eod-mask-loss", "--hidden-dropout", "0", "--attention-dropout", "0"};
  ASSERT_EQ(Job(base() + packed + saving("run")).run(), 0);
  Job job(base() + packed);
  TrainingStart start = job.start();
  const auto world = make_single_communicator();
  Pool pool(cpu_device("", 1));
  GptStage model(start.options.model, {.first_layer = 0, .last_layer = 2}, *world, pool,
                 Use::kInference);
  model.initialize(1234);
  double sum = 0;
  double count = 0;
  for (std::int64_t i = 0; i < 8; ++i) {
    std::vector<std::int32_t> window(17);
    start.data->train().sample({.source = 0, .index = i}, window.data());
    std::vector<float> nll(16);
    model.token_nll(
        {.batch = 1, .sequence = 16, .tokens = window.data(), .labels = window.data() + 1},
        nll.data());
    for (std::size_t t = 0; t < 16; ++t) {
      if (window[t] == start.data->shard().end_of_document()) continue;
      sum += nll[t];
      count += 1;
    }
  }
  ASSERT_LT(count, 128);  // some were masked, else this shows nothing
  EXPECT_NEAR(metrics("run")[0]["loss"].get<double>(), sum / count, 1e-6);
}

TEST_F(Training, same_bytes_twice_and_with_one_thread) {
  ASSERT_EQ(Job(base() + saving("a"), 2).run(), 0);
  ASSERT_EQ(Job(base() + saving("b"), 2).run(), 0);
  ASSERT_EQ(Job(base() + saving("c"), 1).run(), 0);
  const auto wanted = directory_bytes(last("a"));
  ASSERT_GE(wanted.size(), 3U);
  EXPECT_EQ(directory_bytes(last("b")), wanted);
  EXPECT_EQ(directory_bytes(last("c")), wanted);
  ASSERT_EQ(Job(base() + saving("d") + Words{"--seed", "1235"}).run(), 0);
  EXPECT_NE(tensor_digests(last("d")), tensor_digests(last("a")));
}

TEST_F(Training, resumed_at_any_step_it_is_the_same_run) {
  ASSERT_EQ(Job(base() + saving("whole")).run(), 0);
  const auto wanted = directory_bytes(last("whole"));
  const auto lines = metrics("whole");
  for (int place = 1; place < 12; ++place) {
    const std::string name = "cut" + std::to_string(place);
    // Lives of `place` steps: 12 lives of one step, 6 of two, ...
    const Words words = base() + saving(name) + Words{"--exit-interval", std::to_string(place)};
    int lives = 0;
    int status = 75;
    for (; status == 75; ++lives) status = Job(words).run();
    EXPECT_EQ(status, 0);
    EXPECT_EQ(lives, (12 + place - 1) / place);
    EXPECT_EQ(directory_bytes(last(name)), wanted) << "cut every " << place;
    const auto found = metrics(name);
    ASSERT_EQ(found.size(), lines.size());
    for (std::size_t i = 0; i < lines.size(); ++i) {
      for (const char* key : {"step", "loss", "grad_norm", "lr"}) {
        EXPECT_EQ(found[i][key], lines[i][key]) << place << ", line " << i;
      }
    }
  }
}

TEST_F(Training, resumes_from_weights_and_moments_not_from_the_seed_alone) {
  ASSERT_EQ(Job(base() + saving("whole")).run(), 0);
  ASSERT_EQ(Job(base() + saving("run") + Words{"--exit-interval", "6"}).run(), 75);
  ASSERT_EQ(Job(base() + saving("run") + Words{"--no-load-optim"}).run(), 0);
  EXPECT_NE(tensor_digests(last("run")), tensor_digests(last("whole")));
}

TEST_F(Training, signals_stop_after_the_step_and_lose_nothing) {
  ASSERT_EQ(Job(base() + saving("whole")).run(), 0);
  const auto wanted = directory_bytes(last("whole"));
  const struct { int signal, status; } cases[] = {{SIGUSR1, 75}, {SIGTERM, 75}, {SIGINT, 130}};
  for (const auto& c : cases) {
    for (const int when : {0, 1, 7}) {
      const std::string name = cat("signal", c.signal, "-", when);
      Job stopped(base() + saving(name));
      stopped.stop_at([&](int asked) { return asked >= when ? c.signal : 0; });
      EXPECT_EQ(stopped.run(), c.status);
      EXPECT_FALSE(find_checkpoint(scratch_ / name).absent);
      EXPECT_EQ(Job(base() + saving(name)).run(), 0);
      EXPECT_EQ(directory_bytes(last(name)), wanted) << name;
    }
  }
  Job unsaved(base());
  unsaved.stop_at([](int asked) { return asked >= 3 ? SIGTERM : 0; });
  EXPECT_EQ(unsaved.run(), 128 + SIGTERM);
}

TEST_F(Training, evaluates_exactly_what_was_asked_for) {
  ASSERT_EQ(Job(base() + saving("run") +
                Words{"--eval-iters", "3", "--eval-interval", "5", "--split", "60,30,10"})
                .run(),
            0);
  std::vector<std::int64_t> validated, tested;
  for (const Json& line : metrics("run")) {
    for (const char* name : {"validation", "test"}) {
      const std::string key = name;
      if (!line.contains(key + "_loss")) continue;
      (key == "test" ? tested : validated).push_back(line["step"].get<std::int64_t>());
      EXPECT_EQ(line[key + "_samples"], 3 * 8);
      EXPECT_EQ(line[key + "_tokens"], 3 * 8 * 16);
      EXPECT_NEAR(line[key + "_perplexity"].get<double>(),
                  std::exp(line[key + "_loss"].get<double>()), 1e-9);
      EXPECT_FALSE(line.contains("loss"));
    }
  }
  EXPECT_EQ(validated, (std::vector<std::int64_t>{5, 10, 12}));
  EXPECT_EQ(tested, (std::vector<std::int64_t>{12}));
}

TEST_F(Training, an_evaluation_without_a_target_is_an_error_and_not_a_loss_of_0) {
  const auto tokenizer = make_bpe_tokenizer(testing::byte_level_files({}), "test vocabulary");
  TokenShardWriter writer({.path = scratch_ / "ends.h5", .replace = false, .options = {}},
                          *tokenizer);
  const std::vector<std::int32_t> ends(40, tokenizer->end_of_document());
  writer.add_document(ends.data(), ends.size(), -1);
  writer.close();
  const Words run = small_model() + small_run() + Words{"--train-data-path", scratch_ / "data.h5",
                                                        "--valid-data-path", scratch_ / "ends.h5",
                                                        "--eval-iters",      "1",
                                                        "--eod-mask-loss"};
  EXPECT_THROW(static_cast<void>(Job(run).run()), DataError);
}

TEST_F(Training, a_perplexity_beyond_all_numbers_is_null_and_stops_nothing) {
  Job job(base() + saving("run") +
          Words{"--eval-iters", "1", "--eval-interval", "1", "--train-iters", "1", "--split",
                "60,40,0", "--lr-warmup-iters", "0", "--lr", "1e-12"});
  ASSERT_EQ(job.run([](TrainingRun& run) {
    for (const Parameter* parameter : run.parameters()) {
      if (parameter->segments.front().name != "final_layernorm.weight") continue;
      for (std::int64_t i = 0; i < 16; ++i) parameter->value.as<float>()[i] = 1e6F;
    }
  }),
            0);
  const Json line = metrics("run").back();
  EXPECT_GT(line["validation_loss"].get<double>(), 710);
  EXPECT_TRUE(line["validation_perplexity"].is_null());
}

TEST_F(Training, full_validation_is_the_mean_over_every_ordered_window) {
  write_shard(scratch_ / "valid.h5", 9, 7);
  const Words data = small_model() + small_run() +
                     Words{"--train-data-path",
                           scratch_ / "data.h5",
                           "--valid-data-path",
                           scratch_ / "valid.h5",
                           "--full-validation",
                           "--eval-interval",
                           "12"};
  ASSERT_EQ(Job(data + saving("run")).run(), 0);
  const auto lines = metrics("run");
  ASSERT_EQ(lines.size(), 13U);

  const TokenShardReader shard(scratch_ / "valid.h5");
  const std::int64_t windows = (shard.tokens() - 1) / 16;
  ASSERT_NE(windows % 4, 0);  // the last micro-batch is a short one
  const CheckpointReader reader(last("run"));
  const ModelConfig config = ModelConfig::from_json(reader.model(), "manifest");
  const auto world = make_single_communicator();
  Pool pool(cpu_device("", 1));
  GptStage model(config, {.first_layer = 0, .last_layer = 2}, *world, pool, Use::kInference);
  load_parameters(reader, model.parameters(), true);
  double sum = 0;
  for (std::int64_t i = 0; i < windows; ++i) {
    std::vector<std::int32_t> window(17);
    shard.read(i * 16, 17, window.data());
    std::vector<float> nll(16);
    model.token_nll(
        {.batch = 1, .sequence = 16, .tokens = window.data(), .labels = window.data() + 1},
        nll.data());
    for (const float value : nll) sum += value;
  }
  EXPECT_EQ(lines[12]["validation_samples"], windows);
  EXPECT_EQ(lines[12]["validation_tokens"], windows * 16);
  EXPECT_NEAR(lines[12]["validation_loss"].get<double>(), sum / static_cast<double>(windows * 16),
              1e-12);
}

TEST_F(Training, a_validation_that_was_cut_short_is_made_up_for) {
  const Words words =
      base() + Words{"--eval-iters", "4", "--eval-interval", "6", "--split", "70,30,0"};
  ASSERT_EQ(Job(words + saving("whole")).run(), 0);
  const std::size_t lines = metrics("whole").size();
  for (int when = 2; when < 40; when += 3) {
    const std::string name = cat("cut", when);
    Job stopped(words + saving(name));
    stopped.stop_at([&](int asked) { return asked >= when ? SIGTERM : 0; });
    const int status = stopped.run();
    if (status == 75) {
      EXPECT_EQ(Job(words + saving(name)).run(), 0) << when;
    } else {
      EXPECT_EQ(status, 0);
    }
    EXPECT_EQ(metrics(name).size(), lines) << when;
    // One stopped in the last validation is saved before it.
    EXPECT_EQ(tensor_digests(last(name)), tensor_digests(last("whole"))) << when;
  }
}

TEST_F(Training, a_planted_value_that_is_not_finite_stops_its_step_and_is_never_saved) {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity()};
  std::size_t count = 0;
  {
    Job job(base());
    (void)job.run([&](TrainingRun& run) { count = run.parameters().size(); });
  }
  ASSERT_GT(count, 10U);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = cat("bad", i);
    std::string segment;
    Job job(base() + saving(name) + Words{"--save-interval", "1"});
    try {
      const int status = job.run([&](TrainingRun& run) {
        const Parameter& parameter = *run.parameters()[i];
        segment = parameter.segments.front().name;
        parameter.value.as<float>()[0] = bad[i % 2];
      });
      ADD_FAILURE() << segment << ": status " << status;
    } catch (const NumericError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("iteration 1:"), std::string::npos) << what;
      EXPECT_NE(what.find(segment), std::string::npos) << what;
      EXPECT_NE(what.find("no checkpoint"), std::string::npos) << what;
    }
    EXPECT_TRUE(find_checkpoint(scratch_ / name).absent) << segment;
  }
}

TEST_F(Training, a_value_that_no_step_touches_is_not_saved_either) {
  // Positions behind the sequence enter neither loss nor gradient.
  Job job(base() + saving("run") + Words{"--max-position-embeddings", "32"});
  std::string segment;
  try {
    const int status = job.run([&](TrainingRun& run) {
      for (Parameter* parameter : run.parameters()) {
        if (parameter->segments.front().global_shape != Shape{32, 16}) continue;
        segment = parameter->segments.front().name;
        parameter->value.as<float>()[31 * 16] = std::numeric_limits<float>::quiet_NaN();
      }
    });
    ADD_FAILURE() << status;
  } catch (const NumericError& error) {
    ASSERT_FALSE(segment.empty());
    EXPECT_NE(std::string(error.what()).find(segment), std::string::npos) << error.what();
  }
  EXPECT_TRUE(find_checkpoint(scratch_ / "run").absent);
}

TEST_F(Training, a_step_takes_nothing_from_the_system) {
  ASSERT_EQ(Job(base() + saving("run") + Words{"--train-iters", "20"}).run(), 0);
  const auto lines = metrics("run");
  for (std::size_t i = 3; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["system_allocations"], lines[2]["system_allocations"]) << i;
    EXPECT_EQ(lines[i]["peak_memory_bytes"], lines[2]["peak_memory_bytes"]) << i;
  }
}

TEST_F(Training, keeps_the_newest_checkpoints) {
  ASSERT_EQ(Job(base() + saving("run") + Words{"--save-interval", "2", "--keep", "2"}).run(), 0);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(scratch_ / "run")) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("iter_", 0) == 0) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"iter_0000010", "iter_0000012"}));
}

TEST_F(Training, metrics_after_a_crash_hold_each_step_once) {
  ASSERT_EQ(Job(base() + saving("run") + Words{"--exit-interval", "6"}).run(), 75);
  // Steps 7 and 8 were done and reported, and half of 9, when the process died.
  std::string text = testing::slurp(scratch_ / "run.jsonl");
  spill(scratch_ / "run.jsonl", text + "{\"step\":7,\"loss\":1}\n{\"step\":8,\"loss\":1}\n{\"ste");
  ASSERT_EQ(Job(base() + saving("run")).run(), 0);
  const auto lines = metrics("run");
  ASSERT_EQ(lines.size(), 12U);
  for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(lines[i]["step"], i + 1);
}

TEST_F(Training, finetuning_starts_from_the_weights_alone) {
  ASSERT_EQ(Job(base() + saving("run")).run(), 0);
  const Words tune = small_run() + Words{"--data-path",
                                         scratch_ / "data.h5",
                                         "--load",
                                         scratch_ / "run",
                                         "--finetune",
                                         "--save",
                                         scratch_ / "tuned",
                                         "--lr",
                                         "1e-9",
                                         "--train-iters",
                                         "1",
                                         "--lr-warmup-iters",
                                         "0",
                                         "--metrics",
                                         scratch_ / "tuned.jsonl",
                                         "--seed",
                                         "5"};
  ASSERT_EQ(Job(tune).run(), 0);
  const auto lines = metrics("tuned");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["step"], 1);
  EXPECT_EQ(lines[0]["samples"], 8);
  EXPECT_LT(lines[0]["loss"].get<double>(), metrics("run")[0]["loss"].get<double>() - 0.5);
}

}  // namespace
}  // namespace mt
