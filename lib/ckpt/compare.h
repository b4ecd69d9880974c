// What a checkpoint holds, whether it is sound, and how two differ: in any layouts, in a few rows
// of memory.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/reshard.h"
#include "ckpt/tensor_stream.h"

namespace mt {

// Reads all of a checkpoint, the carried files too, and verifies every hash: that every byte is the
// one that was saved. Digests are taken as the manifest gives them, which has a hash of its own;
// that each is the digest of these numbers is what all other readers show, for several times the
// work.
// Threads share the boxes. Throws DataError naming what is damaged.
void verify_hashes(const CheckpointReader& reader, const BytesRead& told);

// The root of the sum of squares of a tensor, and its digest.
struct TensorNorm {
  double norm = 0;
  Digest128 digest;
};

// The root of the sum of squares of each tensor, by name; verified on the way. Sums are taken in
// double in the order of the elements.
[[nodiscard]] std::map<std::string, TensorNorm> tensor_norms(const TensorSource& reader,
                                                             const BytesRead& told);

// Verifies both, and says the first thing, by name and then by element, in which their tensors
// differ: one that the other lacks, another shape or type, or the first element with other bits.
// Nothing if all bits are equal. Where one has no place for the optimizer's tensors, here and
// below, the other's are not looked at.
[[nodiscard]] std::optional<std::string> first_difference(const TensorSource& a,
                                                          const TensorSource& b,
                                                          const BytesRead& told);

// Of a tensor that both have in one shape, as numbers whatever their types.
struct TensorDifference {
  std::string name;
  double norm = 0;         // of a - b
  double norm_a = 0;       // of a
  double largest = 0;      // |a - b| of one element
  std::int64_t count = 0;  // elements with other values; bits, for equal types
};
struct Differences {
  std::vector<std::string> only_a, only_b, other_shape;
  std::vector<TensorDifference> tensors;  // the largest norm first; not numbers before all
  [[nodiscard]] bool any() const;
};
[[nodiscard]] Differences differences(const TensorSource& a, const TensorSource& b,
                                      const BytesRead& told);

}  // namespace mt
