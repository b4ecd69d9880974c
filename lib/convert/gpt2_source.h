// A checkpoint that is written in another library's format: a GPT-2 with all its weights and no
// others.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "ckpt/checkpoint.h"
#include "convert/foreign_writer.h"
#include "convert/hugging_face_names.h"
#include "model/config.h"

namespace mt {

struct ExportSettings {
  std::optional<DType> weights = {};                   // f32, bf16 or f16; absent: as stored
  std::uint64_t most_shard = std::uint64_t{50} << 30;  // bytes of tensors in a file, where several
  bool replace = false;
  std::uint64_t most_memory = std::uint64_t{1} << 30;  // bytes
  std::function<int()> stop = {};  // a signal that asks to stop, or 0; empty: nobody asks
};

class Gpt2Source {
 public:
  // Opens the checkpoint that `source` means (find_checkpoint). Throws EnvironmentError, DataError
  // naming a tensor that the model lacks, has more, or has in another shape or type than its
  // neighbours of one tensor there.
  explicit Gpt2Source(const std::string& source);

  [[nodiscard]] const CheckpointReader& reader() const { return reader_; }
  [[nodiscard]] const ModelConfig& config() const { return config_; }
  // Of all tensors, those of one of Hugging Face's after each other.
  [[nodiscard]] const std::vector<NamedTensor>& tensors() const { return tensors_; }
  [[nodiscard]] DType stored(const std::string& ours) const {
    return reader_.tensors().at(ours).dtype;
  }

  // Fills the targets, with a line of progress for `destination`. Throws what write_foreign and
  // Meter throw.
  void write(const std::vector<ForeignTarget>& targets, const std::vector<ForeignFile>& files,
             const std::string& destination, const ExportSettings& settings) const;
  // Says in the log what was written and what that format has no place for.
  void report(std::size_t tensors, std::uint64_t bytes, const std::string& destination) const;

 private:
  CheckpointReader reader_;
  ModelConfig config_;
  std::vector<NamedTensor> tensors_;
};

}  // namespace mt
