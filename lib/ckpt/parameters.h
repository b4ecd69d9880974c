// Between parameters and the boxes of a checkpoint.
#pragma once

#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "tensor/parameter.h"

namespace mt {

// One box a segment, pointing into the values; the parameters must stay while the boxes are used.
[[nodiscard]] std::vector<Box> parameter_boxes(const std::vector<Parameter*>& parameters);

// Boxes of another tensor of a parameter's shape (a moment), named NAME.suffix.
void append_boxes(const Parameter& parameter, const Tensor& values, const std::string& suffix,
                  std::vector<Box>& out);

// Fills the values from a checkpoint in any layout and any floating type: what is stored as f32,
// bf16 or f16 is widened, which is exact, or rounded to the parameter's numbers. Throws DataError
// naming the tensor for a missing name, another shape, no floating numbers or damage; and for
// weights in the checkpoint that no parameter of a whole model takes (when `whole`).
void load_parameters(const CheckpointReader& reader, const std::vector<Parameter*>& parameters,
                     bool whole);

// What reads the tensors NAME.suffix into `values` (of the parameter's shape), which must stay
// until it is read.
void append_requests(const Parameter& parameter, const Tensor& values, const std::string& suffix,
                     std::vector<CheckpointReader::Request>& out);

// The name of a box of f32 numbers of which one is not finite; empty if there is none. On the
// calling thread alone.
[[nodiscard]] std::string find_not_finite(const std::vector<Box>& boxes);

// Fills `values` (of the parameter's shape) from the tensors NAME.suffix.
void load_segments(const CheckpointReader& reader, const Parameter& parameter,
                   const std::string& suffix, const Tensor& values);

}  // namespace mt
