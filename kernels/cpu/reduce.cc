// Sums over rows, the search for what is not finite, and the largest of a row.
#include "kernels/cpu/columns.h"
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector.h"

namespace mt::cpu::MT_KERNEL_SET {

void sum_rows(DType dtype, const void* x, void* out, std::int64_t rows, std::int64_t cols) {
  require_f32(dtype);
  const std::int64_t slice = columns_of_slice(cols);
  const auto* in = static_cast<const float*>(x);
  auto* total = static_cast<float*>(out);
  const auto columns = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* row = in + r * cols;
      sweep(begin, end, [&](std::int64_t i, auto part) {
        store(total + i, load(total + i, part) + load(row + i, part), part);
      });
    }
  };
  parallel_pieces(cols, slice, rows * cols > kChunk, columns);
}

std::int64_t find_not_finite(DType dtype, const void* x, std::int64_t count) {
  require_f32(dtype);
  const auto* in = static_cast<const float*>(x);
  std::int64_t first = count;
  parallel_pieces(count, kChunk, count > kChunk, [&](std::int64_t begin, std::int64_t end) {
    // x - x is 0 unless x is infinite or NaN.
    Floats seen = all(0.0F);
    sweep(begin, end, [&](std::int64_t i, auto part) {
      const Floats v = load(in + i, part);
      seen = seen + (v - v);
    });
    if (!any(not_less_equal(seen, all(0.0F)))) {
      return;
    }
    std::int64_t at = begin;
    while (at < end && in[at] - in[at] == 0.0F) {
      ++at;
    }
    std::int64_t best = __atomic_load_n(&first, __ATOMIC_RELAXED);
    while (at < best && !__atomic_compare_exchange_n(&first, &best, at, true, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {
    }
  });
  return first == count ? -1 : first;
}

void argmax(DType dtype, const void* x, std::int64_t* out, std::int64_t rows, std::int64_t cols) {
  require_f32(dtype);
  parallel_rows(rows, cols, [&](std::int64_t r) {
    const float* row = static_cast<const float*>(x) + r * cols;
    const float infinity = __builtin_inff();
    Floats best = all(-infinity);
    sweep(0, cols, [&](std::int64_t i, auto part) {
      best = max(fill_absent(load(row + i, part), -infinity, part), best);  // NaN > best is false
    });
    const float largest = max_lane(best);
    std::int64_t at = 0;
    while (at < cols && row[at] != largest) {
      ++at;
    }
    out[r] = at == cols ? 0 : at;
  });
}

}  // namespace mt::cpu::MT_KERNEL_SET
