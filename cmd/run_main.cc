#include "cmd/run_main.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>
#include <optional>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "cmd/rank_job.h"
#include "comm/agreement.h"
#include "comm/communicator.h"
#include "io/hdf5.h"
#include "tensor/tensor.h"

namespace mt {

namespace {

constexpr std::int64_t kMostThreads = 4096;

// A descriptor 0, 1 or 2 that was closed at the start would be given to the next file that is
// opened, and output meant for the user would go into that. It is taken by /dev/null instead, open
// the wrong way round, so that its use still fails.
void occupy_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) == -1 && errno == EBADF) {
      const int opened = ::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
      if (opened != fd) {
        throw EnvironmentError("cannot open /dev/null in place of a closed standard stream");
      }
    }
  }
}

std::string version_text(const Program& program, const std::string& cpu_set) {
  return cat(program.name, " ", MT_VERSION, "\ncompiler: GCC ", __VERSION__,
             "\nMPI: ", mpi_version(), "\nHDF5: ", hdf5_version(),
             "\nkernels: ", cpu_kernel_set(cpu_set));
}

// Rank 0 says it; the others leave it the time, since the first to end ends all.
int refuse_several_ranks(const Launch& launch) {
  if (launch.rank == 0) {
    throw UsageError(cat("started as ", launch.size,
                         " ranks: this program works in one process; start it without a "
                         "launcher, or with one rank"));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  return static_cast<int>(ExitStatus::kUsage);
}

// What all ranks must have in common.
Facts common_facts(const Options& options) {
  Facts facts = program_facts();
  for (const auto& [name, value] : options.values()) {
    if (name != "threads" && name != "quiet" && name != "verbose") {
      facts.emplace_back("--" + name, value.empty() ? "nothing" : value);
    }
  }
  return facts;
}

// Information from one rank is enough, and warnings may differ.
LogLevel log_level(const Options& options, int rank) {
  if (options.quiet()) return LogLevel::kQuiet;
  if (options.verbose()) return LogLevel::kDebug;
  return rank > 0 ? LogLevel::kWarning : LogLevel::kInfo;
}

// Works as all ranks do, or as the one there is.
int run_program(const Program& program, const Options& options, RunContext& context, RankJob* job) {
  if (job == nullptr) {
    const auto alone = make_single_communicator();
    context.world = alone.get();
    context.hosts = {RankHost{}};
    context.watch = [](double) {};
    return program.run(options, context);
  }
  check_agreement(job->world(), common_facts(options), job->host());
  context.world = &job->world();
  context.hosts = job->hosts();
  context.watch = [job](double seconds) { job->watch(seconds); };
  if (context.threads == 0) context.threads = job->share_of_cores();
  return program.run(options, context);
}

// Parses and runs; the status if nothing is thrown. Where there are several ranks, `job` is set
// before anything is thrown that they find alike.
int parse_and_run(const Program& program, int argc, char** argv, std::optional<RankJob>& job) {
  occupy_standard_descriptors();
  const Launch launch = find_launch();
  const bool several = launch.size > 1 && program.ranks == Ranks::kMany;
  const char* const wanted_set = std::getenv("MT_CPU");
  RunContext context;
  context.cpu_set = wanted_set == nullptr ? "" : wanted_set;
  std::int64_t threads = 0;
  Options options(program.name, program.usage, program.description);
  program.add_options(options);
  options.section("General");
  options.add("threads", &threads, "N", "threads; 0 takes all cores that the process may run on");
  std::ostringstream unheard;
  try {
    const auto version = [&] { return version_text(program, context.cpu_set); };
    std::ostream& out = launch.rank == 0 ? std::cout : unheard;
    if (options.parse(argc, argv, version, out) == Options::Parsed::kDone) {
      return static_cast<int>(ExitStatus::kDone);
    }
    if (threads < 0 || threads > kMostThreads) {
      throw UsageError(cat("--threads: expected 0 to ", kMostThreads, ", found ", threads));
    }
  } catch (const UsageError& error) {
    if (several) job.emplace(program.name, launch);
    throw UsageError(cat(error.what(), " (see ", program.name, " --help)"));
  }
  set_log(program.name, log_level(options, launch.rank), launch.rank);
  if (launch.size > 1 && !several) return refuse_several_ranks(launch);
  if (several) job.emplace(program.name, launch);
  try {
    static_cast<void>(cpu_kernel_set(context.cpu_set));
  } catch (const UsageError& error) {
    throw UsageError(cat("environment variable MT_CPU: ", error.what()));
  }
  context.threads = static_cast<int>(threads);
  return run_program(program, options, context, job ? &*job : nullptr);
}

// The progress line that may stand there ends.
void end_progress() noexcept {
  try {
    progress("");
  } catch (const std::exception&) {  // no memory for a line that is only shown
  }
}

// Calls say(status, text, more) for the exception that is being handled; returns the status.
template <typename Say>
int tell_failure(const Say& say) noexcept {
  const auto tell = [&](ExitStatus status, const char* text, const char* more = "") {
    say(static_cast<int>(status), text, more);
    return static_cast<int>(status);
  };
  try {
    throw;
  } catch (const Error& error) {
    return tell(error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return tell(ExitStatus::kEnvironment, "out of memory");
  } catch (const std::exception& error) {
    return tell(ExitStatus::kInternal, "internal error: ", error.what());
  } catch (...) {
    return tell(ExitStatus::kInternal, "internal error: an exception of unknown type");
  }
}

int status_of(const Program& program, int argc, char** argv, std::optional<RankJob>& job) noexcept {
  try {
    set_log(program.name, LogLevel::kInfo);
    return parse_and_run(program, argc, argv, job);
  } catch (...) {
    if (!job) return status_of_failure(program.name.c_str());
    end_progress();
    return tell_failure(
        [&](int status, const char* text, const char* more) { job->fail(status, text, more); });
  }
}

// Where unwinding is not possible (a destructor of the JSON library needs memory, others' functions
// are noexcept) the process ends as the exception says, without it. The next job removes what that
// leaves.
[[noreturn]] void end_at_once() noexcept {
  if (std::current_exception() != nullptr) ::_exit(status_of_failure(""));
  // None if there was no memory to throw one.
  constexpr std::size_t kLittle = std::size_t{1} << 20;
  if (::mmap(nullptr, kLittle, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
      MAP_FAILED) {
    std::abort();
  }
  log_failure("out of memory");
  ::_exit(static_cast<int>(ExitStatus::kEnvironment));
}

// True if standard output took all that was written; says what is wrong if not, unless the program
// has said so.
bool finish_stdout(bool said) noexcept {
  errno = 0;
  std::cout.flush();
  bool good = std::cout.good();
  // Some filesystems report a failed write no earlier.
  if (good && ::close(STDOUT_FILENO) != 0 && errno != EINTR) {
    good = false;
  }
  if (!good && !said) {
    const int error = errno;
    try {
      log_error(cat("cannot write standard output: ",
                    error != 0 ? std::strerror(error) : "an earlier write failed"));
    } catch (const std::exception&) {
      log_failure("cannot write standard output");
    }
  }
  return good;
}

// The end of a rank whose work is done. A failing end of MPI's is said like one of the work.
int finish_ranks(RankJob& job, int status) noexcept {
  try {
    return job.finish(status);
  } catch (...) {
    return tell_failure(
        [&](int failed, const char* text, const char* more) { job.fail(failed, text, more); });
  }
}

}  // namespace

int status_of_failure(const char* name) noexcept {
  name_log(name);
  return tell_failure([](int, const char* text, const char* more) { log_failure(text, more); });
}

int run_main(const Program& program, int argc, char** argv) {
  // A limit on file sizes (ulimit -f) is a failing write with a message, as a full disk is.
  std::signal(SIGXFSZ, SIG_IGN);
  std::set_terminate(end_at_once);
  std::optional<RankJob> job;  // outside of everything that unwinds
  int status = status_of(program, argc, argv, job);
  end_progress();
  const bool written = finish_stdout(status == static_cast<int>(ExitStatus::kEnvironment));
  const int failed = static_cast<int>(ExitStatus::kEnvironment);
  if (job) return finish_ranks(*job, status == 0 && !written ? failed : status);
  // HDF5 may crash at exit when it could not get what it asked the system for.
  if (status == failed) ::_exit(status);
  return status == 0 && !written ? failed : status;
}

}  // namespace mt
