// How the tensors of a checkpoint are cut into files.
#pragma once

#include <cstdint>

namespace mt {

// Tensor and pipeline ranks have files of their own, and for a distributed optimizer (ZeRO-1) data
// ranks too; without one `data` is 1, whatever the run's was. No reader needs it: boxes say all.
struct CheckpointLayout {
  std::int64_t tensor = 1, pipeline = 1, data = 1;
  bool distributed_optimizer = false;
  friend bool operator==(const CheckpointLayout&, const CheckpointLayout&) = default;
};

}  // namespace mt
