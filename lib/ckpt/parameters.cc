#include "ckpt/parameters.h"

#include <set>

#include "base/error.h"

namespace mt {

std::vector<Box> parameter_boxes(const std::vector<Parameter*>& parameters) {
  std::vector<Box> boxes;
  for (const Parameter* parameter : parameters) {
    append_boxes(*parameter, parameter->value, "", boxes);
  }
  return boxes;
}

void append_boxes(const Parameter& parameter, const Tensor& values, const std::string& suffix,
                  std::vector<Box>& out) {
  MT_ASSERT(values.shape() == parameter.value.shape());
  for (const Segment& segment : parameter.segments) {
    out.push_back({suffix.empty() ? segment.name : segment.name + "." + suffix,
                   segment.global_shape, segment.offset, segment.extent, values.dtype(),
                   segment_rows(values, segment).data()});
  }
}

void load_parameters(const CheckpointReader& reader, const std::vector<Parameter*>& parameters,
                     bool whole) {
  std::set<std::string> taken;
  for (const Parameter* parameter : parameters) {
    load_segments(reader, *parameter, "", parameter->value);
    for (const Segment& segment : parameter->segments) {
      taken.insert(segment.name);
    }
  }
  for (const auto& [name, info] : reader.tensors()) {
    if (whole && !info.optimizer && !taken.contains(name)) {
      throw DataError(
          cat(reader.directory(), ": tensor ", name, ": the model has no place for it"));
    }
  }
}

void load_segments(const CheckpointReader& reader, const Parameter& parameter,
                   const std::string& suffix, const Tensor& values) {
  MT_ASSERT(values.shape() == parameter.value.shape());
  for (const Segment& segment : parameter.segments) {
    reader.read(suffix.empty() ? segment.name : segment.name + "." + suffix, segment.global_shape,
                segment.offset, segment.extent, values.dtype(),
                segment_rows(values, segment).data());
  }
}

}  // namespace mt
