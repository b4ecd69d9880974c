// What every program does around its work: parse, report errors in one line, check that stdout was
// written, turn an error into the exit status.
#pragma once

#include <functional>
#include <string>

#include "base/options.h"

namespace mt {

// What a program learns from its start beside its own options.
struct RunContext {
  // The kernel set that MT_CPU asks for ("" chooses the best); for cpu_device() in
  // tensor/tensor.h. Known to be valid on this processor.
  std::string cpu_set;
  int threads = 0;  // --threads: 0 takes all cores that this process may run on
};

struct Program {
  std::string name;         // "mt-eval"
  std::string usage;        // follows "usage: NAME "
  std::string description;  // a paragraph for --help
  std::function<void(Options&)> add_options;
  std::function<int(const Options&, const RunContext&)> run;  // returns the exit status
};

// Parses (--help and --version answer on stdout with status 0; misuse is one line and "see NAME
// --help" with status 2), runs, reports an error as "NAME: error: MESSAGE" on stderr, flushes
// stdout and checks that it took everything (status 4 if not). A broken pipe ends the process
// quietly by SIGPIPE. A start as one of several ranks is refused (status 2) until a program takes
// them. Adds --threads to the options that base/options.h gives every program, and reads the
// environment variable MT_CPU. May be called once in a process.
int run_main(const Program& program, int argc, char** argv);

// Says the exception that is being handled as run_main does, and returns its status: for a main
// whose options could not even be made. Works where there is no memory left.
int status_of_failure(const char* name) noexcept;

}  // namespace mt
