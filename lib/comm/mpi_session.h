// MPI as a process uses it: started once if a launcher says so, ended once, aborted when a rank
// fails.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace mt {

// Owns MPI from its start to its end. One a process; its thread is the only one that communicates.
// It stands outside the try block of main, so that nothing of it is undone while an exception is on
// its way: other ranks may be inside a collective that never ends.
class MpiSession {
 public:
  // Collective over the processes of the launch. Throws EnvironmentError if MPI cannot start.
  MpiSession();
  // Collective: waits for the other ranks. Every communicator must be gone.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  // How ranks of one node reduce: through memory that they share, or through messages as ranks of
  // different nodes do (for tests).
  enum class Carrier { kSharedMemory, kMessages };
  // All ranks. Collective.
  [[nodiscard]] std::unique_ptr<Communicator> world(Carrier carrier = Carrier::kSharedMemory) const;

  // Ends the processes of all ranks with `status`, whatever they are doing.
  [[noreturn]] static void end_all_ranks(int status);
};

}  // namespace mt
