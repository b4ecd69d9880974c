// How far a long reading of checkpoints is: a progress line, and the place where it stops.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace mt {

class Meter {
 public:
  // `what` begins the line; `total` bytes are all. `stop` (may be empty) is asked now and then.
  Meter(std::string what, std::uint64_t total, std::function<int()> stop);
  // Ends the line.
  ~Meter();
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  // One thread at a time. Throws Error with status 128 + N after signal N.
  void add(std::uint64_t bytes);
  [[nodiscard]] std::uint64_t done() const { return done_; }
  [[nodiscard]] double seconds() const;

 private:
  std::string what_;
  std::uint64_t total_, done_ = 0;
  std::function<int()> stop_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  bool shown_ = false;
};

// "1.25 GB", "17 kB": powers of 1000.
[[nodiscard]] std::string bytes_text(double bytes);

}  // namespace mt
