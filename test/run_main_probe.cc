// A program around cmd/run_main.h that ends in every way there is, for cli/run_main.sh.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <new>
#include <stdexcept>

#include "base/error.h"
#include "base/log.h"
#include "cmd/run_main.h"

namespace {

struct Probe {
  std::string end = "done";
  std::int64_t lines = 0;
};

int run(const Probe& probe, const mt::RunContext& context) {
  for (std::int64_t i = 0; i < probe.lines; ++i) {
    std::cout << "line " << i << '\n';
  }
  mt::log_info("information");
  mt::log_debug("detail");
  const std::string message = "out.h5: expected 1, found 2";
  if (probe.end == "usage") throw mt::UsageError(message);
  if (probe.end == "data") throw mt::DataError(message);
  if (probe.end == "environment") throw mt::EnvironmentError(message);
  if (probe.end == "numeric") throw mt::NumericError(message);
  if (probe.end == "memory") throw std::bad_alloc();
  if (probe.end == "bug") throw std::logic_error("vector");
  if (probe.end == "odd") throw 7;
  if (probe.end == "assert") MT_ASSERT(1 == 2);
  if (probe.end == "descriptor") {
    std::cout << ::open("/dev/null", O_RDONLY) << '\n';
  }
  if (probe.end == "context") {
    std::cout << context.cpu_set << ' ' << context.threads << '\n';
  }
  return probe.end == "difference" ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  Probe probe;
  return mt::run_main({.name = "mt-probe",
                       .usage = "[options]",
                       .description = "Ends as it is told.",
                       .add_options =
                           [&](mt::Options& options) {
                             options.add("end", &probe.end, "HOW", "how to end");
                             options.add("lines", &probe.lines, "N", "lines to write");
                           },
                       .run = [&](const mt::Options&,
                                  const mt::RunContext& context) { return run(probe, context); }},
                      argc, argv);
}
