// The weights of a model in another library's format under our names: Hugging Face's directory,
// a GGUF file or one of llm.c. Each is a strided part of a mapped file, so that a few rows at a
// time need no more memory than they have bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/dtype.h"
#include "tensor/tensor.h"

namespace mt {

class ForeignView {
 public:
  // One of our tensors: element (r, c) is number r * row_stride + c * column_stride from data on;
  // a vector has one column.
  struct Tensor {
    Shape shape;
    DType type = DType::kF32;
    const std::byte* data = nullptr;
    std::int64_t row_stride = 1, column_stride = 1;
    bool widened = false;  // the format keeps f32 here, whatever type the model's numbers have
  };

  // Throws EnvironmentError, DataError naming file and tensor: what is damaged, has no name here
  // or is not floating.
  explicit ForeignView(const std::string& path);
  ~ForeignView();
  ForeignView(ForeignView&&) noexcept;

  [[nodiscard]] const std::string& path() const;
  [[nodiscard]] const std::map<std::string, Tensor>& tensors() const;
  // Rows [first, first + rows), dense in the tensor's type, into `out`.
  static void read_rows(const Tensor& tensor, std::int64_t first, std::int64_t rows,
                        std::byte* out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// True if the path holds a model in one of those formats, by its magic number or its config.json.
[[nodiscard]] bool is_foreign(const std::string& path);

}  // namespace mt
