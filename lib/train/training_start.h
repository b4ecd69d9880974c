// From what the user asked for to a run that can start: everything that can be checked is checked
// here, before memory is taken and before anything but the lock is written.
#pragma once

#include <memory>
#include <optional>

#include "base/commit.h"
#include "base/options.h"
#include "ckpt/checkpoint.h"
#include "train/train_options.h"
#include "train/training_data.h"
#include "train/training_state.h"

namespace mt {

struct TrainingStart {
  TrainOptions options;  // resolved
  TrainingState state;   // iteration 0, or where the checkpoint stands
  std::unique_ptr<TrainingData> data;
  std::optional<CheckpointReader> checkpoint;  // whose weights are taken; none: a new model
  std::optional<DirectoryLock> lock;           // of --save, on rank 0
  // The run goes on from its own folder, in which damaged later checkpoints may be in the way.
  bool same_folder = false;
  GridShape grid;  // of the ranks of this run
};

// `given` is the table that `options` was parsed with. Collective over world, the ranks of the run,
// of which rank 0 alone looks for the checkpoint and writes. Throws UsageError (a contradiction, a
// size that does not fit, a model larger than the memory: with the estimate in GiB, a --save that
// holds another run), DataError (damage, another vocabulary, other data than the checkpoint's),
// EnvironmentError (missing files, a --save that another job holds or that cannot be written).
[[nodiscard]] TrainingStart start_training(const TrainOptions& options, const Options& given,
                                           const Communicator& world);

// Bytes in tensors at the peak of such a run on the first rank of the grid, counted before it from
// the shapes of its layers; of resolved options.
[[nodiscard]] std::int64_t predicted_memory(const TrainOptions& options, const GridShape& grid);

// Bytes that a process may still take, from the system's count and the limit of its control group.
[[nodiscard]] std::int64_t available_memory();

}  // namespace mt
