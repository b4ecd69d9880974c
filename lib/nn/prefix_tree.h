// Sequences that share their beginning, as rows that are computed together: the shared part once,
// then what each sequence continues it with. A micro-batch of trees is a tensor [1, rows, h] with
// the rows of one tree after the other, no padding between them.
#pragma once

#include <cstdint>
#include <vector>

namespace mt {

struct PrefixTree {
  struct Branch {
    std::int64_t positions = 0;  // rows of this continuation, at least one
    std::int64_t counted = 0;    // the last so many of them are asked for
  };
  std::int64_t prefix = 0;       // rows of the shared part, positions 0 to prefix - 1; may be 0
  std::vector<Branch> branches;  // each at positions prefix, prefix + 1, ...

  [[nodiscard]] std::int64_t rows() const {
    std::int64_t sum = prefix;
    for (const Branch& branch : branches) sum += branch.positions;
    return sum;
  }
};

}  // namespace mt
