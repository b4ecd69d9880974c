// e^x and ln x in double, in one fixed sequence of additions, multiplications and divisions, so
// that they have the same bits on every machine; within 2 units in the last place.
#pragma once

#include <cstddef>

namespace mt {

[[nodiscard]] double exp_of(double x);  // x <= 0; below -700: 0, which no sum of probabilities sees
[[nodiscard]] double log_of(double x);  // x >= 1

// out[i] = exp_of(double(scores[i]) - largest), several at a time; scores finite, none above
// largest.
void exps_below(const float* scores, std::size_t n, double largest, double* out);

}  // namespace mt
