// Softmax cross entropy in three steps over rows of logits, in place.
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector.h"

namespace mt::cpu::MT_KERNEL_SET {

void cross_entropy_max(DType dtype, const CrossEntropyMax& c) {
  require_f32(dtype);
  const auto each_row = [&](std::int64_t r) {
    const float* row = static_cast<const float*>(c.logits) + r * c.ld;
    const float infinity = __builtin_inff();
    Floats best = all(-infinity);
    sweep(0, c.cols, [&](std::int64_t i, auto part) {
      best = max(best, fill_absent(load(row + i, part), -infinity, part));
    });
    c.max[r] = max_lane(best);
  };
  parallel_rows(c.rows, c.cols, each_row);
}

// The sum is in double: a vocabulary has 50,000 terms.
void cross_entropy_sum(DType dtype, const CrossEntropySum& c) {
  require_f32(dtype);
  const auto each_row = [&](std::int64_t r) {
    float* row = static_cast<float*>(c.logits) + r * c.ld;
    const float max = c.max[r];
    const std::int64_t label = c.labels[r] - c.first;
    c.target[r] = label >= 0 && label < c.cols ? row[label] - max : 0.0F;
    Doubles total = zero_doubles();
    sweep(0, c.cols, [&](std::int64_t i, auto part) {
      const Floats e = exp(load(row + i, part) - all(max));
      total = add_widened(total, fill_absent(e, 0.0F, part));
      if (c.keep_exp) {
        store(row + i, e, part);
      }
    });
    c.sum[r] = static_cast<float>(sum(total));
  };
  parallel_rows(c.rows, c.cols, each_row);
}

void cross_entropy_grad(DType dtype, const CrossEntropyGrad& c) {
  require_f32(dtype);
  const auto each_row = [&](std::int64_t r) {
    float* row = static_cast<float*>(c.logits) + r * c.ld;
    const std::int64_t label = c.labels[r] - c.first;
    const bool here = label >= 0 && label < c.cols;
    const float at_label = here ? (row[label] / c.sum[r] - 1.0F) * c.weight[r] : 0.0F;
    const Floats factor = all(c.weight[r] / c.sum[r]);
    sweep(0, c.cols,
          [&](std::int64_t i, auto part) { store(row + i, load(row + i, part) * factor, part); });
    if (here) {
      row[label] = at_label;
    }
  };
  parallel_rows(c.rows, c.cols, each_row);
}

}  // namespace mt::cpu::MT_KERNEL_SET
