// How a training run is cut over ranks. Names are Megatron-LM's where it has them.
#pragma once

#include <cstdint>
#include <string>

#include "base/options.h"
#include "comm/grid.h"
#include "model/config.h"
#include "nn/linear.h"
#include "train/batch_schedule.h"
#include "train/schedule.h"

namespace mt {

struct ParallelOptions {
  std::int64_t tensor_model_parallel_size = 1;
  std::int64_t pipeline_model_parallel_size = 1;
  std::int64_t num_layers_per_virtual_pipeline_stage = 0;  // 0: one chunk a stage
  std::string pipeline_schedule = "1f1b";                  // or gpipe; chunks are interleaved
  bool sequence_parallel = false;
  bool use_distributed_optimizer = false;
  std::string recompute_granularity = "none";
  std::string reduction = "fast";
  std::int64_t virtual_shards = 8;  // with reduction tree
  bool strict_placement = false;
  double hang_timeout = 600;                 // seconds; 0: never
  std::int64_t check_replicas_interval = 0;  // steps; 0: at saves only

  void add_to(Options& options);

  // The grid that so many ranks make, whatever the model. Throws UsageError with the arithmetic.
  [[nodiscard]] GridShape grid(int ranks) const;
  // What a run asks of the sizes.
  struct Sizes {
    std::int64_t micro_batch_size = 0, global_batch_size = 0, seq_length = 0;
    BatchRamp ramp;
  };
  // The grid of so many ranks. Throws UsageError with the arithmetic for whatever does not divide:
  // ranks, heads, layers, batches, positions, and what tree mode asks for.
  [[nodiscard]] GridShape check(const ModelConfig& model, const Sizes& sizes, int ranks) const;

  // Of checked options.
  [[nodiscard]] bool tree() const { return reduction == "tree"; }
  // With so many micro-batches a step.
  [[nodiscard]] ScheduleShape schedule(const ModelConfig& model, int micro_batches) const;
  [[nodiscard]] LayerLayout layout(const GridShape& grid) const;
};

}  // namespace mt
