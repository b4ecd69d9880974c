// A Parameter: this rank's part of a named tensor, its gradient, and where the part lies in the
// whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace mt {

// A box of a global tensor that lies dense at rows [row, row + extent[0]) of a parameter. A fused
// query-key-value weight is one parameter of three segments; checkpoints store segments, by name.
struct Segment {
  std::string name;
  Shape global_shape, offset, extent;
  std::int64_t row = 0;
};

// Rows of a parameter.
struct RowRange {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
  friend bool operator==(const RowRange&, const RowRange&) = default;
};

// How a parameter starts.
enum class Init { kNormal, kZero, kOne };

// The numbers of a parameter for inference may be those of a 16-bit type: `numbers` says which its
// values are rounded to. A matrix is then stored in that type; a vector (bias, gain: a thousandth
// of a model) holds the same rounded numbers as f32, so that only products and the embedding have
// versions for 16 bits.
struct Parameter {
  Tensor value;
  DType numbers = DType::kF32;
  Tensor grad;  // f32, same shape; undefined in a model for inference
  // Products write all of grad: the first one after an optimizer's step overwrites what is left
  // there, so that nobody has to set it to zero (take_stale()).
  bool written_by_products = false;
  bool stale = false;  // grad holds the numbers of the step before
  // A second part of the gradient that is kept apart through all sums over samples and ranks of the
  // data axis, and added to grad once after them; undefined: none.
  Tensor grad_apart;
  // The gradient of a vector in parts [n, ..], one a virtual shard of the positions, in the place
  // of grad through all sums over samples and ranks of the data axis; then their tree is grad's
  // value. Undefined: grad itself is summed.
  Tensor grad_shards;
  // Each rank of the tensor axis has the sum over its own positions only: grad is to be summed over
  // that axis, too.
  bool sum_over_tensor = false;
  // Another stage holds the same weights, and saves and counts them: the output layer's copy of the
  // word embedding.
  bool copy = false;
  std::vector<Segment> segments;
  bool decay = true;  // weight decay: false for biases and norms
  Init init = Init::kNormal;
  double init_std = 0;  // of kNormal
};

// True if the gradient is to be overwritten now, and added to from then on.
[[nodiscard]] bool take_stale(Parameter& parameter);

enum class Gradient { kNone, kZeroed };

// A parameter of the segments, in their order one below the other (`row` is set here): value
// uninitialised, gradient zero or none (the only one for numbers other than f32). Decays if it has
// two dimensions.
[[nodiscard]] Parameter make_parameter(Pool& pool, std::vector<Segment> segments, Gradient gradient,
                                       Init init, double init_std = 0, DType numbers = DType::kF32);

// The part of `values` (of the parameter's shape) that belongs to a segment; shares the buffer.
[[nodiscard]] Tensor segment_rows(const Tensor& values, const Segment& segment);

// The rows of a parameter as boxes of its tensors: what each segment has of them, `row` counted
// from rows.begin. Segments that have nothing of them are left out.
[[nodiscard]] std::vector<Segment> segments_of_rows(const Parameter& parameter, RowRange rows);

// A segment's values := `from`, its elements on the host in any floating type, rounded to the
// parameter's numbers. Throws DataError as check_fits() does.
void set_segment(const Parameter& parameter, const Segment& segment, const void* from, DType type);

// Throws DataError naming the tensor, the element and its value if one of the finite numbers, all
// in `type`, would become infinite in type `as`.
void check_fits(const std::string& tensor, const void* numbers, DType type, DType as,
                std::size_t count);

// Sets the value as a function of (seed, segment name, global index) alone: every element of a
// tensor draws the same number whatever part of it is here, rounded to the parameter's numbers.
void initialize(const Parameter& parameter, std::uint32_t seed);

}  // namespace mt
