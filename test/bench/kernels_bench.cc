// Rates of the CPU kernels but the product, at GPT-2 124M's shapes (4 x 256 tokens) and a small
// model's: kernels_bench [threads]. With one thread the time is the processor's, which other
// programs disturb less. GB/s count each byte that must move once; attention's GFLOP/s count the
// causal half. "triad" is a = b + s c over 128 MiB arrays, what memory gives.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <vector>

#include "base/threads.h"
#include "kernels/device.h"

namespace {

using mt::DType;
using Numbers = std::vector<float>;

Numbers numbers(std::int64_t count) {
  Numbers x(static_cast<std::size_t>(count));
  std::uint32_t state = 1;
  for (float& v : x) {
    state = state * 1664525U + 1013904223U;
    v = static_cast<float>(state >> 8) / 8388608.0F - 1.0F;
  }
  return x;
}

double now() {
  timespec t{};
  clock_gettime(mt::threads() == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// `work` in units of 1e9 a call (GB or GFLOP); prints best and median of the samples.
void measure(const char* name, double work, const char* unit, const std::function<void()>& f) {
  std::vector<double> seconds;
  f();
  const double begin = now();
  while (seconds.size() < 5 || (seconds.size() < 200 && now() - begin < 0.5)) {
    const double start = now();
    f();
    seconds.push_back(now() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  const double best = seconds.front(), median = seconds[seconds.size() / 2];
  std::printf("  %-22s best %8.3f ms %7.1f %s   median %8.3f ms %7.1f %s\n", name, best * 1e3,
              work / best, unit, median * 1e3, work / median, unit);
}

void bench_attention(const mt::Kernels& kernels, std::int64_t batch, std::int64_t heads,
                     std::int64_t seq, float probability) {
  const std::int64_t d = 64, width = heads * d;
  Numbers qkv = numbers(batch * seq * 3 * width),
          out(static_cast<std::size_t>(batch * seq * width));
  Numbers dqkv(qkv.size()), dout = numbers(batch * seq * width);
  Numbers log_sum_exp(static_cast<std::size_t>(batch * heads * seq));
  std::vector<std::int64_t> samples;
  for (std::int64_t b = 0; b < batch; ++b) samples.push_back(b);
  mt::AttentionForward f;
  f.shape.batch = batch;
  f.shape.heads = heads;
  f.shape.head_size = d;
  f.shape.queries = f.shape.keys = seq;
  f.shape.q_row = f.shape.kv_row = 3 * width;
  f.shape.q_batch = f.shape.kv_batch = seq * 3 * width;
  f.shape.out_row = width;
  f.shape.out_batch = seq * width;
  f.shape.scale = 0.125F;
  f.shape.dropout.probability = probability;
  f.shape.dropout.samples = samples.data();
  f.q = qkv.data();
  f.k = qkv.data() + width;
  f.v = qkv.data() + 2 * width;
  f.out = out.data();
  f.log_sum_exp = log_sum_exp.data();
  const double product = 1e-9 * static_cast<double>(batch * heads * d) *
                         static_cast<double>(seq * (seq + 1));  // 2 flop, half the pairs
  measure(probability > 0 ? "attention fwd, dropout" : "attention fwd", 2 * product, "GFLOP/s",
          [&] { kernels.attention_forward(DType::kF32, f); });
  mt::AttentionBackward b;
  b.shape = f.shape;
  b.q = f.q;
  b.k = f.k;
  b.v = f.v;
  b.out = out.data();
  b.dout = dout.data();
  b.log_sum_exp = log_sum_exp.data();
  b.dq = dqkv.data();
  b.dk = dqkv.data() + width;
  b.dv = dqkv.data() + 2 * width;
  measure(probability > 0 ? "attention bwd, dropout" : "attention bwd", 5 * product, "GFLOP/s",
          [&] { kernels.attention_backward(DType::kF32, b); });
}

void bench_rows(const mt::Kernels& kernels, std::int64_t rows, std::int64_t h,
                std::int64_t vocabulary) {
  const Numbers x = numbers(rows * h), dy = numbers(rows * h), gain = numbers(h), bias = numbers(h);
  Numbers y(x.size()), mean(static_cast<std::size_t>(rows)), rstd(mean.size()),
      gradient(gain.size());
  Numbers dbias(gain.size());
  const double pass = 4e-9 * static_cast<double>(rows * h);
  const mt::LayerNormForward f{.rows = rows,
                               .cols = h,
                               .epsilon = 1e-5F,
                               .x = x.data(),
                               .gain = gain.data(),
                               .bias = bias.data(),
                               .y = y.data(),
                               .mean = mean.data(),
                               .rstd = rstd.data()};
  measure("layernorm fwd", 2 * pass, "GB/s", [&] { kernels.layernorm_forward(DType::kF32, f); });
  const mt::LayerNormBackward b{.rows = rows,
                                .cols = h,
                                .x = x.data(),
                                .gain = gain.data(),
                                .dy = dy.data(),
                                .residual = y.data(),
                                .mean = mean.data(),
                                .rstd = rstd.data(),
                                .dx = y.data(),
                                .dgain = gradient.data(),
                                .dbias = dbias.data()};
  measure("layernorm bwd+residual", 4 * pass, "GB/s",
          [&] { kernels.layernorm_backward(DType::kF32, b); });
  const Numbers wide = numbers(rows * 4 * h);
  Numbers dwide = numbers(rows * 4 * h), sums(static_cast<std::size_t>(4 * h));
  measure("gelu bwd", 12 * pass, "GB/s", [&] {
    kernels.gelu_backward(DType::kF32, wide.data(), dwide.data(), dwide.data(), rows * 4 * h);
  });
  measure("sum rows", 4 * pass, "GB/s",
          [&] { kernels.sum_rows(DType::kF32, wide.data(), sums.data(), rows, 4 * h); });
  measure("add", 3 * pass, "GB/s", [&] { kernels.add(DType::kF32, x.data(), y.data(), rows * h); });
  const std::int64_t sample = 0;
  mt::DropoutAdd d;
  d.batch = 1;
  d.rows = rows;
  d.cols = h;
  d.x = x.data();
  d.residual = dy.data();
  d.out = y.data();
  d.dropout.probability = 0.1F;
  d.dropout.samples = &sample;
  measure("dropout add", 3 * pass, "GB/s", [&] { kernels.dropout_add(DType::kF32, d); });
  Numbers words = numbers(vocabulary * h);
  std::vector<std::int32_t> tokens, positions;
  for (std::int64_t r = 0; r < rows; ++r) {
    tokens.push_back(static_cast<std::int32_t>(r * 7919 % vocabulary));
    positions.push_back(static_cast<std::int32_t>(r % 256));
  }
  const mt::EmbeddingForward e{.count = rows,
                               .cols = h,
                               .first = 0,
                               .rows = vocabulary,
                               .tokens = tokens.data(),
                               .position_ids = positions.data(),
                               .words = words.data(),
                               .positions = words.data(),
                               .out = y.data()};
  measure("embedding fwd", 3 * pass, "GB/s", [&] { kernels.embedding_forward(DType::kF32, e); });
  const mt::EmbeddingBackward eb{.count = rows,
                                 .cols = h,
                                 .first = 0,
                                 .rows = vocabulary,
                                 .tokens = tokens.data(),
                                 .position_ids = positions.data(),
                                 .dy = dy.data(),
                                 .dwords = words.data(),
                                 .dpositions = nullptr};
  measure("embedding bwd", 3 * pass, "GB/s", [&] { kernels.embedding_backward(DType::kF32, eb); });
}

void bench_cross_entropy(const mt::Kernels& kernels, std::int64_t rows, std::int64_t cols) {
  Numbers logits = numbers(rows * cols), max(static_cast<std::size_t>(rows)), sum(max.size());
  Numbers target(max.size()), weight(max.size(), 1e-3F);
  const std::vector<std::int32_t> labels(max.size(), 17);
  const double pass = 4e-9 * static_cast<double>(rows * cols);
  const mt::CrossEntropyMax m{
      .rows = rows, .cols = cols, .ld = cols, .logits = logits.data(), .max = max.data()};
  measure("cross entropy max", pass, "GB/s", [&] { kernels.cross_entropy_max(DType::kF32, m); });
  const mt::CrossEntropySum s{.rows = rows,
                              .cols = cols,
                              .ld = cols,
                              .first = 0,
                              .logits = logits.data(),
                              .keep_exp = true,
                              .labels = labels.data(),
                              .max = max.data(),
                              .sum = sum.data(),
                              .target = target.data()};
  measure("cross entropy sum", 2 * pass, "GB/s",
          [&] { kernels.cross_entropy_sum(DType::kF32, s); });
  const mt::CrossEntropyGrad g{.rows = rows,
                               .cols = cols,
                               .ld = cols,
                               .first = 0,
                               .logits = logits.data(),
                               .labels = labels.data(),
                               .sum = sum.data(),
                               .weight = weight.data()};
  measure("cross entropy grad", 2 * pass, "GB/s",
          [&] { kernels.cross_entropy_grad(DType::kF32, g); });
}

void bench_parameters(const mt::Kernels& kernels) {
  const std::int64_t count = 1 << 25;
  Numbers p = numbers(count), m = p, v(p.size(), 1e-4F), g = p;
  const double pass = 4e-9 * static_cast<double>(count);
  measure("triad", 3 * pass, "GB/s", [&] {
    struct Triad {
      float* out;
      const float *a, *b;
      std::int64_t piece;
    } triad{g.data(), p.data(), m.data(), count / 64};
    mt::run_parts(
        64, mt::threads(),
        [](const void* context, std::int64_t part, int) {
          const Triad& t = *static_cast<const Triad*>(context);
          for (std::int64_t i = part * t.piece; i < (part + 1) * t.piece; ++i) {
            t.out[i] = t.a[i] + 0.5F * t.b[i];
          }
        },
        &triad);
  });
  mt::AdamScalars s;
  s.lr = s.step_size = 1e-4F;
  s.one_minus_beta1 = 0.1F;
  s.one_minus_beta2 = 1e-3F;
  mt::AdamStep step{.count = count,
                    .parameter = p.data(),
                    .exp_avg = m.data(),
                    .exp_avg_sq = v.data(),
                    .gradient = g.data(),
                    .decay = true,
                    .zero_gradient = false,
                    .scalars = &s};
  measure("adam", 7 * pass, "GB/s", [&] { kernels.adam(step); });
  step.zero_gradient = true;
  measure("adam, zeroing", 8 * pass, "GB/s", [&] { kernels.adam(step); });
  mt::SquareLimbs squares;
  measure("sum of squares", pass, "GB/s",
          [&] { kernels.sum_squares(DType::kF32, p.data(), count, squares); });
  measure("find not finite", pass, "GB/s",
          [&] { (void)kernels.find_not_finite(DType::kF32, p.data(), count); });
  mt::NormalFill n;
  n.global_cols = n.cols = count;
  n.rows = 1;
  n.out = p.data();
  measure("normal fill", pass, "GB/s", [&] { kernels.normal_fill(n); });
}

}  // namespace

int main(int argc, char** argv) {
  const mt::Device device = mt::make_cpu_device("", argc > 1 ? std::atoi(argv[1]) : 0);
  const mt::Kernels& kernels = *device.kernels;
  std::printf("%s, %d threads\n124M, 4 x 256\n", kernels.name, mt::threads());
  for (const float probability : {0.0F, 0.1F}) {
    bench_attention(kernels, 4, 12, 256, probability);
  }
  bench_attention(kernels, 1, 12, 1024, 0.0F);
  bench_rows(kernels, 1024, 768, 50257);
  bench_cross_entropy(kernels, 1024, 50257);
  std::printf("small, 4 x 256\n");
  bench_attention(kernels, 4, 4, 256, 0.0F);
  bench_rows(kernels, 1024, 256, 8192);
  bench_cross_entropy(kernels, 1024, 8192);
  std::printf("32 M parameters\n");
  bench_parameters(kernels);
  return 0;
}
