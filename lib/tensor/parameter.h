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
};

}  // namespace mt
