#include "ckpt/parameters.h"

#include <cstddef>
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

namespace {

// Straight into the parameter where nothing has to be rounded or widened.
void load_segment(const CheckpointReader& reader, const Parameter& parameter,
                  const Segment& segment) {
  const auto read = [&](DType type, void* out) {
    reader.read(segment.name, segment.global_shape, segment.offset, segment.extent, type, out);
  };
  const Tensor values = segment_rows(parameter.value, segment);
  const auto found = reader.tensors().find(segment.name);
  const DType stored = found == reader.tensors().end() ? values.dtype() : found->second.dtype;
  const bool floating = stored == DType::kF32 || stored == DType::kBf16 || stored == DType::kF16;
  if (!floating || (stored == values.dtype() && stored == parameter.numbers)) {
    read(values.dtype(), values.data());  // refuses what is absent or holds no such numbers
    return;
  }
  // The shape is held against the file before memory is taken for it.
  if (found->second.shape != segment.global_shape) read(stored, nullptr);
  std::vector<std::byte> bytes(static_cast<std::size_t>(values.size()) * dtype_size(stored));
  read(stored, bytes.data());
  set_segment(parameter, segment, bytes.data(), stored);
}

}  // namespace

void load_parameters(const CheckpointReader& reader, const std::vector<Parameter*>& parameters,
                     bool whole) {
  std::set<std::string> taken;
  for (const Parameter* parameter : parameters) {
    for (const Segment& segment : parameter->segments) {
      load_segment(reader, *parameter, segment);
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
    reader.read(segment.name + "." + suffix, segment.global_shape, segment.offset, segment.extent,
                values.dtype(), segment_rows(values, segment).data());
  }
}

}  // namespace mt
