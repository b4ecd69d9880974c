#include "cmd/run_main.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>

#include "base/error.h"
#include "base/log.h"
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

void refuse_several_ranks(const Program& program, LogLevel level) {
  const Launch launch = find_launch();
  if (launch.size > 1) {
    set_log(program.name, level, launch.rank);
    throw UsageError(cat("started as rank ", launch.rank, " of ", launch.size,
                         ": this version works in one process; start it without a launcher, or "
                         "with one rank"));
  }
}

// Parses and runs; the status if nothing is thrown.
int parse_and_run(const Program& program, int argc, char** argv) {
  occupy_standard_descriptors();
  const char* const wanted_set = std::getenv("MT_CPU");
  RunContext context;
  context.cpu_set = wanted_set == nullptr ? "" : wanted_set;
  std::int64_t threads = 0;
  Options options(program.name, program.usage, program.description);
  program.add_options(options);
  options.section("General");
  options.add("threads", &threads, "N", "threads; 0 takes all cores that the process may run on");
  try {
    const auto version = [&] { return version_text(program, context.cpu_set); };
    if (options.parse(argc, argv, version, std::cout) == Options::Parsed::kDone) {
      return static_cast<int>(ExitStatus::kDone);
    }
    if (threads < 0 || threads > kMostThreads) {
      throw UsageError(cat("--threads: expected 0 to ", kMostThreads, ", found ", threads));
    }
  } catch (const UsageError& error) {
    throw UsageError(cat(error.what(), " (see ", program.name, " --help)"));
  }
  const LogLevel level = options.quiet()     ? LogLevel::kQuiet
                         : options.verbose() ? LogLevel::kDebug
                                             : LogLevel::kInfo;
  set_log(program.name, level);
  refuse_several_ranks(program, level);
  try {
    static_cast<void>(cpu_kernel_set(context.cpu_set));
  } catch (const UsageError& error) {
    throw UsageError(cat("environment variable MT_CPU: ", error.what()));
  }
  context.threads = static_cast<int>(threads);
  return program.run(options, context);
}

int status_of(const Program& program, int argc, char** argv) noexcept {
  try {
    set_log(program.name, LogLevel::kInfo);
    return parse_and_run(program, argc, argv);
  } catch (...) {
    return status_of_failure(program.name.c_str());
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

// The progress line that may stand there ends.
void end_progress() noexcept {
  try {
    progress("");
  } catch (const std::exception&) {  // no memory for a line that is only shown
  }
}

}  // namespace

int status_of_failure(const char* name) noexcept {
  name_log(name);
  try {
    throw;
  } catch (const Error& error) {
    log_failure(error.what());
    return static_cast<int>(error.status());
  } catch (const std::bad_alloc&) {
    log_failure("out of memory");
    return static_cast<int>(ExitStatus::kEnvironment);
  } catch (const std::exception& error) {
    log_failure("internal error: ", error.what());
  } catch (...) {
    log_failure("internal error: an exception of unknown type");
  }
  return static_cast<int>(ExitStatus::kInternal);
}

int run_main(const Program& program, int argc, char** argv) {
  // A limit on file sizes (ulimit -f) is a failing write with a message, as a full disk is.
  std::signal(SIGXFSZ, SIG_IGN);
  std::set_terminate(end_at_once);
  const int status = status_of(program, argc, argv);
  end_progress();
  const bool written = finish_stdout(status == static_cast<int>(ExitStatus::kEnvironment));
  const int failed = static_cast<int>(ExitStatus::kEnvironment);
  // HDF5 may crash at exit when it could not get what it asked the system for.
  if (status == failed) ::_exit(status);
  return status == 0 && !written ? failed : status;
}

}  // namespace mt
