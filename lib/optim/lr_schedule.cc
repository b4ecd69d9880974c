#include "optim/lr_schedule.h"

#include <cmath>

#include "base/error.h"

namespace mt {

void LrScheduleOptions::add_to(Options& options) {
  options.add("lr", &lr, "F", "largest learning rate");
  options.add("min-lr", &min_lr, "F", "learning rate after the decay");
  options.add_choice("lr-decay-style", &lr_decay_style, {"constant", "linear", "cosine"},
                     "how the rate falls from the largest to the least");
  options.add("lr-warmup-iters", &lr_warmup_iters, "N",
              "iterations over which the rate rises from 0");
  options.add("lr-warmup-fraction", &lr_warmup_fraction, "F",
              "the same as a fraction of the decay's iterations, rounded down");
  options.add("lr-decay-iters", &lr_decay_iters, "N",
              "iterations until the least rate (0: those of the training)");
}

void LrScheduleOptions::check(std::int64_t train_iters) {
  const auto rate = static_cast<float>(lr);  // as the optimizer takes it
  if (!(rate > 0) || !std::isfinite(rate)) {
    throw UsageError(cat("--lr: expected a positive number in a float's range, found ", lr));
  }
  if (!(min_lr >= 0 && min_lr <= lr)) {
    throw UsageError(cat("--min-lr: expected a number from 0 to --lr ", lr, ", found ", min_lr));
  }
  if (lr_decay_style != "constant" && lr_decay_style != "linear" && lr_decay_style != "cosine") {
    throw UsageError(
        cat("--lr-decay-style: expected constant, linear or cosine, found ", lr_decay_style));
  }
  if (lr_decay_iters < 0) {
    throw UsageError(cat("--lr-decay-iters: expected at least 0, found ", lr_decay_iters));
  }
  if (lr_warmup_iters < 0) {
    throw UsageError(cat("--lr-warmup-iters: expected at least 0, found ", lr_warmup_iters));
  }
  if (!(lr_warmup_fraction >= 0 && lr_warmup_fraction <= 1)) {
    throw UsageError(
        cat("--lr-warmup-fraction: expected a number from 0 to 1, found ", lr_warmup_fraction));
  }
  if (lr_decay_iters == 0) lr_decay_iters = train_iters;
  if (lr_warmup_fraction > 0) {
    const auto resolved =
        static_cast<std::int64_t>(lr_warmup_fraction * static_cast<double>(lr_decay_iters));
    if (lr_warmup_iters != 0 && lr_warmup_iters != resolved) {
      throw UsageError("--lr-warmup-iters and --lr-warmup-fraction: give one of them");
    }
    lr_warmup_iters = resolved;
  }
  if (lr_warmup_iters > lr_decay_iters) {
    throw UsageError(cat("--lr-warmup-iters ", lr_warmup_iters,
                         ": the decay ends before, after --lr-decay-iters ", lr_decay_iters));
  }
}

double learning_rate(const LrScheduleOptions& schedule, std::int64_t step) {
  const double lr = schedule.lr, min_lr = schedule.min_lr;
  const std::int64_t warmup = schedule.lr_warmup_iters, decay = schedule.lr_decay_iters;
  if (warmup > 0 && step <= warmup) {
    return lr * static_cast<double>(step) / static_cast<double>(warmup);
  }
  if (schedule.lr_decay_style == "constant") return lr;
  // `step` is above the warm-up here, so that a decay of no length is over.
  if (step > decay || decay <= warmup) return min_lr;
  const double ratio = static_cast<double>(step - warmup) / static_cast<double>(decay - warmup);
  const double pi = std::acos(-1.0);
  const double coefficient =
      schedule.lr_decay_style == "cosine" ? 0.5 * (std::cos(pi * ratio) + 1.0) : 1.0 - ratio;
  return min_lr + coefficient * (lr - min_lr);
}

}  // namespace mt
