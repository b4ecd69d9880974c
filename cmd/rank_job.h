// A program as one rank of an MPI job: start and end around its work, and how a job ends when a
// rank fails: one rank says why, and all end with its status.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "comm/communicator.h"
#include "comm/mpi_session.h"
#include "comm/watchdog.h"

namespace mt {

// Stands outside the try block of main (comm/mpi_session.h). One a process. While it lives, a call
// of exit() in the middle of the work is a failure, too (status 70).
class RankJob {
 public:
  // Starts MPI; collective. Throws EnvironmentError if MPI cannot start, or sees other ranks than
  // the launcher promised.
  RankJob(std::string program, const Launch& launch);
  ~RankJob();
  RankJob(const RankJob&) = delete;
  RankJob& operator=(const RankJob&) = delete;

  [[nodiscard]] const Communicator& world() const { return *world_; }
  [[nodiscard]] const std::vector<RankHost>& hosts() const { return session_->hosts(); }
  // "node-17": this rank's.
  [[nodiscard]] const std::string& host() const;
  // Cores for this rank; 0 if not known.
  [[nodiscard]] int share_of_cores() const { return session_->board().share_of_cores(); }

  // From here on a hang of `seconds` ends the job with status 6. 0: no watchdog.
  void watch(double seconds);

  // The end of this rank's work. Collective. Returns the highest status of all ranks.
  [[nodiscard]] int finish(int status);

  // For a rank whose work failed with an error of this text (`more` is added to it): the job ends
  // with the status, after one line from the rank that may speak.
  [[noreturn]] void fail(int status, const char* text, const char* more) noexcept;

 private:
  // Lines begin with rank and host from here on: whoever reads them sees one for the whole job.
  void name_rank() noexcept;
  static void on_exit();  // for std::atexit

  std::string program_;
  std::unique_ptr<MpiSession> session_;
  std::unique_ptr<Communicator> world_;
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace mt
