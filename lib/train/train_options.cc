#include "train/train_options.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace mt {

namespace {

void check_positive(std::int64_t value, const char* option) {
  if (value <= 0) throw UsageError(cat("--", option, " ", value, ": must be at least 1"));
}

void check_not_negative(std::int64_t value, const char* option) {
  if (value < 0) throw UsageError(cat("--", option, " ", value, ": must not be negative"));
}

}  // namespace

void DataOptions::add_to(Options& options) {
  options.section("Data");
  options.add("data-path", &data_path, "SHARD",
              "token shard, cut into parts by --split; or a blend: weight shard weight shard ...");
  options.add("train-data-path", &train_data_path, "SHARD",
              "token shard or blend for training, whole");
  options.add("valid-data-path", &valid_data_path, "SHARD",
              "token shard or blend for validation, whole");
  options.add("test-data-path", &test_data_path, "SHARD",
              "token shard or blend for the final test, whole");
  options.add("split", &split, "A,B,C",
              "weights of training, validation and test in --data-path, by whole documents");
  options.add("seq-length", &seq_length, "N", "tokens of a sample");
  options.add("full-validation", &full_validation,
              "validate on every window of the validation part once, instead of --eval-iters");
  options.add("reset-position-ids", &packing.reset_position_ids,
              "positions start at 0 again after each end of document");
  options.add("reset-attention-mask", &packing.reset_attention_mask,
              "no attention across an end of document");
  options.add("eod-mask-loss", &packing.eod_mask_loss,
              "do not count the prediction that follows an end-of-document token");
  options.add("vocab-file", &vocab_file, "FILE",
              "vocab.json; must be the shard's tokenizer, and is that of .bin and .idx");
  options.add("merge-file", &merge_file, "FILE", "merges.txt of the same");
}

void DataOptions::check() const {
  const bool parts =
      !train_data_path.empty() || !valid_data_path.empty() || !test_data_path.empty();
  if (data_path.empty() && !parts) {
    throw UsageError("no data: give --data-path, or --train-data-path and --valid-data-path");
  }
  if (!data_path.empty() && parts) {
    throw UsageError(
        "--data-path is cut by --split; it does not go together with --train-data-path, "
        "--valid-data-path or --test-data-path");
  }
  if (parts && train_data_path.empty()) {
    throw UsageError("--train-data-path is missing beside --valid-data-path or --test-data-path");
  }
  if (seq_length > std::numeric_limits<std::int32_t>::max()) {
    throw UsageError(cat("--seq-length ", seq_length, ": must be below 2^31"));
  }
  if (vocab_file.empty() != merge_file.empty()) {
    throw UsageError("--vocab-file and --merge-file belong together: one of them is missing");
  }
}

void RunOptions::add_to(Options& options) {
  options.section("Training");
  options.add("micro-batch-size", &micro_batch_size, "N", "samples that go through at once");
  options.add("global-batch-size", &global_batch_size, "N",
              "samples of one optimizer step; 0: the micro-batch size");
  options.add("rampup-batch-size", &rampup_batch_size, "N",
              "START INCREMENT SAMPLES: the global batch grows from START by INCREMENT, in equal "
              "shares of the first SAMPLES samples; for runs by samples or tokens");
  options.add("train-iters", &length.iters, "N", "optimizer steps of the whole run");
  options.add("train-samples", &length.samples, "N",
              "the same in samples; the last whole batch ends it");
  options.add("train-tokens", &length.tokens, "N", "the same in tokens");
  options.add("seed", &seed, "N", "of weights, dropout and sample order");
  options.add_alias("random-seed", "seed");
  options.add_choice("precision", &precision, {"fp32", "bf16", "fp16"}, "arithmetic");
  options.add_alias("bf16", "precision", "bf16");
  options.add_alias("fp16", "precision", "fp16");
  options.section("Evaluation and reports");
  options.add("eval-interval", &eval_interval, "N", "validate every N steps, and at the end");
  options.add("eval-iters", &eval_iters, "N", "global batches of a validation; 0: none");
  options.add("log-interval", &log_interval, "N", "a log line every N steps");
  options.add("metrics", &metrics, "FILE", "append JSON lines to FILE; - is stdout");
  options.add("loss-spike-sigmas", &loss_spike_sigmas, "F",
              "report the samples of a step whose loss is F deviations above the mean; 0: never");
  options.add("log-params-norm", &norms.norms, "norms of weights and gradients, also a layer");
  options.add("log-num-zeros-in-grad", &norms.zeros, "zeros in the gradients, also a layer");
  options.section("Checkpoints");
  options.add("save", &save, "DIR", "run folder in which iter_N folders appear");
  options.add("load", &load, "DIR",
              "run folder (its newest sound checkpoint) or checkpoint to go on from");
  options.add("save-interval", &save_interval, "N", "save every N steps; 0: only at the end");
  options.add("async-save", &async_save, "go on with the next step while a checkpoint is written");
  options.add("save-failures", &save_failures, "N",
              "end when N saves in turn have failed; before, a failed one is a warning");
  options.add("keep", &keep, "N", "remove all but the newest N checkpoints; 0: keep all");
  options.add("exit-interval", &exit_interval, "N",
              "stop when the step is a multiple of N (exit status 75 before the end)");
  options.add(
      "exit-duration-in-mins", &exit_duration_in_mins, "F",
      "stop after the step in which F minutes have passed since the start (exit status 75)");
  options.add("no-load-optim", &no_load_optim, "go on with moments that start at zero");
  options.add("finetune", &finetune, "take only the weights of --load and start at iteration 0");
  options.add("override-opt-param-scheduler", &override_opt_param_scheduler,
              "on resuming, options of schedule and optimizer win over those of the checkpoint");
  options.add("use-checkpoint-opt-param-scheduler", &use_checkpoint_opt_param_scheduler,
              "on resuming, those of the checkpoint win, whatever is given");
  options.section("Measurement");
  options.add(
      "bench-gemm", &bench_gemm,
      "instead of training, time the products of a micro-batch alone: JSON lines on stdout");
}

