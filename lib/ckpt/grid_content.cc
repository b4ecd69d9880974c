#include "ckpt/grid_content.h"

#include <algorithm>

#include "base/error.h"

namespace mt {

GridContent::GridContent(const GridShape& shape, const GridPlace& place, bool distributed_optimizer)
    : shape_(shape), place_(place), distributed_optimizer_(distributed_optimizer) {}

bool GridContent::writes(const Parameter& parameter) const {
  const auto whole = [](const Segment& segment) { return segment.extent == segment.global_shape; };
  const bool replicated = std::all_of(parameter.segments.begin(), parameter.segments.end(), whole);
  return !parameter.copy && (!replicated || place_.tensor == 0);
}

void GridContent::add_weights(const std::vector<Parameter*>& parameters,
                              CheckpointContent& content) const {
  content.place = place_;
  content.layout = {.tensor = shape_.tensor,
                    .pipeline = shape_.pipeline,
                    .data = distributed_optimizer_ ? shape_.data : 1,
                    .distributed_optimizer = distributed_optimizer_};
  if (place_.data != 0) return;
  for (const Parameter* parameter : parameters) {
    if (writes(*parameter)) append_row_boxes(*parameter, parameter->value, 0, "", content.weights);
  }
}

void GridContent::add_moment(const Parameter& parameter, const Tensor& values,
                             std::int64_t first_row, const std::string& suffix,
                             CheckpointContent& content) const {
  const bool all_rows = values.dim(0) == parameter.value.dim(0);
  MT_ASSERT(all_rows || distributed_optimizer_);
  if (!writes(parameter) || (all_rows && place_.data != 0)) return;
  append_row_boxes(parameter, values, first_row, suffix, content.optimizer);
}

void append_row_boxes(const Parameter& parameter, const Tensor& values, std::int64_t first_row,
                      const std::string& suffix, std::vector<Box>& out) {
  const RowRange rows{.begin = first_row, .end = first_row + values.dim(0)};
  MT_ASSERT(0 <= rows.begin && rows.end <= parameter.value.dim(0));
  for (const Segment& segment : segments_of_rows(parameter, rows)) {
    out.push_back({suffix.empty() ? segment.name : segment.name + "." + suffix,
                   segment.global_shape, segment.offset, segment.extent, values.dtype(),
                   segment_rows(values, segment).data()});
  }
}

void append_row_requests(const Parameter& parameter, const Tensor& values, std::int64_t first_row,
                         const std::string& suffix, std::vector<CheckpointReader::Request>& out) {
  std::vector<Box> boxes;
  append_row_boxes(parameter, values, first_row, suffix, boxes);
  for (Box& box : boxes) {
    out.push_back({box.name, box.global_shape, box.offset, box.extent, box.dtype,
                   const_cast<void*>(box.data)});
  }
}

}  // namespace mt
