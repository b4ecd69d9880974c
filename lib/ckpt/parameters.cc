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

// Straight into the parameter, together with others, where nothing has to be rounded or widened.
void load_segment(const CheckpointReader& reader, const Parameter& parameter,
                  const Segment& segment, std::vector<CheckpointReader::Request>& together) {
  const Tensor values = segment_rows(parameter.value, segment);
  const auto found = reader.tensors().find(segment.name);
  const DType stored = found == reader.tensors().end() ? values.dtype() : found->second.dtype;
  const bool floating = stored == DType::kF32 || stored == DType::kBf16 || stored == DType::kF16;
  if (!floating || (stored == values.dtype() && stored == parameter.numbers)) {
    // Refuses what is absent or holds no such numbers.
    together.push_back({segment.name, segment.global_shape, segment.offset, segment.extent,
                        values.dtype(), values.data()});
    return;
  }
  const auto read = [&](void* out) {
    reader.read(segment.name, segment.global_shape, segment.offset, segment.extent, stored, out);
  };
  // The shape is held against the file before memory is taken for it.
  if (found->second.shape != segment.global_shape) read(nullptr);
  std::vector<std::byte> bytes(static_cast<std::size_t>(values.size()) * dtype_size(stored));
  read(bytes.data());
  set_segment(parameter, segment, bytes.data(), stored);
}

}  // namespace

void load_parameters(const CheckpointReader& reader, const std::vector<Parameter*>& parameters,
                     bool whole) {
  std::set<std::string> taken;
  std::vector<CheckpointReader::Request> requests;
  for (const Parameter* parameter : parameters) {
    for (const Segment& segment : parameter->segments) {
      load_segment(reader, *parameter, segment, requests);
      taken.insert(segment.name);
    }
  }
  reader.read(requests);
  for (const auto& [name, info] : reader.tensors()) {
    if (whole && !info.optimizer && !taken.contains(name)) {
      throw DataError(
          cat(reader.directory(), ": tensor ", name, ": the model has no place for it"));
    }
  }
}

void load_segments(const CheckpointReader& reader, const Parameter& parameter,
                   const std::string& suffix, const Tensor& values) {
  std::vector<CheckpointReader::Request> requests;
  append_requests(parameter, values, suffix, requests);
  reader.read(requests);
}

void append_requests(const Parameter& parameter, const Tensor& values, const std::string& suffix,
                     std::vector<CheckpointReader::Request>& out) {
  std::vector<Box> boxes;
  append_boxes(parameter, values, suffix, boxes);
  for (Box& box : boxes) {
    out.push_back({box.name, box.global_shape, box.offset, box.extent, box.dtype,
                   const_cast<void*>(box.data)});
  }
}

std::string find_not_finite(const std::vector<Box>& boxes) {
  constexpr std::uint32_t kExponent = 0x7F800000U;
  for (const Box& box : boxes) {
    if (box.dtype != DType::kF32) continue;
    const auto* const bits = static_cast<const std::uint32_t*>(box.data);
    const std::int64_t count = element_count(box.extent);
    bool finite = true;
    for (std::int64_t i = 0; i < count; ++i) {
      finite &= (bits[i] & kExponent) != kExponent;
    }
    if (!finite) return box.name;
  }
  return "";
}

}  // namespace mt
