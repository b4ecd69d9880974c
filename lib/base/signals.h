// A latch for the signals that ask a long job to stop after its present step.
#pragma once

#include <csignal>

namespace mt {

// While it lives, the first SIGUSR1, SIGTERM or SIGINT is remembered instead of ending the process;
// a second SIGTERM or SIGINT ends it at once by its default action (status 128 + N). System calls
// that it interrupts are restarted. One at a time in a process; destruction restores the former
// actions. Throws EnvironmentError if the system refuses a handler.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The number of the first signal, or 0. A later SIGTERM or SIGINT replaces SIGUSR1.
  [[nodiscard]] int requested() const;

 private:
  struct sigaction old_usr1_ {
  }, old_term_{}, old_int_{};
};

}  // namespace mt
