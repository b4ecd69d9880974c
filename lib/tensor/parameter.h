// A Parameter: this rank's part of a named tensor, its gradient, and where the part lies in the
// whole.
#pragma once

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

// How a parameter starts.
enum class Init { kNormal, kZero, kOne };

struct Parameter {
  Tensor value;
  Tensor grad;  // f32, same shape; undefined in a model for inference
  std::vector<Segment> segments;
  bool decay = true;  // weight decay: false for biases and norms
  Init init = Init::kNormal;
  double init_std = 0;  // of kNormal
};

enum class Gradient { kNone, kZeroed };

// A parameter of the segments, in their order one below the other (`row` is set here): value
// uninitialised, gradient zero or none. Decays if it has two dimensions.
[[nodiscard]] Parameter make_parameter(Pool& pool, std::vector<Segment> segments, Gradient gradient,
                                       Init init, double init_std = 0);

// The part of `values` (of the parameter's shape) that belongs to a segment; shares the buffer.
[[nodiscard]] Tensor segment_rows(const Tensor& values, const Segment& segment);

// Sets the value as a function of (seed, segment name, global index) alone: every element of a
// tensor draws the same number whatever part of it is here.
void initialize(const Parameter& parameter, std::uint32_t seed);

}  // namespace mt
