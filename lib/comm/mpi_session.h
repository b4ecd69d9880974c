// MPI as a process uses it: started once if a launcher says so, ended once, aborted when a rank
// fails.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/placement.h"
#include "comm/rank_board.h"

namespace mt {

// Owns MPI from its start to its end. One a process; its thread is the only one that communicates.
// It stands outside the try block of main, so that nothing of it is undone while an exception is on
// its way: other ranks may be inside a collective that never ends.
class MpiSession {
 public:
  // Collective over the processes of the launch; finds the nodes. Throws EnvironmentError if MPI
  // cannot start.
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

  // Where each rank of the world runs.
  [[nodiscard]] const std::vector<RankHost>& hosts() const;
  // Of the ranks of this node. The communicators publish to it.
  [[nodiscard]] const RankBoard& board() const;

  // Ends the processes of all ranks with `status`, whatever they are doing. May be called
  // from any thread.
  [[noreturn]] static void end_all_ranks(int status);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mt
