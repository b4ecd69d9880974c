// What every program does around its work: parse, report errors in one line, check that stdout was
// written, turn an error into the exit status.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/options.h"
#include "comm/communicator.h"
#include "comm/placement.h"

namespace mt {

// What a program learns from its start beside its own options.
struct RunContext {
  // The kernel set that MT_CPU asks for ("" chooses the best); for cpu_device() in
  // tensor/tensor.h. Known to be valid on this processor.
  std::string cpu_set;
  // --threads: 0 takes all cores that this process may run on. Ranks of a node that may run on the
  // same cores have divided them here.
  int threads = 0;
  // All ranks, which agree on program and options: a group of one for a process that was started
  // alone. Never null; lives until the work is done.
  const Communicator* world = nullptr;
  std::vector<RankHost> hosts;  // of all ranks
  // Starts the watchdog (comm/watchdog.h): several ranks without progress for so many seconds end
  // with status 6. 0: none. At most once.
  std::function<void(double seconds)> watch;
};

enum class Ranks { kOne, kMany };

struct Program {
  std::string name;         // "mt-eval"
  std::string usage;        // follows "usage: NAME "
  std::string description;  // a paragraph for --help
  std::function<void(Options&)> add_options;
  std::function<int(const Options&, const RunContext&)> run;  // returns the exit status
  Ranks ranks = Ranks::kOne;                                  // how many the program can work as
};

// Parses (--help and --version answer on stdout with status 0; misuse is one line and "see NAME
// --help" with status 2), runs, reports an error as "NAME: error: MESSAGE" on stderr, flushes
// stdout and checks that it took everything (status 4 if not). A broken pipe ends the process
// quietly by SIGPIPE.
//
// Started as one of several ranks, a program for one refuses (status 2), said by rank 0. Another
// gets MPI around its work; the ranks must agree on program and options (status 6) but --threads,
// --quiet and --verbose. What one rank's work throws ends the job: one line that names rank and
// host, or none where all failed alike, and its status everywhere. Information is logged by rank 0
// alone unless --verbose, warnings by all. --help and --version answer on rank 0. Adds --threads to
// the options that base/options.h gives every program, and reads the environment variable MT_CPU.
// May be called once in a process.
int run_main(const Program& program, int argc, char** argv);

// Says the exception that is being handled as run_main does, and returns its status: for a main
// whose options could not even be made. Works where there is no memory left.
int status_of_failure(const char* name) noexcept;

}  // namespace mt
