// What the rank that leads asks the ranks of a grid to compute, as a message.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace mt {

struct InferenceCommand {
  enum class Kind : std::int64_t {
    kEnd,         // nothing more comes
    kTokenNll,    // numbers: batch, sequence, then counted of each sample or nothing
    kTreeNll,     // numbers: whether greedy is asked for, then of each tree: prefix, branches, and
                  // of each branch: positions, counted
    kOpenCache,   // numbers: cache, slots, capacity
    kCloseCache,  // numbers: cache
    kTruncate,    // numbers: cache, slot, positions
    kFork,        // numbers: cache, from, to, positions
    kNextLogits,  // numbers: cache, batch, sequence, slots
  };
  Kind kind = Kind::kEnd;
  std::vector<std::int64_t> numbers = {};
  std::vector<std::int32_t> tokens = {}, labels = {};
};

// Overwrites the command of every rank with rank 0's. Collective over world: one broadcast of 512
// bytes, and one of the rest where there is more.
void broadcast_command(const Communicator& world, InferenceCommand& command);

}  // namespace mt
