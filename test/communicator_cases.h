// What every communicator must do, whatever carries it: run by threads as ranks, and by processes.
#pragma once

#include "comm/communicator.h"

namespace mt {

// Throws Error (status 70) naming the operation, the place and both values where a result is not
// what it must be. Collective over the group, of any size.
void check_communicator(const Communicator& group);

}  // namespace mt
