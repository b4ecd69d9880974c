// Saves of a training run, at once or in the background: the content is copied in memory, and a
// thread of its own writes the copy while training goes on. One save is in flight at most. The
// thread takes no part of the pool of base/threads.h, and HDF5 is kept from running in two threads
// by the lock of io/hdf5.h.
//
// On several ranks the thread of each writes that rank's files and speaks to no other rank; what
// all must agree on, and the commit, is done in wait() by the threads that call it. So every
// function but in_flight() is collective over the world.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/pending_save.h"
#include "comm/communicator.h"
#include "tensor/tensor.h"

namespace mt {

class RunSaver {
 public:
  struct Settings {
    std::string run;        // its folder, whose DirectoryLock rank 0 holds
    std::int64_t keep = 0;  // as in retain_checkpoints
    // Called on each rank before its files are written, with the content that will be (in the
    // background: with the copy, on the other thread). What it throws ends the save.
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

  // world must outlive the saver.
  RunSaver(Settings settings, const Communicator& world);
  // Waits for a save in flight: what was begun is finished; but on several ranks not while an
  // exception unwinds, when the others may never come.
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
  // All ranks have written what they had to: wait() returns soon. Asks the other ranks only while a
  // save is in flight.
  [[nodiscard]] bool finished() const;
  // Its outcome. Throws as save().
  [[nodiscard]] Outcome wait();

 private:
  // The steps of a save. What is thrown lies in error_ after them, what the system failed in
  // outcome_.
  void begin(std::int64_t iteration, bool replace);
  void write(const CheckpointContent& content, int most_threads);
  void end(const CheckpointContent& content);
  // Runs a step and keeps what it throws.
  template <typename Step>
  void guard(const Step& step);
  // The outcome, or throws.
  [[nodiscard]] Outcome take();

  Settings settings_;
  const Communicator& world_;
  Tensor copies_;  // bytes
  CheckpointContent content_;
  bool replace_ = false;
  bool busy_ = false;
  std::atomic<bool> done_{false};
  std::unique_ptr<PendingSave> pending_;
  std::chrono::steady_clock::time_point began_;
  Outcome outcome_;
  std::exception_ptr error_;
  bool before_failed_ = false;  // on any rank, once all have ended; then its error is thrown
  std::thread thread_;
};

}  // namespace mt
