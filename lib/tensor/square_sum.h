// The sum of the squares of any number of tensors, exact: whatever the order and however tensors
// are cut over calls, threads and ranks, value() has the same bits.
#pragma once

#include <array>

#include "tensor/tensor.h"

namespace mt {

class SquareSum {
 public:
  // Adds the squares of x's elements (f32).
  void add(const Tensor& x);
  void add(const SquareSum& other);
  // The nearest double; infinite or not a number if an element was. Never overflows.
  [[nodiscard]] double value() const;

  // As numbers to be summed over up to 2^20 ranks, exactly: the sums of two ranks' parts are parts
  // of their sum.
  using Parts = std::array<double, SquareLimbs::kCount + 1>;
  [[nodiscard]] Parts parts() const;
  [[nodiscard]] static SquareSum from_parts(const Parts& parts);

 private:
  SquareLimbs sum_;
};

}  // namespace mt
