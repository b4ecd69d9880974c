#include "train/parallel_options.h"

#include <limits>
#include <vector>

#include "base/error.h"

namespace mt {

namespace {

using std::int64_t;

void check_divides(int64_t part, int64_t whole, const std::string& whole_name,
                   const std::string& part_name) {
  if (whole % part == 0) return;
  throw UsageError(cat(whole_name, " ", whole, ": not divisible by ", part_name, ": ", whole, " = ",
                       whole / part, " * ", part, " + ", whole % part));
}

int rank_count(int64_t value, const char* option) {
  if (value < 1 || value > std::numeric_limits<int>::max()) {
    throw UsageError(
        cat("--", option, " ", value, ": expected 1 to ", std::numeric_limits<int>::max()));
  }
  return static_cast<int>(value);
}

bool power_of_two(int64_t n) {
  return n > 0 && (n & (n - 1)) == 0;
}

// Every batch size that a run comes by.
std::vector<int64_t> batch_sizes(const ParallelOptions::Sizes& sizes) {
  std::vector<int64_t> all{sizes.global_batch_size};
  if (sizes.ramp.start == 0) return all;
  for (int64_t b = sizes.ramp.start; b < sizes.global_batch_size; b += sizes.ramp.increment) {
    all.push_back(b);
  }
  return all;
}

void check_tree(const ParallelOptions& options, const GridShape& grid,
                const ParallelOptions::Sizes& sizes) {
  const int64_t shards = options.virtual_shards;
  if (!power_of_two(shards) || shards > 1024) {
    throw UsageError(cat("--virtual-shards ", shards, ": expected a power of two from 1 to 1024"));
  }
  for (const auto& [name, ranks] :
       {std::pair{"tensor", grid.tensor}, std::pair{"data", grid.data}}) {
    if (power_of_two(ranks) && shards % ranks == 0) continue;
    throw UsageError(cat("--reduction tree: ", ranks, " ", name,
                         " ranks: expected a power of two that divides --virtual-shards ", shards));
  }
  for (const int64_t batch : batch_sizes(sizes)) {
    check_divides(
        shards * sizes.micro_batch_size, batch, "--reduction tree: --global-batch-size",
        cat("--virtual-shards ", shards, " x --micro-batch-size ", sizes.micro_batch_size));
  }
}

}  // namespace

void ParallelOptions::add_to(Options& options) {
  options.section("Ranks");
  options.add("tensor-model-parallel-size", &tensor_model_parallel_size, "N",
              "ranks that share each layer");
  options.add("pipeline-model-parallel-size", &pipeline_model_parallel_size, "N",
              "stages of layers, each on ranks of its own; data parallelism takes what is left");
  options.add("num-layers-per-virtual-pipeline-stage", &num_layers_per_virtual_pipeline_stage, "N",
              "interleaved stages: each has several chunks of N layers; 0: one chunk");
  options.add_choice("pipeline-schedule", &pipeline_schedule, {"1f1b", "gpipe"},
                     "order of the micro-batches' passes in a stage of one chunk");
  options.add("sequence-parallel", &sequence_parallel,
              "norm, dropout and residual on a slice of the positions for each tensor rank");
  options.add("use-distributed-optimizer", &use_distributed_optimizer,
              "ZeRO-1: each data-parallel rank keeps the moments of its share of the weights");
  options.add_choice("recompute-granularity", &recompute_granularity, {"none", "selective", "full"},
                     "activations that are computed again instead of kept");
  options.add_choice("reduction", &reduction, {"fast", "tree"},
                     "tree: sums in one fixed tree, the same bits on every grid");
  options.add("virtual-shards", &virtual_shards, "N",
              "parts that --reduction tree cuts sums into, a power of two");
  options.add("strict-placement", &strict_placement,
              "refuse a grid whose tensor-parallel ranks lie on several nodes");
  options.add("hang-timeout", &hang_timeout, "F",
              "end the job when a rank has made no progress for F seconds; 0: never");
  options.add("check-replicas-interval", &check_replicas_interval, "N",
              "compare replicated weights every N steps, besides at each save; 0: only then");
}

GridShape ParallelOptions::grid(int ranks) const {
  GridShape grid{
      .tensor = rank_count(tensor_model_parallel_size, "tensor-model-parallel-size"),
      .pipeline = rank_count(pipeline_model_parallel_size, "pipeline-model-parallel-size")};
  grid.check(ranks);
  return grid;
}

GridShape ParallelOptions::check(const ModelConfig& model, const Sizes& sizes, int ranks) const {
  const GridShape grid = this->grid(ranks);
  if (!(hang_timeout >= 0 && hang_timeout < 1e9)) {
    throw UsageError(cat("--hang-timeout ", hang_timeout, ": expected 0 (never) to 1e9 seconds"));
  }
  if (check_replicas_interval < 0) {
    throw UsageError(
        cat("--check-replicas-interval ", check_replicas_interval, ": must not be negative"));
  }
  const std::string tensor = cat("--tensor-model-parallel-size ", grid.tensor);
  check_divides(grid.tensor, model.num_attention_heads, "--num-attention-heads", tensor);
  check_divides(grid.tensor, model.ffn_hidden_size, "--ffn-hidden-size", tensor);
  if (model.vocab_size < grid.tensor) {
    throw UsageError(
        cat(tensor, ": more than the ", model.vocab_size, " entries of the vocabulary"));
  }
  if (sequence_parallel) check_divides(grid.tensor, sizes.seq_length, "--seq-length", tensor);
  if (num_layers_per_virtual_pipeline_stage < 0) {
    throw UsageError(cat("--num-layers-per-virtual-pipeline-stage ",
                         num_layers_per_virtual_pipeline_stage, ": must not be negative"));
  }
  if (num_layers_per_virtual_pipeline_stage > 0) {
    if (grid.pipeline == 1) {
      throw UsageError(
          "--num-layers-per-virtual-pipeline-stage: needs --pipeline-model-parallel-size above 1");
    }
    check_divides(
        grid.pipeline * num_layers_per_virtual_pipeline_stage, model.num_layers, "--num-layers",
        cat("--pipeline-model-parallel-size ", grid.pipeline,
            " x --num-layers-per-virtual-pipeline-stage ", num_layers_per_virtual_pipeline_stage));
  } else {
    check_divides(grid.pipeline, model.num_layers, "--num-layers",
                  cat("--pipeline-model-parallel-size ", grid.pipeline));
  }
  const int64_t unit = grid.data * sizes.micro_batch_size;
  for (const int64_t batch : batch_sizes(sizes)) {
    check_divides(
        unit, batch, "--global-batch-size",
        cat("data parallel size ", grid.data, " x --micro-batch-size ", sizes.micro_batch_size));
    if (batch / unit > std::numeric_limits<int>::max()) {
      throw UsageError(cat("--global-batch-size ", batch, ": ", batch / unit,
                           " micro-batches a rank, more than 2^31"));
    }
    schedule(model, static_cast<int>(batch / unit)).check();
  }
  if (tree()) check_tree(*this, grid, sizes);
  return grid;
}

ScheduleShape ParallelOptions::schedule(const ModelConfig& model, int micro_batches) const {
  ScheduleShape shape{.kind = ScheduleShape::parse(pipeline_schedule),
                      .stages = static_cast<int>(pipeline_model_parallel_size),
                      .micro_batches = micro_batches};
  if (num_layers_per_virtual_pipeline_stage > 0) {
    shape.chunks = static_cast<int>(model.num_layers / pipeline_model_parallel_size /
                                    num_layers_per_virtual_pipeline_stage);
    if (shape.chunks > 1) shape.kind = ScheduleKind::kInterleaved;
  }
  return shape;
}

LayerLayout ParallelOptions::layout(const GridShape& grid) const {
  LayerLayout layout{.sequence_parallel = sequence_parallel && grid.tensor > 1};
  if (tree()) {
    layout.virtual_shards = static_cast<int>(virtual_shards);
    layout.sample_shards = layout.virtual_shards / grid.data;
  }
  if (recompute_granularity != "none") {
    layout.recompute = recompute_granularity == "full" ? Recompute::kFull : Recompute::kSelective;
  }
  return layout;
}

}  // namespace mt
