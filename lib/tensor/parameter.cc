#include "tensor/parameter.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/small_floats.h"
#include "tensor/ops.h"

namespace mt {

bool take_stale(Parameter& parameter) {
  return std::exchange(parameter.stale, false);
}

Parameter make_parameter(Pool& pool, std::vector<Segment> segments, Gradient gradient, Init init,
                         double init_std, DType numbers) {
  MT_ASSERT(!segments.empty() && (numbers == DType::kF32 || gradient == Gradient::kNone));
  Shape shape = segments.front().extent;
  shape[0] = 0;
  for (Segment& segment : segments) {
    MT_ASSERT(segment.extent.size() == shape.size());
    segment.row = shape[0];
    shape[0] += segment.extent[0];
  }
  Parameter parameter;
  const DType stored = shape.size() > 1 ? numbers : DType::kF32;
  parameter.value = Tensor(pool, shape, stored, MemoryKind::kWeights);
  parameter.numbers = numbers;
  if (gradient == Gradient::kZeroed) {
    parameter.grad = Tensor::zero(pool, shape, DType::kF32, MemoryKind::kGradients);
  }
  parameter.decay = shape.size() > 1;
  parameter.segments = std::move(segments);
  parameter.init = init;
  parameter.init_std = init_std;
  return parameter;
}

Tensor segment_rows(const Tensor& values, const Segment& segment) {
  return values.rows(segment.row, segment.row + segment.extent[0]);
}

std::vector<Segment> segments_of_rows(const Parameter& parameter, RowRange rows) {
  std::vector<Segment> parts;
  for (const Segment& segment : parameter.segments) {
    const std::int64_t begin = std::max(rows.begin, segment.row);
    const std::int64_t end = std::min(rows.end, segment.row + segment.extent[0]);
    if (begin >= end) continue;
    Segment part = segment;
    part.offset[0] += begin - segment.row;
    part.extent[0] = end - begin;
    part.row = begin - rows.begin;
    parts.push_back(std::move(part));
  }
  return parts;
}

void set_segment(const Parameter& parameter, const Segment& segment, const void* from, DType type) {
  const Tensor values = segment_rows(parameter.value, segment);
  const auto count = static_cast<std::size_t>(values.size());
  if (type == parameter.numbers && type == values.dtype()) {
    copy_from_host(from, values);
    return;
  }
  check_fits(segment.name, from, type, parameter.numbers, count);
  std::vector<std::byte> rounded(count * dtype_size(parameter.numbers));
  convert_floats(from, type, rounded.data(), parameter.numbers, count);
  if (values.dtype() == parameter.numbers) {
    copy_from_host(rounded.data(), values);
    return;
  }
  std::vector<std::byte> widened(count * dtype_size(values.dtype()));
  convert_floats(rounded.data(), parameter.numbers, widened.data(), values.dtype(), count);
  copy_from_host(widened.data(), values);
}

void check_fits(const std::string& tensor, const void* numbers, DType type, DType as,
                std::size_t count) {
  const std::size_t first = first_beyond(numbers, type, as, count);
  if (first == count) return;
  float x = 0;
  convert_floats(static_cast<const std::byte*>(numbers) + first * dtype_size(type), type, &x,
                 DType::kF32, 1);
  throw DataError(cat("tensor ", printable(tensor), ": element ", first, " is ", x,
                      ", beyond the largest number of ", dtype_name(as)));
}

void initialize(const Parameter& parameter, std::uint32_t seed) {
  switch (parameter.init) {
    case Init::kZero:
      parameter.value.fill_zero();
      return;
    case Init::kOne: {
      const std::vector<float> ones(static_cast<std::size_t>(parameter.value.size()), 1.0F);
      copy_from_host(ones.data(), parameter.value);
      return;
    }
    case Init::kNormal:
      break;
  }
  for (const Segment& segment : parameter.segments) {
    // The name's hash stands where other draws have the sample: no two tensors share numbers.
    const std::uint64_t tensor = xxh3_128(segment.name.data(), segment.name.size()).low;
    const Tensor values = segment_rows(parameter.value, segment);
    if (parameter.numbers == DType::kF32) {
      normal_fill(values, segment.global_shape, segment.offset, seed, tensor, parameter.init_std);
      continue;
    }
    const Tensor wide(values.pool(), values.shape(), DType::kF32, MemoryKind::kWorkspace);
    normal_fill(wide, segment.global_shape, segment.offset, seed, tensor, parameter.init_std);
    std::vector<float> host(static_cast<std::size_t>(wide.size()));
    copy_to_host(wide, host.data());
    set_segment(parameter, segment, host.data(), DType::kF32);
  }
}

}  // namespace mt
