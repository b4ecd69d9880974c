#include "base/signals.h"

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace mt {

namespace {

// What the handler has seen. A signal handler can reach nothing but an object of static lifetime.
volatile std::sig_atomic_t& latch() {
  static volatile std::sig_atomic_t signal_number = 0;
  return signal_number;
}

extern "C" void remember_signal(int number) {
  volatile std::sig_atomic_t& seen = latch();
  const bool stop_now = number != SIGUSR1;
  if (stop_now && (seen == SIGTERM || seen == SIGINT)) {
    // Blocked while this handler runs, so it acts at the return.
    std::signal(number, SIG_DFL);
    std::raise(number);
  } else if (seen == 0 || stop_now) {
    seen = number;
  }
}

void install(int number, const struct sigaction& action, struct sigaction* old) {
  if (::sigaction(number, &action, old) != 0) {
    throw EnvironmentError(cat("cannot handle signal ", number, ": ", std::strerror(errno)));
  }
}

}  // namespace

StopSignals::StopSignals() {
  latch() = 0;
  struct sigaction action {};
  action.sa_handler = remember_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  install(SIGUSR1, action, &old_usr1_);
  install(SIGTERM, action, &old_term_);
  install(SIGINT, action, &old_int_);
}

StopSignals::~StopSignals() {
  ::sigaction(SIGUSR1, &old_usr1_, nullptr);
  ::sigaction(SIGTERM, &old_term_, nullptr);
  ::sigaction(SIGINT, &old_int_, nullptr);
}

int StopSignals::requested() const {
  return latch();
}

}  // namespace mt
