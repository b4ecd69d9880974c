// Which rows of a parameter a rank of the data axis updates. With ZeRO-1 (Rajbhandari et al.,
// arXiv:1910.02054, section 5.1: optimizer states are cut over the data axis) moments exist for
// these rows alone.
//
// Matrices are cut by rows into equal parts, of which the last takes what the division leaves over,
// so that all but those few rows are reduced and gathered where they lie, without a copy. Vectors
// and matrices of fewer rows than ranks stay whole: every rank updates them alike, and they are
// less than 2 / h of a model of width h.
#pragma once

#include <vector>

#include "comm/communicator.h"
#include "tensor/parameter.h"

namespace mt {

// Rows of `shape` that rank `rank` of `ranks` updates.
[[nodiscard]] RowRange zero1_rows(const Shape& shape, int ranks, int rank);

// By parameter; the same parameters have the same slices on all ranks of other axes.
[[nodiscard]] std::vector<RowRange> zero1_slices(const std::vector<Parameter*>& parameters,
                                                 const Communicator& data);
// All rows of each: without ZeRO-1.
[[nodiscard]] std::vector<RowRange> all_rows(const std::vector<Parameter*>& parameters);

// True if the slice is not the whole parameter: then each rank of the data axis has a part of its
// own of gradient and moments; else all have the same, of which the first rank's is saved.
[[nodiscard]] bool is_cut(const Parameter& parameter, RowRange slice);

}  // namespace mt
