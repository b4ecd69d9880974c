#include "base/threads.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace mt {
namespace {

// Before sleeping: some tens of microseconds, in which the core is offered to whoever wants it.
constexpr int kSpins = 60;

// New threads leave signals to the first one.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

class Workers {
 public:
  ~Workers() {
    stop_.store(true);
    epoch_.fetch_add(1);
    epoch_.notify_all();
    for (std::thread& worker : workers_) {
      worker.join();
    }
  }

  void set_count(int count) { count_.store(count < 1 ? 1 : count); }
  [[nodiscard]] int count() const { return count_.load(std::memory_order_relaxed); }

  void run(std::int64_t parts, int most, PartBody body, const void* context) {
    const std::int64_t wanted = std::min<std::int64_t>(std::min(most, count()), parts);
    std::unique_lock<std::mutex> lock(busy_, std::defer_lock);
    if (wanted <= 1 || !lock.try_lock()) {
      for (std::int64_t part = 0; part < parts; ++part) {
        body(context, part, 0);
      }
      return;
    }
    start_workers(static_cast<std::size_t>(wanted - 1));
    job_ = {.parts = parts, .body = body, .context = context, .helpers = wanted - 1};
    next_.store(0, std::memory_order_relaxed);
    left_.store(0, std::memory_order_relaxed);
    state_.store(0, std::memory_order_release);  // open
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    take_parts(0);
    const std::uint32_t joined = state_.fetch_or(kClosed, std::memory_order_acq_rel);
    wait_until_left(joined);
    if (failed_.exchange(false)) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  static constexpr std::uint32_t kClosed = 1U << 31;

  struct Job {
    std::int64_t parts = 0;
    PartBody body = nullptr;
    const void* context = nullptr;
    std::int64_t helpers = 0;
  };

  void take_parts(int thread) noexcept {
    const Job job = job_;
    try {
      for (;;) {
        const std::int64_t part = next_.fetch_add(1, std::memory_order_relaxed);
        if (part >= job.parts) return;
        job.body(job.context, part, thread);
      }
    } catch (...) {
      if (!failed_.exchange(true)) error_ = std::current_exception();
      next_.store(job.parts, std::memory_order_relaxed);
    }
  }

  void wait_until_left(std::uint32_t joined) {
    for (int spin = 0;; ++spin) {
      const std::uint32_t left = left_.load(std::memory_order_acquire);
      if (left == joined) return;
      if (spin < kSpins) {
        std::this_thread::yield();
      } else {
        left_.wait(left, std::memory_order_acquire);
      }
    }
  }

  void work() {
    std::uint32_t seen = 0;
    while (!stop_.load(std::memory_order_relaxed)) {
      for (int spin = 0; epoch_.load(std::memory_order_acquire) == seen; ++spin) {
        if (spin < kSpins) {
          std::this_thread::yield();
        } else {
          epoch_.wait(seen, std::memory_order_acquire);
        }
      }
      seen = epoch_.load(std::memory_order_acquire);
      std::uint32_t joined = state_.load(std::memory_order_acquire);
      // Joining fails once the work is closed, so the starter never waits for who has not begun.
      // What the job is may be read only after joining.
      while ((joined & kClosed) == 0 &&
             !state_.compare_exchange_weak(joined, joined + 1, std::memory_order_acq_rel)) {
      }
      if ((joined & kClosed) != 0) continue;
      if (joined < job_.helpers) take_parts(static_cast<int>(joined) + 1);
      left_.fetch_add(1, std::memory_order_release);
      left_.notify_one();
    }
  }

  // A system that gives no more threads makes the work slower, not wrong.
  void start_workers(std::size_t wanted) {
    if (workers_.size() >= wanted || refused_) return;
    const BlockedSignals blocked;
    try {
      while (workers_.size() < wanted) {
        workers_.emplace_back([this] { work(); });
      }
    } catch (const std::system_error&) {
      refused_ = true;
    }
  }

  std::mutex busy_;
  std::vector<std::thread> workers_;
  bool refused_ = false;
  Job job_;
  std::atomic<int> count_{1};
  std::atomic<bool> failed_{false};  // a body of this work threw error_
  std::exception_ptr error_;
  std::atomic<std::int64_t> next_{0};
  std::atomic<std::uint32_t> state_{kClosed};  // who joined, and whether joining is over
  std::atomic<std::uint32_t> left_{0};
  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<bool> stop_{false};
};

// The one pool: threads belong to the process, as its memory does.
Workers& workers() {
  static Workers pool;
  return pool;
}

}  // namespace

void set_threads(int count) {
  workers().set_count(count);
}

int threads() {
  return workers().count();
}

void run_parts(std::int64_t parts, int most, PartBody body, const void* context) {
  workers().run(parts, most, body, context);
}

void run_parts_or_throw(std::int64_t parts, int most,
                        const std::function<void(std::int64_t)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(parts));
  std::atomic<bool> failed{false};
  const auto guarded = [&](std::int64_t part) noexcept {
    if (failed.load(std::memory_order_relaxed)) return;
    try {
      body(part);
    } catch (...) {
      errors[static_cast<std::size_t>(part)] = std::current_exception();
      failed.store(true, std::memory_order_relaxed);
    }
  };
  run_parts(
      parts, most,
      [](const void* context, std::int64_t part, int) {
        (*static_cast<const decltype(guarded)*>(context))(part);
      },
      &guarded);
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

std::thread start_thread(std::function<void()> body) {
  const BlockedSignals blocked;
  return std::thread(std::move(body));
}

}  // namespace mt
