// Layer normalisation over rows: mean, then variance of the differences, both over 16 lanes.
#include "kernels/cpu/columns.h"
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector.h"

namespace mt::cpu::MT_KERNEL_SET {
namespace {

void forward_row(const LayerNormForward& f, std::int64_t r) {
  const float* x = static_cast<const float*>(f.x) + r * f.cols;
  const auto* gain = static_cast<const float*>(f.gain);
  const auto* bias = static_cast<const float*>(f.bias);
  float* y = static_cast<float*>(f.y) + r * f.cols;
  const auto n = static_cast<float>(f.cols);
  Floats total = all(0.0F);
  sweep(0, f.cols, [&](std::int64_t i, auto part) { total = total + load(x + i, part); });
  const float mean = sum(total) / n;
  Floats squares = all(0.0F);
  sweep(0, f.cols, [&](std::int64_t i, auto part) {
    const Floats d = fill_absent(load(x + i, part) - all(mean), 0.0F, part);
    squares = fma(d, d, squares);
  });
  const float rstd = 1.0F / __builtin_sqrtf(sum(squares) / n + f.epsilon);
  sweep(0, f.cols, [&](std::int64_t i, auto part) {
    const Floats normal = (load(x + i, part) - all(mean)) * all(rstd);
    store(y + i, fma(normal, load(gain + i, part), load(bias + i, part)), part);
  });
  if (f.mean != nullptr) {
    f.mean[r] = mean;
  }
  if (f.rstd != nullptr) {
    f.rstd[r] = rstd;
  }
}

// dx = rstd (dy gain - mean(dy gain) - normal mean(dy gain normal)).
void backward_row(const LayerNormBackward& b, std::int64_t r) {
  const float* x = static_cast<const float*>(b.x) + r * b.cols;
  const float* dy = static_cast<const float*>(b.dy) + r * b.cols;
  const auto* gain = static_cast<const float*>(b.gain);
  const float* residual =
      b.residual == nullptr ? nullptr : static_cast<const float*>(b.residual) + r * b.cols;
  float* dx = static_cast<float*>(b.dx) + r * b.cols;
  const Floats mean = all(b.mean[r]), rstd = all(b.rstd[r]);
  Floats plain = all(0.0F), along = all(0.0F);
  sweep(0, b.cols, [&](std::int64_t i, auto part) {
    const Floats d = load(dy + i, part) * load(gain + i, part);
    plain = plain + d;
    along = fma(d, (load(x + i, part) - mean) * rstd, along);
  });
  const auto n = static_cast<float>(b.cols);
  const Floats mean_plain = all(sum(plain) / n), mean_along = all(sum(along) / n);
  sweep(0, b.cols, [&](std::int64_t i, auto part) {
    const Floats normal = (load(x + i, part) - mean) * rstd;
    const Floats d = load(dy + i, part) * load(gain + i, part);
    const Floats through = fma(normal * all(-1.0F), mean_along, d - mean_plain) * rstd;
    store(dx + i, residual == nullptr ? through : through + load(residual + i, part), part);
  });
}

// Chains over rows begin .. end - 1 for the columns from .. to - 1.
void add_gain_and_bias(const LayerNormBackward& b, std::int64_t begin, std::int64_t end,
                       std::int64_t from, std::int64_t to) {
  auto* dgain = static_cast<float*>(b.dgain);
  auto* dbias = static_cast<float*>(b.dbias);
  for (std::int64_t r = begin; r < end; ++r) {
    const float* x = static_cast<const float*>(b.x) + r * b.cols;
    const float* dy = static_cast<const float*>(b.dy) + r * b.cols;
    const Floats mean = all(b.mean[r]), rstd = all(b.rstd[r]);
    sweep(from, to, [&](std::int64_t i, auto part) {
      const Floats d = load(dy + i, part);
      const Floats normal = (load(x + i, part) - mean) * rstd;
      store(dgain + i, fma(d, normal, load(dgain + i, part)), part);
      store(dbias + i, load(dbias + i, part) + d, part);
    });
  }
}

}  // namespace

void layernorm_forward(DType dtype, const LayerNormForward& f) {
  require_f32(dtype);
  parallel_rows(f.rows, f.cols, [&](std::int64_t r) { forward_row(f, r); });
}

// Rows come in groups that the shared cache holds: first the columns' chains, split by columns,
// then dx, split by rows.
void layernorm_backward(DType dtype, const LayerNormBackward& b) {
  require_f32(dtype);
  const std::int64_t slice = columns_of_slice(b.cols);
  const std::int64_t group = (1 << 18) / (b.cols + 1) + 1;
  for (std::int64_t begin = 0; begin < b.rows; begin += group) {
    const std::int64_t end = begin + group < b.rows ? begin + group : b.rows;
    const bool worth = (end - begin) * b.cols > kChunk;
    parallel_pieces(b.cols, slice, worth, [&](std::int64_t from, std::int64_t to) {
      add_gain_and_bias(b, begin, end, from, to);
    });
    parallel_rows(end - begin, b.cols, [&](std::int64_t r) { backward_row(b, begin + r); });
  }
}

}  // namespace mt::cpu::MT_KERNEL_SET
