// Errors that a user can act on, and the exit status each class of them leads to.
//
// The library throws; cmd/run_main prints the one line and returns the status. A message says what
// was being done, to which file, data set, parameter or option, what was expected and what was
// found.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace mt {

// The exit status of every program (architecture: programs). The values are a stable interface.
enum class ExitStatus : int {
  kDone = 0,
  kDifference = 1,   // a check that was asked for found a difference between sound inputs
  kUsage = 2,        // options, configuration, output that exists; nothing was written
  kData = 3,         // malformed, damaged or mismatched input
  kEnvironment = 4,  // disk, permission, memory, a directory that another job holds
  kNumeric = 5,      // a value that is not finite, replicas that differ
  kPeer = 6,         // a rank was lost or ranks disagree
  kInternal = 70,    // our own fault
  kRequeue = 75,     // stopped on request after a good checkpoint: run me again
};

class Error : public std::runtime_error {
 public:
  Error(ExitStatus status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  [[nodiscard]] ExitStatus status() const { return status_; }

 private:
  ExitStatus status_;
};

struct UsageError : Error {
  explicit UsageError(const std::string& message) : Error(ExitStatus::kUsage, message) {}
};
struct DataError : Error {
  explicit DataError(const std::string& message) : Error(ExitStatus::kData, message) {}
};
struct EnvironmentError : Error {
  explicit EnvironmentError(const std::string& message)
      : Error(ExitStatus::kEnvironment, message) {}
};
struct NumericError : Error {
  explicit NumericError(const std::string& message) : Error(ExitStatus::kNumeric, message) {}
};

// A stream into a string that says so when there is no memory: others swallow that and give a text
// that is cut short.
class TextStream : public std::ostringstream {
 public:
  TextStream() { exceptions(std::ios::badbit); }
};

// Joins its arguments with operator<<, in the C locale. GCC 12 has no std::format.
template <typename... Args>
[[nodiscard]] std::string cat(const Args&... args) {
  TextStream out;
  (out << ... << args);
  return out.str();
}

[[noreturn]] inline void assertion_failed(const char* what, const char* file, int line) {
  throw Error(ExitStatus::kInternal,
              cat("internal error: ", what, " does not hold at ", file, ":", line));
}

// For our own mistakes only: no input may reach it.
#define MT_ASSERT(condition) \
  ((condition) ? void() : ::mt::assertion_failed(#condition, __FILE__, __LINE__))

}  // namespace mt
