// Properties of pipeline schedules, for all small sizes.
#include "train/schedule.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"

namespace mt {
namespace {

template <typename F>
void for_all_shapes(const F& f) {
  for (int stages = 1; stages <= 6; ++stages) {
    for (int m = 1; m <= 12; ++m) {
      f(ScheduleShape{.kind = ScheduleKind::kGpipe, .stages = stages, .micro_batches = m});
      f(ScheduleShape{.kind = ScheduleKind::k1f1b, .stages = stages, .micro_batches = m});
      for (int chunks = 1; chunks <= (stages == 1 ? 1 : 3) && m % stages == 0; ++chunks) {
        f(ScheduleShape{.kind = ScheduleKind::kInterleaved,
                        .stages = stages,
                        .micro_batches = m,
                        .chunks = chunks});
      }
    }
  }
}

TEST(Schedule, each_micro_batch_goes_forth_and_back_once_in_order) {
  for_all_shapes([](const ScheduleShape& shape) {
    shape.check();
    for (int stage = 0; stage < shape.stages; ++stage) {
      const auto steps = stage_schedule(shape, stage);
      ASSERT_EQ(steps.size(), 2U * static_cast<std::size_t>(shape.micro_batches * shape.chunks));
      std::map<std::pair<Phase, int>, int> next;  // (phase, chunk): micro-batch
      for (const PipelineStep& step : steps) {
        EXPECT_EQ(step.micro_batch, (next[{step.phase, step.chunk}]++));
        if (step.phase == Phase::kBackward) {
          EXPECT_LT(step.micro_batch, (next[{Phase::kForward, step.chunk}]));
        }
      }
      EXPECT_EQ(next.size(), 2U * static_cast<std::size_t>(shape.chunks));
    }
  });
}

// A sender's letters to a neighbour arrive in the order in which the neighbour asks for them.
TEST(Schedule, neighbours_send_and_receive_in_one_order) {
  for_all_shapes([](const ScheduleShape& shape) {
    const int depth = shape.stages * shape.chunks;
    using Letter = std::tuple<Phase, int, int>;  // what arrives at a virtual stage
    std::map<std::pair<int, int>, std::vector<Letter>> sent, received;
    for (int stage = 0; stage < shape.stages; ++stage) {
      for (const PipelineStep& step : stage_schedule(shape, stage)) {
        const int place = step.chunk * shape.stages + stage;
        const int move = step.phase == Phase::kForward ? 1 : -1;
        const int to = place + move, from = place - move;
        if (0 <= to && to < depth) {
          sent[{stage, to % shape.stages}].emplace_back(step.phase, step.micro_batch, to);
        }
        if (0 <= from && from < depth) {
          received[{from % shape.stages, stage}].emplace_back(step.phase, step.micro_batch, place);
        }
      }
    }
    // Activations and gradients travel apart where two stages are each other's neighbours twice.
    for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
      for (const auto& [pair, letters] : sent) {
        std::vector<Letter> a, b;
        for (const Letter& x : letters) {
          if (std::get<0>(x) == phase) a.push_back(x);
        }
        for (const Letter& x : received[pair]) {
          if (std::get<0>(x) == phase) b.push_back(x);
        }
        EXPECT_EQ(a, b) << shape.stages << " stages, " << shape.micro_batches << " micro-batches, "
                        << shape.chunks << " chunks, " << pair.first << " to " << pair.second;
      }
    }
  });
}

TEST(Schedule, the_bubble_is_the_papers) {
  for_all_shapes([](const ScheduleShape& shape) {
    for (const std::int64_t backward : {1, 2}) {
      const ScheduleTrace trace = trace_schedule(shape, 1, backward);
      // (p - 1) / (v m) of the work, exactly.
      EXPECT_EQ((trace.makespan - trace.work) * shape.chunks * shape.micro_batches,
                trace.work * (shape.stages - 1))
          << static_cast<int>(shape.kind) << ": " << shape.stages << " stages, "
          << shape.micro_batches << " micro-batches, " << shape.chunks << " chunks, backward "
          << backward;
    }
  });
}

TEST(Schedule, one_forward_one_backward_holds_few_in_flight) {
  for_all_shapes([](const ScheduleShape& shape) {
    const ScheduleTrace trace = trace_schedule(shape, 1, 2);
    for (int stage = 0; stage < shape.stages; ++stage) {
      const int most = trace.most_in_flight[static_cast<std::size_t>(stage)];
      if (shape.kind == ScheduleKind::k1f1b) {
        EXPECT_EQ(most, std::min(shape.stages - stage, shape.micro_batches));
      } else if (shape.kind == ScheduleKind::kGpipe) {
        EXPECT_EQ(most, shape.micro_batches);
      } else {
        EXPECT_LE(most, 2 * (shape.stages - 1 - stage) + (shape.chunks - 1) * shape.stages + 1);
      }
    }
  });
}

TEST(Schedule, refuses_what_has_no_schedule) {
  EXPECT_THROW(static_cast<void>(ScheduleShape::parse("zb-h1")), UsageError);
  EXPECT_THROW((ScheduleShape{.kind = ScheduleKind::k1f1b, .chunks = 2}.check()), UsageError);
  EXPECT_THROW(
      (ScheduleShape{.kind = ScheduleKind::kInterleaved, .stages = 4, .micro_batches = 6}.check()),
      UsageError);
}

}  // namespace
}  // namespace mt
