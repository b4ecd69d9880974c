// What llm.c's model file is made of: its header and where each tensor lies (karpathy/llm.c,
// train_gpt2.py and train_gpt2.c). See llmc.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "io/mapped_file.h"
#include "model/config.h"
#include "tensor/tensor.h"

namespace mt {

constexpr std::uint64_t kLlmcHeaderBytes = 256 * 4;

// Rows of the word embedding there.
[[nodiscard]] std::int64_t llmc_padded(std::int64_t vocabulary);

// A tensor of ours and the element of the file's parameters that it begins with; dense.
struct LlmcPlace {
  std::string ours;
  Shape shape;
  std::uint64_t at = 0;
};
// All of them, and how many elements the file has.
[[nodiscard]] std::vector<LlmcPlace> llmc_places(const ModelConfig& config,
                                                 std::uint64_t& elements);

// The first kLlmcHeaderBytes bytes, for f32 or bf16.
[[nodiscard]] std::string llmc_header(const ModelConfig& config, DType type);

// True if the file begins with the magic number.
[[nodiscard]] bool is_llmc(const std::string& path);

struct LlmcTensor {
  std::string ours;
  Shape shape;
  const std::byte* data = nullptr;  // dense, while the file lives
};

// A file that is mapped; nothing in it is trusted.
class LlmcFile {
 public:
  // Throws DataError naming file and field, EnvironmentError.
  explicit LlmcFile(const std::string& path);
  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] DType type() const { return type_; }  // of all tensors
  [[nodiscard]] const std::vector<LlmcTensor>& tensors() const { return tensors_; }

 private:
  MappedFile file_;
  ModelConfig config_;
  DType type_ = DType::kF32;
  std::vector<LlmcTensor> tensors_;
};

}  // namespace mt