void RunOptions::check_options() const {
  if (precision != "fp32") {
    throw UsageError(cat("--precision ", precision, ": only fp32 is supported by this version"));
  }
  if (micro_batch_size <= 0) {
    throw UsageError(cat("--micro-batch-size ", micro_batch_size, ": must be given, at least 1"));
  }
  if (seed < 0 || seed > std::numeric_limits<std::uint32_t>::max()) {
    throw UsageError(cat("--seed ", seed, ": must lie in 0 ... 4294967295"));
  }
  check_positive(eval_interval, "eval-interval");
  check_positive(log_interval, "log-interval");
  if (!(loss_spike_sigmas >= 0) || !std::isfinite(loss_spike_sigmas)) {
    throw UsageError(
        cat("--loss-spike-sigmas ", loss_spike_sigmas, ": must be a number of at least 0"));
  }
  check_not_negative(global_batch_size, "global-batch-size");
  check_not_negative(eval_iters, "eval-iters");
  check_not_negative(save_interval, "save-interval");
  check_positive(save_failures, "save-failures");
  check_not_negative(keep, "keep");
  check_not_negative(exit_interval, "exit-interval");
  if (!(exit_duration_in_mins >= 0 && exit_duration_in_mins < 1e9)) {
    throw UsageError(
        cat("--exit-duration-in-mins ", exit_duration_in_mins, ": expected 0 (never) to 1e9"));
  }
  if (override_opt_param_scheduler && use_checkpoint_opt_param_scheduler) {
    throw UsageError(
        "--override-opt_param-scheduler and --use-checkpoint-opt_param-scheduler contradict each "
        "other");
  }
  if (load.empty() && (no_load_optim || finetune)) {
    throw UsageError(cat(finetune ? "--finetune" : "--no-load-optim", ": needs --load"));
  }
  if (save.empty() && (save_interval > 0 || keep > 0 || async_save)) {
    throw UsageError(cat(save_interval > 0 ? "--save-interval"
                         : keep > 0        ? "--keep"
                                           : "--async-save",
                         ": needs --save"));
  }
}

void RunOptions::check_sizes(std::int64_t seq_length) {
  if (global_batch_size == 0) global_batch_size = micro_batch_size;
  if (const std::int64_t rest = global_batch_size % micro_batch_size; rest != 0) {
    throw UsageError(cat("--global-batch-size ", global_batch_size,
                         ": not divisible by --micro-batch-size ", micro_batch_size, ": ",
                         global_batch_size, " = ", global_batch_size / micro_batch_size, " * ",
                         micro_batch_size, " + ", rest));
  }
  ramp = BatchRamp::parse(rampup_batch_size, global_batch_size, micro_batch_size);
  length.check(batch_size_at(ramp, global_batch_size, 0), std::max<std::int64_t>(1, seq_length));
  if (ramp.start != 0 && length.unit() == RunUnit::kIterations) {
    throw UsageError(
        "--rampup-batch-size: needs a run by --train-samples or --train-tokens, since iterations "
        "differ in size");
  }
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / global_batch_size;
  if (length.iters > most || eval_iters > most) {
    throw UsageError(cat("--global-batch-size ", global_batch_size, ": ",
                         length.iters > most ? "--train-iters " : "--eval-iters ",
                         length.iters > most ? length.iters : eval_iters,
                         " times as many samples are more than 63 bits count"));
  }
}

void TrainOptions::add_to(Options& options) {
  options.section("Model");
  model.add_to(options);
  data.add_to(options);
  run.add_to(options);
  options.section("Optimizer");
  schedule.add_to(options);
  adam.add_to(options);
  parallel.add_to(options);
}

}  // namespace mt
