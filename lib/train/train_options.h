// What mt-train is told, besides the model, the optimizer and the schedule, whose options live with
// them. Names and defaults are Megatron-LM's (arXiv:1909.08053 and its code) where it has them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/options.h"
#include "data/gpt_batches.h"
#include "model/config.h"
#include "optim/adam.h"
#include "optim/lr_schedule.h"
#include "train/batch_schedule.h"
#include "train/layer_norms.h"
#include "train/parallel_options.h"

namespace mt {

// Where samples come from. A shard or blend (data/blend.h) that is split, or one for each part.
struct DataOptions {
  std::vector<std::string> data_path;
  std::vector<std::string> train_data_path, valid_data_path, test_data_path;
  std::string split = "969,30,1";
  bool full_validation = false;
  std::int64_t seq_length = 0;
  PackingOptions packing;
  std::string vocab_file, merge_file;  // if given, their digest must be the shard's

  void add_to(Options& options);
  void check() const;
};

// The run: how long, how it is cut, what it reports, where it saves.
struct RunOptions {
  std::int64_t micro_batch_size = 0;
  std::int64_t global_batch_size = 0;          // 0: the micro-batch size, resolved by check_sizes()
  std::vector<std::string> rampup_batch_size;  // START INCREMENT SAMPLES
  BatchRamp ramp;                              // resolved by check_sizes()
  RunLength length;
  std::int64_t seed = 1234;
  std::string precision = "fp32";
  std::int64_t eval_interval = 1000;
  std::int64_t eval_iters = 100;
  std::int64_t log_interval = 100;
  std::string metrics;
  double loss_spike_sigmas = 6;  // 0: no report
  LayerNormsOptions norms;
  std::string save, load;
  std::int64_t save_interval = 0;  // 0: only at the end
  std::int64_t save_failures = 3;  // in turn, after which the run ends
  bool async_save = false;
  std::int64_t keep = 0;             // 0: all
  std::int64_t exit_interval = 0;    // 0: never
  double exit_duration_in_mins = 0;  // 0: never
  bool no_load_optim = false;
  bool finetune = false;
  bool override_opt_param_scheduler = false;
  bool use_checkpoint_opt_param_scheduler = false;
  bool bench_gemm = false;  // time the products of a step instead of training

  void add_to(Options& options);
  // What the command line alone decides. Throws UsageError.
  void check_options() const;
  // Sizes, once those that a checkpoint supplies are in. Throws UsageError with the arithmetic.
  void check_sizes(std::int64_t seq_length);
};

struct TrainOptions {
  ModelConfig model;
  DataOptions data;
  RunOptions run;
  LrScheduleOptions schedule;
  AdamOptions adam;
  ParallelOptions parallel;

  void add_to(Options& options);
};

}  // namespace mt
