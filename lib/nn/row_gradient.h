// The embedding's part of a tied head's gradient. The head's part fills every row of [V/t, h]; this
// one is zero but for the tokens that occur, so only their rows are held. The two stay apart until
// the end of a step, since a sum of both over micro-batches would depend on how they are cut.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/linear.h"
#include "tensor/tensor.h"

namespace mt {

class RowGradient {
 public:
  // For the rows `range` of a vocabulary. pool must outlive it.
  RowGradient(OwnedRange range, std::int64_t hidden, Pool& pool);

  // Takes memory for steps of that many tokens at once, so that none of them takes more.
  void reserve(std::int64_t tokens);
  // Where the rows of tokens (i32, any shape, global entries) lie in rows(): i32 of that shape, -1
  // for those of other ranks. rows() has them afterwards, new ones as zeros. Adding to them one
  // micro-batch after the other gives the chain over the tokens that a whole gradient would have.
  [[nodiscard]] Tensor places(const Tensor& tokens);
  [[nodiscard]] const Tensor& rows() const { return rows_; }
  // gradient [V/t, h]: each row held is added once; then none is held.
  void add_to(const Tensor& gradient);

 private:
  OwnedRange range_;
  std::int64_t hidden_;
  Pool* pool_;
  Tensor rows_;                     // [capacity, h]; zeros behind those held
  std::vector<std::int32_t> held_;  // tokens, counted from range_.begin, in the order of their rows
  std::vector<std::int32_t> place_;  // of each owned token, or -1
};

}  // namespace mt
