// Who saves what on a grid: every element of a checkpoint is written by exactly one rank.
//
// Weights are the same on all ranks of the data axis: the first writes them. Parameters that no
// tensor rank has cut are the same on all of them: the first writes them. A Parameter::copy is
// written by the stage that owns the weights. Moments are written as the weights are, but for a
// distributed optimizer: then each data rank writes the rows that it has, and of what was not cut
// into rows the first has all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "comm/grid.h"
#include "tensor/parameter.h"

namespace mt {

class GridContent {
 public:
  GridContent(const GridShape& shape, const GridPlace& place, bool distributed_optimizer);

  // Sets layout and place of the content, and appends what this rank writes of the weights. The
  // parameters are all of this rank, in any order; they must stay while the content is used.
  void add_weights(const std::vector<Parameter*>& parameters, CheckpointContent& content) const;
  // Appends what this rank writes of a moment, NAME.suffix: rows [first_row, first_row +
  // values.dim(0)) of the parameter, of which every data rank has its own if the optimizer is
  // distributed and they are not all rows of the parameter.
  void add_moment(const Parameter& parameter, const Tensor& values, std::int64_t first_row,
                  const std::string& suffix, CheckpointContent& content) const;

 private:
  // This rank writes its part of the parameter, given that it is the one of the data axis to do it.
  [[nodiscard]] bool writes(const Parameter& parameter) const;

  GridShape shape_;
  GridPlace place_;
  bool distributed_optimizer_;
};

// The boxes of rows [first_row, first_row + values.dim(0)) of a parameter, one a segment that they
// meet, named SEGMENT.suffix (SEGMENT for an empty suffix) and pointing into the values.
void append_row_boxes(const Parameter& parameter, const Tensor& values, std::int64_t first_row,
                      const std::string& suffix, std::vector<Box>& out);
// What reads such rows into the values, which must stay until it is read.
void append_row_requests(const Parameter& parameter, const Tensor& values, std::int64_t first_row,
                         const std::string& suffix, std::vector<CheckpointReader::Request>& out);

}  // namespace mt
