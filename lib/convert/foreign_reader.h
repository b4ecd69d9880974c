// Tensors that another library stored, as ours: each streamed from where it lies, turned and cut
// out on the way, in bounded memory. The other way: foreign_writer.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/commit.h"
#include "base/dtype.h"
#include "ckpt/tensor_source.h"

namespace mt {

// Where one of our tensors lies in one of theirs: `parts` of one shape are there, of which this is
// number `part`. As they stand, the rows of one follow those of the other; transposed, theirs is
// [columns, parts * rows] and they lie side by side.
struct ForeignOrigin {
  std::string ours, theirs;  // theirs: for messages
  Shape shape;               // of ours
  DType type = DType::kF32;  // f32, bf16 or f16: as stored
  bool f64 = false;          // stored so; read as f32, rounded to nearest
  std::size_t file = 0;
  std::uint64_t offset = 0;  // of the first byte of theirs in the file
  std::int64_t part = 0, parts = 1;
  bool transposed = false;
};

class ForeignReader : public TensorSource {
 public:
  struct Settings {
    bool finite = true;  // a value that is not ends the reading
    // Of one stream for turning, beside its band.
    std::uint64_t most_turned = std::uint64_t{32} << 20;  // bytes
  };
  // Opens the files. The origins lie inside them, as whoever parsed them knows; a file that shrinks
  // meanwhile is found when it is read. Throws EnvironmentError, DataError.
  ForeignReader(std::string directory, Json model, const std::vector<std::string>& files,
                std::vector<ForeignOrigin> origins, const Settings& settings);

  [[nodiscard]] const std::string& directory() const override { return directory_; }
  [[nodiscard]] const Json& model() const override { return model_; }
  [[nodiscard]] const std::map<std::string, TensorInfo>& tensors() const override {
    return tensors_;
  }
  [[nodiscard]] bool may_hold_optimizer() const override { return false; }
  [[nodiscard]] std::unique_ptr<RowStream> rows(const std::string& name,
                                                std::uint64_t most_bytes) const override;
  void check_carried() const override {}

 private:
  friend class ForeignStream;
  struct File {
    std::string path;
    FileDescriptor fd;
  };
  std::string directory_;
  Json model_;
  Settings settings_;
  std::vector<File> files_;
  std::map<std::string, ForeignOrigin> origins_;
  std::map<std::string, TensorInfo> tensors_;
};

}  // namespace mt
