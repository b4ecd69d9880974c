// The learning rate against Megatron-LM's rule, written out once more per style.
#include "optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace mt {
namespace {

LrScheduleOptions schedule(const std::string& style, std::int64_t warmup, std::int64_t decay) {
  LrScheduleOptions options;
  options.lr = 1e-3;
  options.min_lr = 1e-4;
  options.lr_decay_style = style;
  options.warmup.iters = warmup;
  options.decay.iters = decay;
  options.check(1000);
  return options;
}

TEST(lr_schedule, warm_up_starts_at_zero_and_ends_at_the_top) {
  for (const char* style : {"constant", "linear", "cosine"}) {
    const auto options = schedule(style, 50, 1000);
    EXPECT_EQ(learning_rate(options, 0), 0.0);
    EXPECT_DOUBLE_EQ(learning_rate(options, 1), 2e-5);
    EXPECT_EQ(learning_rate(options, 50), 1e-3);
    for (std::int64_t step = 1; step <= 50; ++step) {
      EXPECT_GT(learning_rate(options, step), learning_rate(options, step - 1));
    }
  }
}

TEST(lr_schedule, decays_follow_their_curves) {
  const auto linear = schedule("linear", 50, 250), cosine = schedule("cosine", 50, 250);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 100), 1e-4 + 0.75 * 9e-4);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 150), 1e-4 + 0.5 * 9e-4);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 150), 1e-4 + 0.5 * 9e-4);
  EXPECT_NEAR(learning_rate(cosine, 100), 1e-4 + 9e-4 * (0.5 + std::sqrt(0.125)), 1e-15);
  EXPECT_NEAR(learning_rate(cosine, 200), 1e-4 + 9e-4 * (0.5 - std::sqrt(0.125)), 1e-15);
  for (const auto& options : {linear, cosine}) {
    EXPECT_NEAR(learning_rate(options, 250), 1e-4, 1e-18);
    EXPECT_EQ(learning_rate(options, 251), 1e-4);
    EXPECT_EQ(learning_rate(options, 1'000'000'000'000), 1e-4);
  }
  EXPECT_EQ(learning_rate(schedule("constant", 50, 250), 100'000), 1e-3);
}

TEST(lr_schedule, without_warm_up_step_zero_moves) {
  EXPECT_EQ(learning_rate(schedule("linear", 0, 100), 0), 1e-3);
  EXPECT_EQ(learning_rate(schedule("cosine", 0, 100), 0), 1e-3);
}

TEST(lr_schedule, a_decay_as_long_as_the_warm_up_is_over_after_it) {
  const auto options = schedule("cosine", 10, 10);
  EXPECT_EQ(learning_rate(options, 10), 1e-3);
  EXPECT_EQ(learning_rate(options, 11), 1e-4);
}

TEST(lr_schedule, resolves_defaults_and_can_be_checked_twice) {
  LrScheduleOptions options;
  options.lr = 1;
  options.lr_warmup_fraction = 0.01;
  for (int i = 0; i < 2; ++i) {
    options.check(320);
    EXPECT_EQ(options.decay.iters, 320);
    EXPECT_EQ(options.warmup.iters, 3);
  }
}

TEST(lr_schedule, refuses_what_makes_no_schedule) {
  const auto refused = [](auto change, const char* named) {
    LrScheduleOptions options;
    options.lr = 1e-3;
    change(options);
    try {
      options.check(100);
      ADD_FAILURE() << "accepted: " << named;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
    }
  };
  refused([](auto& o) { o.lr = 0; }, "--lr:");
  refused([](auto& o) { o.lr = NAN; }, "--lr:");
  refused([](auto& o) { o.lr = INFINITY; }, "--lr:");
  refused([](auto& o) { o.lr = 1e39; }, "--lr:");
  refused([](auto& o) { o.lr = 1e-60; }, "--lr:");
  refused([](auto& o) { o.min_lr = 2e-3; }, "--min-lr");
  refused([](auto& o) { o.min_lr = NAN; }, "--min-lr");
  refused([](auto& o) { o.lr_decay_style = "step"; }, "--lr-decay-style");
  refused([](auto& o) { o.warmup.iters = 101; }, "--lr-warmup-iters 101");
  refused([](auto& o) { o.warmup.iters = -1; }, "--lr-warmup-iters");
  refused([](auto& o) { o.decay.iters = -1; }, "--lr-decay-iters");
  refused([](auto& o) { o.lr_warmup_fraction = 1.5; }, "--lr-warmup-fraction");
  refused([](auto& o) { o.lr_warmup_fraction = 0.5, o.warmup.iters = 3; }, "one of them");
}

}  // namespace
}  // namespace mt
