#include "ckpt/async_save.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/threads.h"
#include "ckpt/common_failure.h"
#include "ckpt/manifest.h"

namespace mt {
namespace {

constexpr std::int64_t kAlignment = 64;                     // of a box in the copy, bytes
constexpr std::int64_t kTouch = 4096;                       // no page is smaller
constexpr std::int64_t kCopyPart = std::int64_t{32} << 20;  // bytes of a thread's unit of work

std::int64_t bytes_of(const Box& box) {
  return static_cast<std::int64_t>(checked_bytes(box.extent, box.dtype, box.name));
}

std::int64_t place_of(const Box& box) {
  return (bytes_of(box) + kAlignment - 1) / kAlignment * kAlignment;
}

// Copies from where the boxes point to `to`, and lets them point there.
void copy_boxes(std::vector<Box*> boxes, std::byte* to) {
  struct Part {
    std::byte* to;
    const std::byte* from;
    std::int64_t bytes;
  };
  std::vector<Part> parts;
  for (Box* const box : boxes) {
    const auto* const from = static_cast<const std::byte*>(box->data);
    const std::int64_t bytes = bytes_of(*box);
    for (std::int64_t at = 0; at < bytes; at += kCopyPart) {
      parts.push_back({to + at, from + at, std::min(kCopyPart, bytes - at)});
    }
    box->data = to;
    to += place_of(*box);
  }
  run_parts_or_throw(static_cast<std::int64_t>(parts.size()), threads(), [&](std::int64_t i) {
    const Part& part = parts[static_cast<std::size_t>(i)];
    std::memcpy(part.to, part.from, static_cast<std::size_t>(part.bytes));
  });
}

}  // namespace

RunSaver::RunSaver(Settings settings, const Communicator& world)
    : settings_(std::move(settings)), world_(world) {}

RunSaver::~RunSaver() {
  if (thread_.joinable()) thread_.join();
  if (!busy_ || world_.size() == 1 || std::uncaught_exceptions() > 0) return;
  guard([&] { end(content_); });
}

bool RunSaver::finished() const {
  if (!busy_) return false;
  double busy_ranks = done_.load(std::memory_order_acquire) ? 0 : 1;
  world_.all_reduce(&busy_ranks, 1, ReduceOp::kSum);
  return busy_ranks == 0;
}

std::int64_t RunSaver::bytes_of_copy(const CheckpointContent& content) {
  std::int64_t bytes = 0;
  for (const Box& box : content.weights) bytes += place_of(box);
  for (const Box& box : content.optimizer) bytes += place_of(box);
  return bytes;
}

void RunSaver::reserve(const CheckpointContent& content, Pool& pool) {
  MT_ASSERT(!busy_);
  const std::int64_t bytes = bytes_of_copy(content);
  if (copies_.defined() && copies_.size() >= bytes) return;
  copies_ = Tensor();
  copies_ = Tensor(pool, {bytes}, DType::kU8, MemoryKind::kWorkspace);
  auto* const data = copies_.as<std::byte>();
  run_parts_or_throw((bytes + kCopyPart - 1) / kCopyPart, threads(), [&](std::int64_t part) {
    const std::int64_t end = std::min(bytes, (part + 1) * kCopyPart);
    for (std::int64_t at = part * kCopyPart; at < end; at += kTouch) data[at] = std::byte{0};
  });
}

template <typename Step>
void RunSaver::guard(const Step& step) {
  if (error_ || !outcome_.failure.empty()) return;  // of a step before, on all ranks
  try {
    step();
  } catch (const EnvironmentError& error) {
    if (before_failed_) {
      error_ = std::current_exception();
    } else {
      outcome_.failure = error.what();
    }
  } catch (const std::bad_alloc&) {
    outcome_.failure = cat("cannot write ", outcome_.directory, ": out of memory");
  } catch (...) {
    error_ = std::current_exception();
  }
}

void RunSaver::begin(std::int64_t iteration, bool replace) {
  began_ = std::chrono::steady_clock::now();
  error_ = nullptr;
  before_failed_ = false;
  outcome_ = {};
  outcome_.iteration = iteration;
  outcome_.directory = iteration_directory(settings_.run, iteration);
  guard([&] { pending_ = std::make_unique<PendingSave>(outcome_.directory, world_, replace); });
}

void RunSaver::write(const CheckpointContent& content, int most_threads) {
  if (pending_ == nullptr) return;
  pending_->write(content, most_threads, [&] {
    if (!settings_.before) return;
    before_failed_ = true;
    settings_.before(content);
    before_failed_ = false;
  });
}

void RunSaver::end(const CheckpointContent& content) {
  guard([&] {
    double failed = before_failed_ ? 1 : 0;
    world_.all_reduce(&failed, 1, ReduceOp::kMax);
    before_failed_ = failed > 0;
    pending_->commit(content);
    outcome_.committed = true;
    run_on(0, world_, [&] { retain_checkpoints(settings_.run, settings_.keep); });
  });
  pending_.reset();
  const auto time = std::chrono::steady_clock::now() - began_;
  outcome_.seconds = std::chrono::duration<double>(time).count();
}

RunSaver::Outcome RunSaver::take() {
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  return outcome_;
}

RunSaver::Outcome RunSaver::save(const CheckpointContent& content, bool replace) {
  MT_ASSERT(!busy_);
  begin(content.iteration, replace);
  write(content, threads());
  end(content);
  return take();
}

void RunSaver::start(CheckpointContent content, bool replace, Pool& pool) {
  MT_ASSERT(!busy_);
  reserve(content, pool);
  content_ = std::move(content);
  replace_ = replace;
  std::vector<Box*> boxes;
  for (Box& box : content_.weights) boxes.push_back(&box);
  for (Box& box : content_.optimizer) boxes.push_back(&box);
  copy_boxes(std::move(boxes), copies_.as<std::byte>());
  done_.store(false, std::memory_order_relaxed);
  busy_ = true;
  const bool alone = world_.size() == 1;  // then the thread may do all of it
  if (!alone) begin(content_.iteration, replace_);
  const auto work = [this, alone] {
    if (alone) begin(content_.iteration, replace_);
    write(content_, 1);
    if (alone) end(content_);
    done_.store(true, std::memory_order_release);
  };
  try {
    thread_ = start_thread(work);
  } catch (const std::system_error&) {  // slower, not wrong
    work();
  }
}

RunSaver::Outcome RunSaver::wait() {
  MT_ASSERT(busy_);
  if (thread_.joinable()) thread_.join();
  busy_ = false;
  if (world_.size() > 1) end(content_);
  return take();
}

}  // namespace mt
