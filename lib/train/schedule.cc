#include "train/schedule.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"

namespace mt {
namespace {

std::vector<PipelineStep> gpipe(int micro_batches) {
  std::vector<PipelineStep> steps;
  for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
    for (int i = 0; i < micro_batches; ++i) steps.push_back({.phase = phase, .micro_batch = i});
  }
  return steps;
}

// The k-th step of its phase. Chunks take turns after as many micro-batches as there are stages.
PipelineStep interleaved_step(const ScheduleShape& shape, Phase phase, int k) {
  const int round = shape.stages * shape.chunks;
  const int chunk = k % round / shape.stages;
  return {.phase = phase,
          .micro_batch = k / round * shape.stages + k % shape.stages,
          .chunk = phase == Phase::kForward ? chunk : shape.chunks - 1 - chunk};
}

// `ahead` forward steps, then one forward and one backward in turn, then what is left.
template <typename F>
std::vector<PipelineStep> alternate(int total, int ahead, const F& step) {
  std::vector<PipelineStep> steps;
  ahead = std::min(ahead, total);
  for (int k = 0; k < ahead; ++k) steps.push_back(step(Phase::kForward, k));
  for (int k = 0; k < total; ++k) {
    if (ahead + k < total) steps.push_back(step(Phase::kForward, ahead + k));
    steps.push_back(step(Phase::kBackward, k));
  }
  return steps;
}

}  // namespace

ScheduleKind ScheduleShape::parse(const std::string& name) {
  if (name == "gpipe") return ScheduleKind::kGpipe;
  if (name == "1f1b") return ScheduleKind::k1f1b;
  if (name == "interleaved") return ScheduleKind::kInterleaved;
  throw UsageError(cat("pipeline schedule ", name, ": expected gpipe, 1f1b or interleaved"));
}

void ScheduleShape::check() const {
  if (chunks > 1 && kind != ScheduleKind::kInterleaved) {
    throw UsageError(
        cat(chunks, " chunks of layers a stage: only the interleaved schedule has more than one"));
  }
  if (chunks > 1 && stages == 1) {
    throw UsageError(cat(chunks, " chunks of layers on one pipeline stage: nothing to interleave"));
  }
  if (kind == ScheduleKind::kInterleaved && micro_batches % stages != 0) {
    throw UsageError(cat("interleaved schedule: ", micro_batches,
                         " micro-batches are not a multiple of ", stages, " stages"));
  }
}

std::vector<PipelineStep> stage_schedule(const ScheduleShape& shape, int stage) {
  const int behind = shape.stages - 1 - stage;
  switch (shape.kind) {
    case ScheduleKind::kGpipe:
      return gpipe(shape.micro_batches);
    case ScheduleKind::k1f1b:
      return alternate(shape.micro_batches, behind, [](Phase phase, int k) {
        return PipelineStep{.phase = phase, .micro_batch = k};
      });
    case ScheduleKind::kInterleaved:
      return alternate(shape.micro_batches * shape.chunks,
                       2 * behind + (shape.chunks - 1) * shape.stages,
                       [&](Phase phase, int k) { return interleaved_step(shape, phase, k); });
  }
  return {};
}

ScheduleTrace trace_schedule(const ScheduleShape& shape, std::int64_t forward_cost,
                             std::int64_t backward_cost) {
  const int depth = shape.stages * shape.chunks;
  std::vector<std::vector<PipelineStep>> steps;
  for (int s = 0; s < shape.stages; ++s) steps.push_back(stage_schedule(shape, s));
  std::map<std::tuple<Phase, int, int>, std::int64_t> ended;  // (phase, micro-batch, virtual stage)
  std::vector<std::size_t> next(steps.size(), 0);
  std::vector<std::int64_t> until(steps.size(), 0);
  std::vector<int> in_flight(steps.size(), 0);
  ScheduleTrace trace;
  trace.most_in_flight.assign(steps.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t s = 0; s < steps.size(); ++s) {
      while (next[s] < steps[s].size()) {
        const PipelineStep& step = steps[s][next[s]];
        const int place = step.chunk * shape.stages + static_cast<int>(s);
        const bool forward = step.phase == Phase::kForward;
        std::int64_t ready = 0;
        const int before = forward ? place - 1 : place + 1;
        if (0 <= before && before < depth) {
          const auto found = ended.find({step.phase, step.micro_batch, before});
          if (found == ended.end()) break;
          ready = found->second;
        } else if (!forward) {
          ready = ended.at({Phase::kForward, step.micro_batch, place});
        }
        until[s] = std::max(until[s], ready) + (forward ? forward_cost : backward_cost);
        ended[{step.phase, step.micro_batch, place}] = until[s];
        in_flight[s] += forward ? 1 : -1;
        trace.most_in_flight[s] = std::max(trace.most_in_flight[s], in_flight[s]);
        ++next[s];
        moved = true;
      }
    }
  }
  for (std::size_t s = 0; s < steps.size(); ++s) {
    if (next[s] != steps[s].size()) {
      throw Error(ExitStatus::kInternal, cat("internal error: stage ", s, " waits for ever"));
    }
    trace.makespan = std::max(trace.makespan, until[s]);
  }
  trace.work = shape.micro_batches * shape.chunks * (forward_cost + backward_cost);
  return trace;
}

}  // namespace mt
