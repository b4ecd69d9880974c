#include "tensor/parameter.h"

#include <utility>

#include "base/hash.h"
#include "tensor/ops.h"

namespace mt {

Parameter make_parameter(Pool& pool, std::vector<Segment> segments, Gradient gradient, Init init,
                         double init_std) {
  MT_ASSERT(!segments.empty());
  Shape shape = segments.front().extent;
  shape[0] = 0;
  for (Segment& segment : segments) {
    MT_ASSERT(segment.extent.size() == shape.size());
    segment.row = shape[0];
    shape[0] += segment.extent[0];
  }
  Parameter parameter;
  parameter.value = Tensor(pool, shape, DType::kF32, MemoryKind::kWeights);
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
    normal_fill(segment_rows(parameter.value, segment), segment.global_shape, segment.offset, seed,
                tensor, parameter.init_std);
  }
}

}  // namespace mt
