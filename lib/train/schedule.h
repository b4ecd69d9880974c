// Pipeline schedules as data: what a stage does, in order. Pure functions, tested without
// processes.
//
// GPipe: Huang et al., arXiv:1811.06965. 1F1B and interleaved stages: Narayanan et al.,
// arXiv:2104.04473, section 2.2. Backward passes take the micro-batches in their order in all
// three, so that the sums over micro-batches are the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mt {

enum class Phase : std::uint8_t { kForward, kBackward };

// One micro-batch through one chunk of a stage's layers. Chunk c of stage s is the virtual stage
// c * stages + s; forward goes from each virtual stage to the next.
struct PipelineStep {
  Phase phase = Phase::kForward;
  int micro_batch = 0, chunk = 0;
  bool operator==(const PipelineStep&) const = default;
};

enum class ScheduleKind : std::uint8_t { kGpipe, k1f1b, kInterleaved };

struct ScheduleShape {
  ScheduleKind kind = ScheduleKind::k1f1b;
  int stages = 1, micro_batches = 1;
  int chunks = 1;  // a stage; more than one with kInterleaved only

  // "gpipe", "1f1b", "interleaved". Throws UsageError.
  [[nodiscard]] static ScheduleKind parse(const std::string& name);
  // Throws UsageError: chunks without interleaving; interleaving with micro-batches that are not a
  // multiple of the stages, with the arithmetic.
  void check() const;
};

// The steps of one stage. The shape must have been checked.
[[nodiscard]] std::vector<PipelineStep> stage_schedule(const ScheduleShape& shape, int stage);

// The same schedule run with given costs: a step begins when its stage is free and its input is
// there. Times in the unit of the costs, per chunk.
struct ScheduleTrace {
  std::int64_t makespan = 0;
  std::vector<int> most_in_flight;  // a stage: micro-batches times chunks that went forward and are
                                    // not back yet
  // Idle time over working time of a stage: (makespan - work) / work.
  std::int64_t work = 0;  // of one stage
};
// Throws Error (status 70) if the stages wait for each other for ever.
[[nodiscard]] ScheduleTrace trace_schedule(const ScheduleShape& shape, std::int64_t forward_cost,
                                           std::int64_t backward_cost);

}  // namespace mt
