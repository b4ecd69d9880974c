#include "cmd/rank_job.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/threads.h"

namespace mt {
namespace {

constexpr std::chrono::seconds kPatience{4};  // for an end that others bring

// The job whose work is going on. std::atexit can reach nothing but an object of static lifetime.
RankJob*& working_job() {
  static RankJob* job = nullptr;
  return job;
}

[[noreturn]] void end_job(int status) noexcept {
  working_job() = nullptr;
  try {  // where MPI cannot end the job, the launcher will, when this process is gone
    start_thread([status] {
      std::this_thread::sleep_for(kPatience);
      ::_exit(status);
    }).detach();
  } catch (const std::exception&) {
  }
  MpiSession::end_all_ranks(status);
}

}  // namespace

RankJob::RankJob(std::string program, const Launch& launch)
    : program_(std::move(program)), session_(std::make_unique<MpiSession>()) {
  const int found = static_cast<int>(session_->hosts().size());
  if (found != launch.size) {
    throw EnvironmentError(cat("started as rank ", launch.rank, " of ", launch.size,
                               ", but MPI finds ", found,
                               found == 1 ? " rank: use mpirun, or srun --mpi=pmix" : " ranks"));
  }
  world_ = session_->world();
  static const int registered = std::atexit(on_exit);
  if (registered == 0) working_job() = this;
}

RankJob::~RankJob() {
  working_job() = nullptr;
}

const std::string& RankJob::host() const {
  return hosts().at(static_cast<std::size_t>(world_->rank())).name;
}

void RankJob::watch(double seconds) {
  if (seconds <= 0) return;
  watchdog_ = std::make_unique<Watchdog>(
      session_->board(), world_->size(), host(), seconds, [this](const std::string& report) {
        set_log(program_, LogLevel::kInfo);  // the report names the rank, which is another one
        log_failure(report.c_str());
        end_job(static_cast<int>(ExitStatus::kPeer));
      });
}

int RankJob::finish(int status) {
  world_->progress(0, "ending");
  double highest = status;
  world_->all_reduce(&highest, 1, ReduceOp::kMax);
  working_job() = nullptr;
  watchdog_.reset();
  world_.reset();
  session_.reset();
  return static_cast<int>(highest);
}

void RankJob::fail(int status, const char* text, const char* more) noexcept {
  auto voice = RankBoard::Voice::kForItself;
  try {
    voice = session_->board().ask_for_voice(status, std::string(text) + more);
  } catch (const std::exception&) {  // no memory: it speaks
  }
  switch (voice) {
    case RankBoard::Voice::kSilent:
      std::this_thread::sleep_for(kPatience);  // the rank that speaks ends this one
      break;
    case RankBoard::Voice::kForItself:
      name_rank();
      [[fallthrough]];
    case RankBoard::Voice::kForAll:
      log_failure(text, more);
  }
  end_job(status);
}

void RankJob::name_rank() noexcept {
  try {
    set_log(cat(program_, ": rank ", world_->rank(), " on ", host()), LogLevel::kInfo);
  } catch (const std::exception&) {  // no memory for the name
  }
}

void RankJob::on_exit() {
  RankJob* const job = std::exchange(working_job(), nullptr);
  if (job == nullptr) return;
  if (job->session_->board().take_voice()) {
    job->name_rank();
    log_failure("internal error: exit() was called in the middle of the work");
  }
  end_job(static_cast<int>(ExitStatus::kInternal));
}

}  // namespace mt
