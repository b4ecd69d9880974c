// The arithmetic of reductions, in the order that communicator.h states.
#pragma once

#include <vector>

#include "comm/communicator.h"

namespace mt {

[[nodiscard]] std::int64_t element_bytes(ElementKind kind);

// into = into (op) from, element by element.
void combine(ElementKind kind, ReduceOp op, void* into, const void* from, std::int64_t count);

// out = the tree over parts, each of `count` elements; out may be one of them. Parts are left as
// they are otherwise.
void combine_tree(ElementKind kind, ReduceOp op, const std::vector<const void*>& parts,
                  std::int64_t count, void* out);

// Part `index` of `parts` of a length: whole multiples of 16 elements but for the last.
struct Slice {
  std::int64_t begin = 0, end = 0;
};
[[nodiscard]] Slice slice_of(std::int64_t count, int parts, int index);

}  // namespace mt
