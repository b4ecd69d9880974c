// Tensors of a checkpoint written where another format wants them: each streamed once, verified on
// the way, in bounded memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/reshard.h"

namespace mt {

// One of our tensors inside one of theirs: `parts` of one shape lie there, of which this is number
// `part`. As they stand, the rows of one follow those of the other; transposed, theirs is
// [columns, parts * rows] and they lie side by side.
struct ForeignPart {
  std::string ours;
  std::int64_t part = 0, parts = 1;
  bool transposed = false;
};

// A tensor of theirs: all of its parts, dense in one file.
struct ForeignTarget {
  std::string name;  // for messages
  DType type = DType::kF32;
  std::size_t file = 0;
  std::uint64_t offset = 0;  // of its first byte in the file
  std::vector<ForeignPart> parts;
};

// A file that is open for writing.
struct ForeignFile {
  int fd = -1;
  std::string path;
};

// Fills the targets from the checkpoint. Threads share them; a target that fits into a thread's
// share of most_memory is put together first, a larger one is written band by band. Throws
// DataError (damage, by tensor; a number that the type cannot hold), EnvironmentError, and what
// `told` throws. The caller synchronises the files.
void write_foreign(const CheckpointReader& from, const std::vector<ForeignTarget>& targets,
                   const std::vector<ForeignFile>& files, std::uint64_t most_memory,
                   const BytesRead& told);

}  // namespace mt
