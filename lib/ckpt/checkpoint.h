// Checkpoints: a directory of HDF5 files plus a manifest, hashed to the last bit, that appears
// whole or not at all. Format: mt-checkpoint(5). The writer stores boxes of global tensors; the
// reader hands out any box of any tensor, so that no layout is a special case.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/commit.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/threads.h"
#include "ckpt/layout.h"
#include "ckpt/tensor_source.h"
#include "comm/communicator.h"
#include "comm/grid.h"
#include "tensor/tensor.h"

namespace mt {

struct Manifest;

// A dense row-major box of a global tensor.
struct Box {
  std::string name;
  Shape global_shape, offset, extent;
  DType dtype = DType::kF32;
  const void* data = nullptr;
};

// What one rank saves. Boxes are each rank's own: those of all ranks cover every tensor once, and a
// rank that has none writes no file. Everything else is taken from rank 0.
struct CheckpointContent {
  std::int64_t iteration = 0;
  Json model;     // configuration: what determines the model
  Json training;  // state of the trainer: consumed samples, schedule, seeds; null if none
  std::vector<Box> weights;                  // -> model-ppPP-tpTT.h5
  std::vector<Box> optimizer;                // -> optim-ppPP-tpTT-dpDD.h5
  std::map<std::string, std::string> files;  // "tokenizer/vocab.json" -> content
  std::string tokenizer_digest;              // hexadecimal, or empty
  CheckpointLayout layout;
  GridPlace place;  // each rank's own: PP, TT and DD of its files, which no other rank has
};

// "run/iter_0000100".
[[nodiscard]] std::string iteration_directory(const std::string& run, std::int64_t iteration);

// The highest iteration that has a folder in a run, sound or damaged; -1: none. Throws
// EnvironmentError.
[[nodiscard]] std::int64_t newest_iteration(const std::string& run);

// Writes `directory` (a final name such as run/iter_0000100, or a destination of mt-reshard):
// temporary directory, files laid out through the error-latching driver, fsync, manifest last,
// rename, fsync of the parent. At most most_threads threads hash and write; 1 leaves the pool of
// base/threads.h alone, as a save in the background must. An existing target: UsageError unless
// replace. Throws EnvironmentError; then nothing is left and what was there before is untouched.
//
// Collective over `world`, of any size, whose ranks see one file system: rank 0 makes the temporary
// directory, every rank writes and synchronises its own files there, and rank 0 commits when all
// have. If any rank fails all throw the same, an error of the same kind that names the rank.
void save_checkpoint(const std::string& directory, const CheckpointContent& content,
                     const Communicator& world, bool replace, int most_threads = threads());

// Removes all but the newest `keep` sound iterations of a run (keep <= 0: none is removed; damaged
// ones do not count), after a newer one was committed. Also sweeps what dead savers left and points
// the link `latest`, which is advice only, to the newest sound one. Call it only while holding the
// run's DirectoryLock. Throws EnvironmentError.
void retain_checkpoints(const std::string& run, std::int64_t keep);

// The checkpoint that a --load means: PATH itself if it holds a manifest.json, else the newest
// iter_N below it whose manifest verifies (damaged ones are passed over with a warning; if none is
// sound: DataError). `absent` when PATH does not exist or holds neither (what a killed first save
// left does not count). Hashes of tensors are verified when read.
struct FoundCheckpoint {
  bool absent = true;
  std::string directory;
};
[[nodiscard]] FoundCheckpoint find_checkpoint(const std::string& path);

// True if the directory holds a manifest.json of this format, sound or not: what a writer may
// replace when asked to. Other programs have files of that name, too.
[[nodiscard]] bool is_checkpoint(const std::string& directory);

class CheckpointReader : public TensorSource {
 public:
  // Verifies manifest.json and what it says of every other file (existence, size, bytes outside the
  // boxes). Throws EnvironmentError (no such directory, the system fails), DataError (damaged or
  // missing; names file and object).
  explicit CheckpointReader(const std::string& directory);
  ~CheckpointReader() override;
  CheckpointReader(CheckpointReader&&) noexcept;

  [[nodiscard]] const std::string& directory() const override;
  [[nodiscard]] std::int64_t iteration() const;
  [[nodiscard]] const CheckpointLayout& layout() const;
  [[nodiscard]] const Json& model() const override;
  [[nodiscard]] const Json& training() const;  // null if none
  [[nodiscard]] const std::map<std::string, TensorInfo>& tensors() const override;
  [[nodiscard]] bool may_hold_optimizer() const override { return true; }
  // A TensorStream.
  [[nodiscard]] std::unique_ptr<RowStream> rows(const std::string& name,
                                                std::uint64_t most_bytes) const override;
  // The files beside the tensors'.
  void check_carried() const override;
  // Reads the box into `out` (dense, in the stored type), verifying the hash of every stored box
  // that it touches. Throws DataError naming the tensor and the file when a hash differs, the name
  // is unknown, or the shape is another.
  void read(const std::string& name, const Shape& global_shape, const Shape& offset,
            const Shape& extent, DType dtype, void* out) const;
  // Several boxes, which threads share; their outputs do not overlap. An error is that of the first
  // box that was found bad.
  struct Request {
    std::string name;
    Shape global_shape, offset, extent;
    DType dtype = DType::kF32;
    void* out = nullptr;
  };
  void read(std::span<const Request> requests) const;
  // Where everything lies, and a file of it, for those who read it in their own order.
  [[nodiscard]] const Manifest& manifest() const;
  [[nodiscard]] FileDescriptor open(const std::string& file) const;
  // Content of a carried file ("tokenizer/vocab.json"), verified; empty if there is none.
  [[nodiscard]] std::string file(const std::string& name) const;
  [[nodiscard]] const std::string& tokenizer_digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mt
