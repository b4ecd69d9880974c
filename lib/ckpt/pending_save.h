// A save in three steps, so that the middle one may run in the background: rank 0 makes the
// temporary directory, each rank writes its files there, all agree and rank 0 commits.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "base/commit.h"
#include "ckpt/checkpoint.h"
#include "ckpt/manifest.h"
#include "comm/communicator.h"

namespace mt {

class PendingSave {
 public:
  // Collective over world, which must outlive it. Throws on all ranks what save_checkpoint throws.
  PendingSave(const std::string& directory, const Communicator& world, bool replace);
  // On rank 0: removes the temporary directory with what it holds, unless committed.
  ~PendingSave();
  PendingSave(const PendingSave&) = delete;
  PendingSave& operator=(const PendingSave&) = delete;

  // Writes and synchronises this rank's files, after calling `before` (empty: nothing). Local, on
  // any thread. What it throws is kept for commit().
  void write(const CheckpointContent& content, int most_threads,
             const std::function<void()>& before = {}) noexcept;
  // For a rank that writes its files by other means: where they go, and what is to be noted of
  // them, the digests of their tensors included.
  [[nodiscard]] const std::string& folder() const { return folder_; }
  [[nodiscard]] Manifest& written() { return written_; }
  // Collective: if a rank's write() failed all throw that; else rank 0 adds what belongs to all
  // (index, tokenizer, manifest last), renames, and all throw what failed there.
  void commit(const CheckpointContent& content);

 private:
  void write_files(const CheckpointContent& content, int most_threads);
  void write_rest(const CheckpointContent& content);

  const Communicator& world_;
  std::string target_, folder_;
  std::unique_ptr<PendingDirectory> pending_;  // of rank 0
  Manifest written_;                           // by this rank; at rank 0 then by all
  std::exception_ptr error_;
};

}  // namespace mt
