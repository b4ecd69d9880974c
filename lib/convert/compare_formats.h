// Whether two models are the same numbers, where at least one is in another library's format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace mt {

struct Compared {
  std::optional<std::string> difference;  // the first, by name and then by element; none: equal
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;  // read
};

// The weights of what two paths mean (find_checkpoint, is_foreign), a few rows at a time, every
// hash of a checkpoint verified: one that the other lacks, another shape or type, or the first
// element with other bits. What the foreign formats have no place for, the optimizer's tensors, is
// left out. Where a format keeps f32 whatever the model's type is (vectors in GGUF), numbers of 16
// bits are compared as the f32 that they are. Throws DataError,
// EnvironmentError.
[[nodiscard]] Compared compare_formats(const std::string& a, const std::string& b);

}  // namespace mt
