// What every program does around its work: parse, report errors in one line, check that stdout was
// written, turn an error into the exit status.
#pragma once

#include <functional>
#include <string>

#include "base/options.h"

namespace mt {

struct Program {
  std::string name;         // "mt-eval"
  std::string usage;        // follows "usage: NAME "
  std::string description;  // a paragraph for --help
  std::function<void(Options&)> add_options;
  std::function<int(const Options&)> run;  // returns the exit status
};

// Parses (--help and --version answer on stdout with status 0; misuse is one line and "see NAME
// --help" with status 2), runs, reports errors as "NAME: MESSAGE", flushes stdout and checks that
// it took everything (status 4 if not). A broken pipe ends the process quietly by SIGPIPE. A start
// as one of several ranks is refused (status 2) until a program takes them.
int run_main(const Program& program, int argc, char** argv);

}  // namespace mt
