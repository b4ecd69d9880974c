#include "train/batch_schedule.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/option_text.h"

namespace mt {

BatchRamp BatchRamp::parse(const std::vector<std::string>& words, std::int64_t global,
                           std::int64_t micro) {
  if (words.empty()) return {};
  const std::string option = "--rampup-batch-size";
  if (words.size() != 3) {
    throw UsageError(cat(option, ": expected START INCREMENT SAMPLES, found ", words.size(),
                         words.size() == 1 ? " word" : " words"));
  }
  const BatchRamp ramp{.start = parse_count(words[0], option),
                       .increment = parse_count(words[1], option),
                       .samples = parse_count(words[2], option)};
  const std::string text = cat(option, " ", words[0], " ", words[1], " ", words[2]);
  if (ramp.start <= 0 || ramp.increment <= 0 || ramp.samples <= 0) {
    throw UsageError(cat(text, ": expected three numbers above 0"));
  }
  if (ramp.start > global || (global - ramp.start) % ramp.increment != 0) {
    throw UsageError(cat(text, ": from ", ramp.start, " in steps of ", ramp.increment,
                         " there is no way to --global-batch-size ", global));
  }
  for (const auto& [name, value] :
       {std::pair{"start", ramp.start}, {"increment", ramp.increment}}) {
    if (value % micro != 0) {
      throw UsageError(
          cat(text, ": the ", name, " ", value, " is not divisible by --micro-batch-size ", micro));
    }
  }
  return ramp;
}

std::int64_t batch_size_at(const BatchRamp& ramp, std::int64_t global, std::int64_t consumed) {
  if (ramp.start == 0 || consumed >= ramp.samples) return global;
  const auto steps = static_cast<std::int64_t>(
      static_cast<__int128>(consumed) * ((global - ramp.start) / ramp.increment) / ramp.samples);
  return std::min(global, ramp.start + steps * ramp.increment);
}

RunUnit RunLength::unit() const {
  return samples > 0 ? RunUnit::kSamples : tokens > 0 ? RunUnit::kTokens : RunUnit::kIterations;
}

std::int64_t RunLength::in_unit() const {
  return samples > 0 ? samples : tokens > 0 ? tokens : iters;
}

void RunLength::check(std::int64_t first, std::int64_t sequence) const {
  std::string given;
  for (const auto& [name, value] : {std::pair{"--train-iters", iters},
                                    {"--train-samples", samples},
                                    {"--train-tokens", tokens}}) {
    if (value < 0) throw UsageError(cat(name, " ", value, ": must not be negative"));
    if (value == 0) continue;
    if (!given.empty()) {
      throw UsageError(cat(name, " ", value, ": the length is given by ", given, " already"));
    }
    given = name;
  }
  if (given.empty()) {
    throw UsageError(cat("--train-iters ", iters,
                         ": must be given, at least 1 (or --train-samples, --train-tokens)"));
  }
  if (finished(0, 0, first, sequence)) {
    throw UsageError(cat(given, " ", in_unit(), ": less than one batch of ", first, " samples of ",
                         sequence, " tokens"));
  }
}

bool RunLength::finished(std::int64_t iteration, std::int64_t consumed, std::int64_t batch,
                         std::int64_t sequence) const {
  switch (unit()) {
    case RunUnit::kIterations:
      return iteration >= iters;
    case RunUnit::kSamples:
      return batch > samples - consumed;
    case RunUnit::kTokens:
      return batch > tokens / sequence - consumed;
  }
  return true;
}

std::int64_t RunLength::step(std::int64_t iteration, std::int64_t consumed,
                             std::int64_t sequence) const {
  switch (unit()) {
    case RunUnit::kIterations:
      return iteration;
    case RunUnit::kSamples:
      return consumed;
    case RunUnit::kTokens:
      return consumed * sequence;
  }
  return 0;
}

}  // namespace mt
