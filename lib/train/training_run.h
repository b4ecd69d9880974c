// The loop around the optimizer steps: reports, evaluates, saves, stops when asked.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/async_save.h"
#include "comm/communicator.h"
#include "comm/grid.h"
#include "optim/adam.h"
#include "tensor/tensor.h"
#include "train/gradient_sync.h"
#include "train/grid_model.h"
#include "train/loss_watch.h"
#include "train/metrics.h"
#include "train/trainer.h"
#include "train/training_start.h"

namespace mt {

class TrainingRun {
 public:
  // Builds the model, from the checkpoint or from the seed. world, whose ranks are those of
  // start.grid, and pool must outlive the run. stop_requested returns the number of the signal that
  // asked this rank for a stop, or 0; ranks agree on it between steps. Rank 0 writes log and
  // metrics. Collective over world, as run() is.
  // Throws DataError for damaged tensors, NumericError for weights that are not finite.
  TrainingRun(TrainingStart start, const Communicator& world, Pool& pool,
              std::function<int()> stop_requested);

  // Trains to the end, or to where a signal or --exit-interval stops it. Returns the exit status:
  // 0, 75 (stopped before the end, after a checkpoint), 128 + the signal (SIGINT, or a stop without
  // --save). Nothing is saved after an error; what is left to resume from is in the message. A save
  // that fails is a warning until --save-failures of them have failed in turn; the last one, after
  // which the run would end, must not fail.
  // Throws NumericError, EnvironmentError (a save or the metrics failed), both with what is left to
  // resume from, DataError (damaged tokens).
  int run();

  // Of this rank.
  [[nodiscard]] const std::vector<Parameter*>& parameters() { return model_.parameters(); }
  [[nodiscard]] const ProcessGrid& grid() const { return grid_; }

 private:
  // What all ranks together were told: the signal, if any has one; rank 0's clock.
  struct Stop {
    int signal = 0;
    bool out_of_time = false;
  };
  [[nodiscard]] Stop agree_on_stop();
  void load();
  void step();
  void report(const Trainer::Step& step, const Trainer::Plan& plan, double seconds,
              std::int64_t minor_faults);
  [[nodiscard]] Json moved();  // since the last call, by communicator
  // Throws NumericError if weights that several ranks hold differ.
  void compare_replicas();
  void report_spike(double loss, const Trainer::Plan& plan);
  [[nodiscard]] bool finished() const;
  [[nodiscard]] std::int64_t batch_size() const;    // of the next iteration
  [[nodiscard]] std::string progress_text() const;  // "iteration 7/100"
  [[nodiscard]] bool validation_due() const;
  Stop validate();
  bool evaluate_part(const char* name, const BlendedData& data, Stop& told);
  // Whether there will be a chance to save again.
  enum class Chance { kMore, kLast };
  // Waits for a save in flight and saves this iteration, unless it is saved; kMore lets the file be
  // written in the background if --async-save says so.
  void save(Chance chance);
  // Takes the outcome of the save in flight: if it is over, or after waiting for it.
  enum class Wait { kNo, kYes };
  void take_save(Wait wait);
  void note_save(const RunSaver::Outcome& outcome, Chance chance);
  [[nodiscard]] CheckpointContent content();
  // "; iteration 100 is left ...". Waits for a save in flight, since what is left depends on it.
  [[nodiscard]] std::string left();
  int train();  // run() without the mention of what is left
  [[nodiscard]] int stop(int signal);

  TrainingStart start_;
  const Communicator& world_;
  ProcessGrid grid_;
  Pool& pool_;
  std::function<int()> stop_requested_;
  GridModel model_;
  GradientSync sync_;
  Adam optimizer_;
  Trainer trainer_;
  MetricsLog metrics_;
  LossWatch watch_;
  std::int64_t saved_iteration_ = -1;                            // of this run's folder
  std::int64_t failed_iteration_ = -1;                           // whose save failed last
  std::int64_t failed_saves_ = 0;                                // in turn
  std::int64_t progress_shown_ = 0;                              // milliseconds of the steady clock
  std::vector<SamplePlace> places_;                              // of the latest step's samples
  std::vector<std::pair<const Communicator*, Ledger>> ledgers_;  // as last reported
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::unique_ptr<RunSaver> saver_;  // null without --save; the last member: it ends first
};

}  // namespace mt
