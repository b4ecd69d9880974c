// Slices of the positions under sequence parallelism (Korthikanti et al., arXiv:2205.05198, section
// 4.2): between the layers rank i of t holds positions [i s/t, (i + 1) s/t) of every sample. What
// was an all-reduce is a reduce-scatter that leaves each rank its slice, and an all-gather before
// the next product. t divides s.
#pragma once

#include "nn/linear.h"

namespace mt {

// Whether the layers of this setup hold slices: with one rank a slice is the whole.
[[nodiscard]] bool holds_slices(const LayerLayout& layout, const Communicator& tp);

// [b, s/t, n] -> [b, s, n]. Collective over tp (one all-gather).
[[nodiscard]] Tensor gather_positions(const Tensor& slice, const Communicator& tp);
// [b, s, n] -> this rank's slice [b, s/t, n] of the sum over the ranks, with the bits of an
// all-reduce. The content of whole is lost. Collective over tp (one reduce-scatter).
[[nodiscard]] Tensor scatter_positions(const Tensor& whole, const Communicator& tp);

}  // namespace mt
