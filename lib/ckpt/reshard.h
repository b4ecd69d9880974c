// A checkpoint written anew in other boxes, tensor by tensor in bounded memory: a load and a save
// whose middle is a few rows.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ckpt/box_file.h"
#include "ckpt/checkpoint.h"

namespace mt {

// Told how many bytes of tensors were read since it was last called; from any thread, one at a
// time. What it throws ends the work.
using BytesRead = std::function<void(std::uint64_t)>;

struct ReshardSettings {
  bool replace = false;
  std::uint64_t most_memory = std::uint64_t{1} << 30;  // bytes, see kLeastMemory
  BytesRead progress;                                  // empty: nobody is told
};

// What suffices whatever the sizes of tensors and the number of threads, as long as a row of a
// tensor (a width of the model) is far below a MiB.
constexpr std::uint64_t kLeastMemory = std::uint64_t{64} << 20;

// By file, what is stored in it. A place's type is that of the destination; floating types are
// converted.
using ReshardFiles = std::map<std::string, std::vector<BoxPlace>>;

// Writes the checkpoint `to`: `files` filled from `from`, every byte verified on the way, and all
// else as in `content`, whose boxes are not looked at. Tensors of `from` that no place names are
// left out. Threads share the work, several files are read and written at once. Throws as
// save_checkpoint and TensorSource::rows do, and DataError for a number that the other type cannot
// hold or places that do not cover a tensor; then nothing is left.
void reshard(const TensorSource& from, const std::string& to, const ReshardFiles& files,
             const CheckpointContent& content, const ReshardSettings& settings);

// Calls body(name) for every name, on all threads, largest tensors first.
void for_each_tensor(const TensorSource& source, std::vector<std::string> names,
                     const std::function<void(const std::string&)>& body);

// Bytes of a band for each thread.
[[nodiscard]] std::uint64_t band_bytes(std::uint64_t most_memory);

}  // namespace mt
