#include "optim/lr_schedule.h"

#include <cmath>
#include <utility>

#include "base/error.h"

namespace mt {

namespace {

constexpr RunUnit kUnits[] = {RunUnit::kIterations, RunUnit::kSamples, RunUnit::kTokens};

}  // namespace

const char* unit_name(RunUnit unit) {
  switch (unit) {
    case RunUnit::kIterations:
      return "iters";
    case RunUnit::kSamples:
      return "samples";
    case RunUnit::kTokens:
      return "tokens";
  }
  return "?";
}

std::int64_t& LrScheduleOptions::Span::in(RunUnit unit) {
  return unit == RunUnit::kIterations ? iters : unit == RunUnit::kSamples ? samples : tokens;
}

std::int64_t LrScheduleOptions::Span::in(RunUnit unit) const {
  return unit == RunUnit::kIterations ? iters : unit == RunUnit::kSamples ? samples : tokens;
}

void LrScheduleOptions::add_to(Options& options) {
  options.add("lr", &lr, "F", "largest learning rate");
  options.add("min-lr", &min_lr, "F", "learning rate after the decay");
  options.add_choice("lr-decay-style", &lr_decay_style, {"constant", "linear", "cosine"},
                     "how the rate falls from the largest to the least");
  options.add("lr-warmup-iters", &warmup.iters, "N", "iterations over which the rate rises from 0");
  options.add("lr-warmup-samples", &warmup.samples, "N", "the same in samples");
  options.add("lr-warmup-tokens", &warmup.tokens, "N", "the same in tokens");
  options.add("lr-warmup-fraction", &lr_warmup_fraction, "F",
              "the same as a fraction of the decay, rounded down");
  options.add("lr-decay-iters", &decay.iters, "N",
              "iterations until the least rate (0: those of the training)");
  options.add("lr-decay-samples", &decay.samples, "N", "the same in samples");
  options.add("lr-decay-tokens", &decay.tokens, "N", "the same in tokens");
}

void LrScheduleOptions::check(std::int64_t length, RunUnit counted_in) {
  unit = counted_in;
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
  for (const auto& [name, span] : {std::pair{"--lr-decay-", &decay}, {"--lr-warmup-", &warmup}}) {
    for (const RunUnit each : kUnits) {
      if (span->in(each) < 0) {
        throw UsageError(
            cat(name, unit_name(each), ": expected at least 0, found ", span->in(each)));
      }
      if (each != unit && span->in(each) != 0) {
        throw UsageError(cat(name, unit_name(each), " ", span->in(each),
                             ": this run is counted in ", unit_name(unit), " (--train-",
                             unit_name(unit), ")"));
      }
    }
  }
  if (!(lr_warmup_fraction >= 0 && lr_warmup_fraction <= 1)) {
    throw UsageError(
        cat("--lr-warmup-fraction: expected a number from 0 to 1, found ", lr_warmup_fraction));
  }
  std::int64_t &rise = warmup.in(unit), &fall = decay.in(unit);
  if (fall == 0) fall = length;
  if (lr_warmup_fraction > 0) {
    const auto resolved = static_cast<std::int64_t>(lr_warmup_fraction * static_cast<double>(fall));
    if (rise != 0 && rise != resolved) {
      throw UsageError(
          cat("--lr-warmup-", unit_name(unit), " and --lr-warmup-fraction: give one of them"));
    }
    rise = resolved;
  }
  if (rise > fall) {
    throw UsageError(cat("--lr-warmup-", unit_name(unit), " ", rise,
                         ": the decay ends before, after --lr-decay-", unit_name(unit), " ", fall));
  }
}

double learning_rate(const LrScheduleOptions& schedule, std::int64_t step) {
  const double lr = schedule.lr, min_lr = schedule.min_lr;
  const std::int64_t warmup = schedule.warmup.in(schedule.unit);
  const std::int64_t decay = schedule.decay.in(schedule.unit);
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
