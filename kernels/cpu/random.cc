// Dropout and normal numbers, each a function of the element's global index alone.
#include "kernels/cpu/random.h"

#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/parallel.h"

namespace mt::cpu::MT_KERNEL_SET {
namespace {

// Elements begin .. end - 1 of x, whose element 0 is element `first` of the sample. begin is a
// multiple of 4.
void dropout_add_chunk(const DropoutMask& mask, std::int64_t sample, std::int64_t first,
                       const float* x, const float* residual, float* out, std::int64_t begin,
                       std::int64_t end) {
  alignas(64) float factors[64];
  const std::int64_t skip = first % 4, step = skip == 0 ? 64 : 60;
  for (std::int64_t e = begin; e < end; e += step) {
    dropout_factors(mask, sample, static_cast<std::uint64_t>(first + e) / 4, factors);
    sweep(e, end < e + step ? end : e + step, [&](std::int64_t i, auto part) {
      const Floats kept = load(x + i, part) * load(factors + skip + (i - e), part);
      store(out + i, residual == nullptr ? kept : kept + load(residual + i, part), part);
    });
  }
}

void copy_add_chunk(const float* x, const float* residual, float* out, std::int64_t begin,
                    std::int64_t end) {
  sweep(begin, end, [&](std::int64_t i, auto part) {
    const Floats kept = load(x + i, part);
    store(out + i, residual == nullptr ? kept : kept + load(residual + i, part), part);
  });
}

// Normal numbers for elements g .. g + 63 (g a multiple of 64): Box and Muller's pairs from words
// 0, 1 and 2, 3 of each block; the first word is the radius, in (0, 1], the second the turn.
void normal_64(const NormalFill& f, std::int64_t g, float* out) {
  constexpr std::uint32_t kInitStream = 0;  // RandomStream::kInit
  alignas(64) std::uint32_t words[64];
  philox_64(f.seed, kInitStream, f.tensor, 0, 0, static_cast<std::uint64_t>(g) / 4, words);
  alignas(64) std::uint32_t radius_bits[32], turn_bits[32];
  for (int i = 0; i < 32; ++i) {
    radius_bits[i] = words[2 * i];
    turn_bits[i] = words[2 * i + 1];
  }
  for (int i = 0; i < 32; i += 16) {
    const Ints w = load_ints(radius_bits + i);
    const Floats whole =
        fma(from_signed(shift_right<16>(w)), all(65536.0F), from_signed(w & all_int(0xFFFFU)));
    const Floats u = fma(whole, all(0x1p-32F), all(0x1p-33F));
    const Floats r = sqrt(log(u) * all(-2.0F)) * all(f.std);
    Floats sine, cosine;
    sincos_of_turn(load_ints(turn_bits + i), &sine, &cosine);
    alignas(64) float first[16], second[16];
    store(first, r * cosine);
    store(second, r * sine);
    for (int lane = 0; lane < 16; ++lane) {
      out[2 * (i + lane)] = first[lane];
      out[2 * (i + lane) + 1] = second[lane];
    }
  }
}

// Elements begin .. end - 1 of the tensor to out.
void normal_run(const NormalFill& f, std::int64_t begin, std::int64_t end, float* out) {
  alignas(64) float numbers[64];
  for (std::int64_t g = begin - begin % 64; g < end; g += 64) {
    normal_64(f, g, numbers);
    const std::int64_t from = g < begin ? begin : g;
    const std::int64_t to = g + 64 < end ? g + 64 : end;
    for (std::int64_t e = from; e < to; ++e) {
      out[e - begin] = numbers[e - g];
    }
  }
}

}  // namespace

void dropout_add(DType dtype, const DropoutAdd& d) {
  require_f32(dtype);
  const std::int64_t count = d.rows * d.cols;
  const std::int64_t chunks = (count + kChunk - 1) / kChunk;
  const DropoutMask mask = dropout_mask(d.dropout);
  parallel_parts(d.batch * chunks, threads(), [&](std::int64_t part, int) {
    const std::int64_t b = part / chunks;
    const std::int64_t begin = part % chunks * kChunk;
    const std::int64_t end = begin + kChunk < count ? begin + kChunk : count;
    const auto* x = static_cast<const float*>(d.x) + b * count;
    const auto* residual =
        d.residual == nullptr ? nullptr : static_cast<const float*>(d.residual) + b * count;
    auto* out = static_cast<float*>(d.out) + b * count;
    if (d.dropout.probability > 0) {
      dropout_add_chunk(mask, d.dropout.samples[b], d.dropout.first_row * d.cols, x, residual, out,
                        begin, end);
    } else {
      copy_add_chunk(x, residual, out, begin, end);
    }
  });
}

void normal_fill(const NormalFill& f) {
  // A box as wide as the tensor is one run.
  const bool dense = f.cols == f.global_cols;
  const std::int64_t rows = dense ? 1 : f.rows;
  const std::int64_t length = dense ? f.rows * f.cols : f.cols;
  const std::int64_t chunks = (length + kChunk - 1) / kChunk;
  auto* out = static_cast<float*>(f.out);
  parallel_parts(rows * chunks, threads(), [&](std::int64_t part, int) {
    const std::int64_t r = part / chunks;
    const std::int64_t begin = part % chunks * kChunk;
    const std::int64_t end = begin + kChunk < length ? begin + kChunk : length;
    const std::int64_t g = (f.row_offset + r) * f.global_cols + f.col_offset;
    normal_run(f, g + begin, g + end, out + r * length + begin);
  });
}

}  // namespace mt::cpu::MT_KERNEL_SET
