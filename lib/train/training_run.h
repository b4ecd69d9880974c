// The loop around the optimizer steps: reports, evaluates, saves, stops when asked.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "comm/communicator.h"
#include "model/gpt.h"
#include "optim/adam.h"
#include "tensor/tensor.h"
#include "train/loss_watch.h"
#include "train/metrics.h"
#include "train/trainer.h"
#include "train/training_start.h"

namespace mt {

class TrainingRun {
 public:
  // Builds the model, from the checkpoint or from the seed. world (of size 1) and pool must outlive
  // the run. stop_requested returns the number of the signal that asked for a stop, or 0.
  // Throws DataError for damaged tensors, NumericError for weights that are not finite.
  TrainingRun(TrainingStart start, const Communicator& world, Pool& pool,
              std::function<int()> stop_requested);

  // Trains to the end, or to where a signal or --exit-interval stops it. Returns the exit status:
  // 0, 75 (stopped before the end, after a checkpoint), 128 + the signal (SIGINT, or a stop without
  // --save). Nothing is saved after an error; what is left to resume from is in the message.
  // Throws NumericError, EnvironmentError (a save or the metrics failed), DataError (damaged
  // tokens).
  int run();

  [[nodiscard]] const std::vector<Parameter*>& parameters() { return model_.parameters(); }

 private:
  void load();
  void step();
  void report(const Trainer::Step& step, double seconds, std::int64_t minor_faults);
  void report_spike(double loss);
  [[nodiscard]] bool finished() const;
  [[nodiscard]] bool validation_due() const;
  void validate();
  bool evaluate_part(const char* name, const GptDataset& data);
  void save();
  [[nodiscard]] std::string left() const;  // "; iteration 100 lies in run/iter_0000100"
  [[nodiscard]] int stop(int signal);

  TrainingStart start_;
  const Communicator& world_;
  Pool& pool_;
  std::function<int()> stop_requested_;
  GptStage model_;
  Adam optimizer_;
  Trainer trainer_;
  MetricsLog metrics_;
  LossWatch watch_;
  std::int64_t saved_iteration_ = -1;  // of this run's folder
  std::int64_t progress_shown_ = 0;    // milliseconds of the steady clock
};

}  // namespace mt
