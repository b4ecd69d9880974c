#include "base/signals.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace mt {
namespace {

// The wait status of a child that runs f.
template <typename F>
int child_status(F f) {
  const pid_t child = ::fork();
  if (child == 0) {
    f();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(StopSignals, the_first_one_is_remembered) {
  for (const int number : {SIGUSR1, SIGTERM, SIGINT}) {
    const StopSignals signals;
    EXPECT_EQ(signals.requested(), 0);
    std::raise(number);
    EXPECT_EQ(signals.requested(), number);
    std::raise(SIGUSR1);
    EXPECT_EQ(signals.requested(), number);
  }
}

TEST(StopSignals, an_interrupt_outranks_a_request_to_save) {
  const StopSignals signals;
  std::raise(SIGUSR1);
  std::raise(SIGINT);
  EXPECT_EQ(signals.requested(), SIGINT);
}

TEST(StopSignals, a_second_interrupt_ends_the_process_by_its_default_action) {
  for (const int number : {SIGTERM, SIGINT}) {
    for (const int first : {SIGTERM, SIGINT}) {
      const int status = child_status([&] {
        const StopSignals signals;
        std::raise(first);
        std::raise(number);
      });
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == number) << status;
    }
  }
  const int status = child_status([] {
    const StopSignals signals;
    std::raise(SIGUSR1);
    std::raise(SIGUSR1);
    std::raise(SIGTERM);
  });
  EXPECT_TRUE(WIFEXITED(status));
}

TEST(StopSignals, the_former_actions_come_back) {
  const int status = child_status([] {
    { const StopSignals signals; }
    std::raise(SIGUSR1);
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1);
}

}  // namespace
}  // namespace mt
