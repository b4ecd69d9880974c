// How sums over rows are shared out: by columns, because a chain over rows must not be cut.
#pragma once

#include <cstdint>

#include "base/threads.h"

namespace mt::cpu::MT_KERNEL_SET {

// Columns of one thread's slice, whole cache lines: one slice a thread, since long pieces of a row
// stream from memory at a multiple of the rate of short ones (3 times at 1024 x 3072).
[[gnu::always_inline]] inline std::int64_t columns_of_slice(std::int64_t cols) {
  const std::int64_t even = (cols + threads() - 1) / threads();
  return (even + 15) / 16 * 16;
}

}  // namespace mt::cpu::MT_KERNEL_SET
