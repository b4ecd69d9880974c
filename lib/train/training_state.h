// The state of a run beside weights and moments: what a checkpoint stores under "training", and how
// it meets the options of the command that goes on from it.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "base/options.h"
#include "train/train_options.h"
#include "train/training_data.h"

namespace mt {

// Position in the data is the count of consumed samples; samples, dropout and the learning rate are
// pure functions of it, of the iteration and of what stands here. The micro-batch size is absent,
// since nothing depends on it.
struct TrainingState {
  std::int64_t iteration = 0;         // optimizer steps done
  std::int64_t consumed_samples = 0;  // of the training part
  std::int64_t optimizer_steps = 0;   // since the moments were zero
  std::int64_t last_validation = 0;   // iteration of the last finished validation
  RunLength length;
  BatchRamp ramp;
  std::int64_t global_batch_size = 0;
  std::int64_t seq_length = 0;
  std::int64_t seed = 0;
  double hidden_dropout = 0, attention_dropout = 0;
  LrScheduleOptions schedule;  // resolved
  AdamOptions adam;
  PackingOptions packing;
  // How far each shard of the blend was read, in the order of the command line. Shards that a run
  // has left stay with weight 0, so that one that comes back goes on where it was.
  struct Source {
    DataIdentity identity;
    double weight = 1;
    std::int64_t consumed = 0;  // samples
    std::int64_t since = 0;     // of them, since the blend is what it is
  };
  std::vector<Source> sources;

  [[nodiscard]] Json to_json() const;
  // The position in a blend whose sources are the first ones here.
  [[nodiscard]] BlendPosition position(std::int64_t blend_sources) const;
  void set_position(const BlendPosition& position);
  // Throws DataError naming `where` and the key.
  [[nodiscard]] static TrainingState from_json(const Json& json, const std::string& where);
};

// Brings the shards of a command and those of a checkpoint together: one that both have goes on
// where it was, a new one starts at its beginning. With other weights or other shards the
// proportions hold from here on. Returns what changed, for the log, or "". Throws DataError if not
// one shard is the same.
[[nodiscard]] std::string resume_sources(const std::vector<TrainingState::Source>& stored,
                                         const std::string& where,
                                         std::vector<TrainingState::Source>& wished);

// Options that were not given are taken from `stored`; those that were given must agree with it
// (UsageError naming the option), unless --override-opt_param-scheduler lets the ones of schedule,
// optimizer, dropout and batch size win. Seed, sequence length and packing must agree: they say
// what a sample is. Resolves options.schedule. `where` names the checkpoint.
//
// Another --train-iters is refused while the rate decays over the old one, because the schedule
// would silently change or end early: --lr-decay-iters then says what is wanted.
void resume_options(const TrainingState& stored, const std::string& where, const Options& options,
                    TrainOptions& wished);

}  // namespace mt
