// Saves of a training run, at once or in the background: the content is copied in memory, and a
// thread of its own writes the copy while training goes on. One save is in flight at most. The
// thread takes no part of the pool of base/threads.h, and HDF5 is kept from running in two threads
// by the lock of io/hdf5.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/checkpoint.h"
#include "comm/communicator.h"
#include "tensor/tensor.h"

namespace mt {

class RunSaver {
 public:
  struct Settings {
    std::string run;        // its folder, whose DirectoryLock is held
    std::int64_t keep = 0;  // as in retain_checkpoints
    // Called before anything is written, with the content that will be (in the background: with the
    // copy, on the other thread). What it throws ends the save.
    std::function<void(const CheckpointContent&)> before;
  };
  // What became of a save.
  struct Outcome {
    std::int64_t iteration = -1;
    std::string directory;
    bool committed = false;  // the checkpoint is there, whole
    std::string failure;     // why the system failed it, or the removal of older ones; else empty
    double seconds = 0;
  };

  // world (of size 1) must outlive the saver.
  RunSaver(Settings settings, const Communicator& world);
  // Waits for a save in flight: what was begun is finished.
  ~RunSaver();
  RunSaver(const RunSaver&) = delete;
  RunSaver& operator=(const RunSaver&) = delete;

  // Takes and touches the memory of the copies of a content of these sizes, so that the first save
  // waits for no page either. start() does it otherwise.
  void reserve(const CheckpointContent& content, Pool& pool);
  // Bytes that reserve() takes.
  [[nodiscard]] static std::int64_t bytes_of_copy(const CheckpointContent& content);

  // Writes the checkpoint and removes old ones; all threads share the work. Nothing may be in
  // flight. A failing system is an outcome; what `before` throws, UsageError (a directory that
  // exists, unless `replace`) and our own mistakes are thrown.
  [[nodiscard]] Outcome save(const CheckpointContent& content, bool replace);
  // Copies the content, which may change afterwards, and goes on with the copy in the background.
  // Nothing may be in flight. Where the system gives no thread the save is done here.
  void start(CheckpointContent content, bool replace, Pool& pool);
  // A save was started, and its outcome not yet taken.
  [[nodiscard]] bool in_flight() const { return busy_; }
  // It is over: wait() returns at once.
  [[nodiscard]] bool finished() const { return busy_ && done_.load(std::memory_order_acquire); }
  // Its outcome. Throws as save().
  [[nodiscard]] Outcome wait();

 private:
  Outcome write(const CheckpointContent& content, bool replace, int most_threads) const;
  void write_copy();  // noexcept in effect: everything thrown lies in error_

  Settings settings_;
  const Communicator& world_;
  Tensor copies_;  // bytes
  CheckpointContent content_;
  bool replace_ = false;
  bool busy_ = false;
  std::atomic<bool> done_{false};
  Outcome outcome_;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace mt
