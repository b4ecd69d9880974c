// The table of operations: the whole difference between devices. lib/tensor/ops*.cc are the only
// caller; it has checked shapes and types. Matrices are row-major; a leading dimension (lda, ...)
// counts elements. "Overwrites" and "adds" are said for every output. Pointers are to the device's
// memory.
//
// Results are the same bits on every processor with FMA, for any number of threads:
// - a product's element is one chain of fused multiply-adds in the order of the contraction;
// - a sum along a row runs over 16 virtual lanes (element j goes to lane j % 16, each lane in
// order), and the lanes are
//   then added in one fixed tree ((0+8)+(4+12))+..., whatever the width of a register;
// - a sum over rows (bias and gain gradients) is a chain in the order of the rows that starts at
// the output's present
//   value, so that several micro-batches give the bits of one;
// - exp, log and sine are our own (kernels/cpu/vector.h), with a stated error in units in
// the last place.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace mt {

// What a product does with its output: c = op(a) op(b) or c += op(a) op(b). Adding continues the
// chain from the present value of c, so that a contraction cut into consecutive parts gives the
// bits of the whole.
enum class Output { kOverwrite, kAdd };

// c[m, n] (op)= a b. a is [m, k], or [k, m] when a_transposed; b is [k, n], or [n, k] when
// b_transposed (a weight). After the chain: + bias[n] if given; then + residual[m, n] (leading
// dimension ldc) if given; c gets that. If gelu is given it gets GELU(c) (tanh form; leading
// dimension ldc).
// b may be of 16 bits (b_type kBf16, only b_transposed): its elements are widened, which is exact,
// so that the result has the bits of the same numbers in f32.
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  std::int64_t lda = 0;
  bool a_transposed = false;
  const void* b = nullptr;
  DType b_type = DType::kF32;
  std::int64_t ldb = 0;
  bool b_transposed = false;
  void* c = nullptr;
  std::int64_t ldc = 0;
  Output output = Output::kOverwrite;
  const void* bias = nullptr;
  const void* residual = nullptr;
  void* gelu = nullptr;
};

// Inverted dropout with counter-based masks: element e of sample i (e counted inside the sample,
// over global indices) survives if the Philox number of (seed, kDropout; i, layer, site, e) is at
// least probability * 2^32, and is then multiplied by 1 / (1 - probability). probability 0 draws
// nothing and changes no bit.
struct Dropout {
  float probability = 0.0F;
  std::uint32_t seed = 0;
  std::uint32_t layer = 0;
  std::uint32_t site = 0;
  const std::int64_t* samples = nullptr;  // [batch]: global index of each sample of the micro-batch
  // Of DropoutAdd alone: the row of the sample that row 0 is, where rows are a slice of it.
  std::int64_t first_row = 0;
};

// Attention of one micro-batch, scores never held as a matrix: keys are visited in blocks of fixed
// absolute positions (0..63, 64..127, ...), blocks that the mask excludes whole are skipped, and a
// query's result depends only on its own keys, so that decoding with a cache gives the bits of the
// whole sequence. Dao et al., arXiv:2205.14135, algorithm 1 (forward) and 4 (backward), per row.
// Head i of a sample lies at q + i * head_size inside a row of the stride given. Query i of
// `queries` has position keys - queries + i. A causal query sees keys up to its own position, and
// from first_key on if given (documents are contiguous, so this is the mask of
// --reset-attention-mask).
struct AttentionShape {
  std::int64_t batch = 0, heads = 0, head_size = 0, queries = 0, keys = 0;
  std::int64_t q_row = 0,
               q_batch =
                   0;  // strides of q in elements, from position to position, sample to sample
  std::int64_t kv_row = 0, kv_batch = 0;    // of k and v
  std::int64_t out_row = 0, out_batch = 0;  // of out, and of dout
  bool causal = true;
  float scale = 1.0F;                       // of the scores, 1 / sqrt(head_size)
  const std::int32_t* first_key = nullptr;  // [batch, queries], or null: 0
  // Inference with a cache: sample i sees sample_keys[i] keys (at most `keys`) of the sample
  // kv_samples[i] of k and v. Null: `keys`, and its own.
  const std::int64_t *sample_keys = nullptr, *kv_samples = nullptr;  // [batch]
  std::int64_t first_head = 0;  // global index of head 0, for dropout
  // Dropout of the probabilities: element ((first_head + head) * queries + query) * round_up(keys,
  // 4) + key. Training only, where queries == keys.
  Dropout dropout;
};
struct AttentionForward {
  AttentionShape shape;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;           // overwritten
  float* log_sum_exp = nullptr;  // [batch, heads, queries], overwritten; null in inference
};
struct AttentionBackward {
  AttentionShape shape;
  const void *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr, *dout = nullptr;
  const float* log_sum_exp = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;  // overwritten; strides of q, k, v
};

// y = (x - mean) / sqrt(variance + epsilon) * gain + bias over rows of cols. mean and rstd [rows]
// may be null.
struct LayerNormForward {
  std::int64_t rows = 0, cols = 0;
  float epsilon = 1e-5F;
  const void *x = nullptr, *gain = nullptr, *bias = nullptr;
  void* y = nullptr;
  float *mean = nullptr, *rstd = nullptr;
};
// dx = through the norm, + residual[rows, cols] if given (which may be dx itself): overwritten.
// dgain, dbias: added.
struct LayerNormBackward {
  std::int64_t rows = 0, cols = 0;
  const void *x = nullptr, *gain = nullptr, *dy = nullptr, *residual = nullptr;
  const float *mean = nullptr, *rstd = nullptr;
  void *dx = nullptr, *dgain = nullptr, *dbias = nullptr;
};

// out = dropout(x) + residual over a micro-batch of `batch` samples with rows x cols elements each;
// bias is already in x. out may be x or residual. residual may be null. Element: (first_row + row)
// * cols + col inside the sample.
struct DropoutAdd {
  std::int64_t batch = 0, rows = 0, cols = 0;
  const void *x = nullptr, *residual = nullptr;
  void* out = nullptr;
  Dropout dropout;
};

// out[i] = words[tokens[i]] + positions[position_ids[i]] for `count` tokens: overwritten. Token ids
// outside [first, first + rows) give a zero word row (vocabulary-parallel embedding). positions may
// be null. words and positions are of one type, f32 or bf16 (widened, which is exact).
struct EmbeddingForward {
  std::int64_t count = 0, cols = 0, first = 0, rows = 0;
  const std::int32_t *tokens = nullptr, *position_ids = nullptr;
  DType table_type = DType::kF32;
  const void *words = nullptr, *positions = nullptr;
  void* out = nullptr;
};
// dwords[token] and dpositions[position] add dy, in the order of the tokens; either may be null.
struct EmbeddingBackward {
  std::int64_t count = 0, cols = 0, first = 0, rows = 0;
  const std::int32_t *tokens = nullptr, *position_ids = nullptr;
  const void* dy = nullptr;
  void *dwords = nullptr, *dpositions = nullptr;
};

// Softmax cross entropy in three steps, between which tensor ranks reduce (Megatron-LM,
// arXiv:1909.08053, section 3). logits [rows, cols] hold the vocabulary entries [first, first +
// cols), leading dimension ld.
struct CrossEntropyMax {  // max[rows]: overwritten
  std::int64_t rows = 0, cols = 0, ld = 0;
  const void* logits = nullptr;
  float* max = nullptr;
};
// sum[rows] = sum over cols of exp(logit - max); target[rows] = logit of labels[row] - max, or 0
// where the label is not here: overwritten. If keep_exp, logits are overwritten by exp(logit -
// max).
struct CrossEntropySum {
  std::int64_t rows = 0, cols = 0, ld = 0, first = 0;
  void* logits = nullptr;
  bool keep_exp = false;
  const std::int32_t* labels = nullptr;
  const float* max = nullptr;
  float *sum = nullptr, *target = nullptr;
};
// From the kept exponentials: logits = (exp / sum - [col is the label]) * weight[row]: overwritten.
struct CrossEntropyGrad {
  std::int64_t rows = 0, cols = 0, ld = 0, first = 0;
  void* logits = nullptr;
  const std::int32_t* labels = nullptr;
  const float *sum = nullptr, *weight = nullptr;
};

// AdamW with decoupled decay (Loshchilov and Hutter, arXiv:1711.05101, algorithm 2; the order of
// PyTorch's AdamW):
//   g = gradient * gradient_scale;  p -= lr * weight_decay * p;  m = m + (1 - beta1) (g - m);
//   v = beta2 v + (1 - beta2) g g;  p -= lr / correction1 * m / (sqrt(v) / sqrt(correction2) +
//   epsilon)
// What changes from step to step lies in one struct in the device's memory.
struct AdamScalars {
  float lr = 0, beta1 = 0.9F, beta2 = 0.999F, epsilon = 1e-8F, weight_decay = 0;
  float one_minus_beta1 = 0, one_minus_beta2 = 0;  // rounded from double
  float step_size = 0;                             // lr / (1 - beta1^t)
  float inverse_sqrt_correction2 = 1;              // 1 / sqrt(1 - beta2^t)
  float gradient_scale = 1;
};
struct AdamStep {
  std::int64_t count = 0;
  float *parameter = nullptr, *exp_avg = nullptr, *exp_avg_sq = nullptr;
  float* gradient = nullptr;  // set to zero when zero_gradient
  bool decay = true;          // false: weight_decay is taken as 0 (biases and norms)
  bool zero_gradient = true;
  const AdamScalars* scalars = nullptr;
};

// N(0, std) for the box `offset`, `extent` of a tensor of rows x cols (cols = 1 for a vector):
// element with global row-major index g takes number g % 4 of block g / 4 (Box-Muller pairs),
// counter (0, 0, 0, g / 4) with `tensor` as the sample: overwritten, dense.
struct NormalFill {
  std::int64_t global_cols = 0, row_offset = 0, col_offset = 0, rows = 0, cols = 0;
  std::uint32_t seed = 0;
  std::uint64_t tensor = 0;
  float std = 1.0F;
  void* out = nullptr;
};

// A sum of squares of floats without rounding, so that neither order nor cut can enter: a number in
// fixed point, wide enough for every float's square and 2^63 of them (after Kulisch's accumulator
// for dot products). Its value is the sum of limbs[i] * 2^(32 i - 320); all limbs but the last are
// in [0, 2^32) when a kernel returns.
struct SquareLimbs {
  static constexpr int kCount = 20;
  std::int64_t limbs[kCount] = {};
  double not_finite = 0;  // the sum of the squares that are infinite or not a number
};

struct Kernels {
  const char* name;  // "avx2", "avx512", "baseline", ...
  void (*gemm)(DType, const Gemm&);
  void (*attention_forward)(DType, const AttentionForward&);
  void (*attention_backward)(DType, const AttentionBackward&);
  void (*layernorm_forward)(DType, const LayerNormForward&);
  void (*layernorm_backward)(DType, const LayerNormBackward&);
  // y = GELU(x) (tanh form), the bits of gemm's epilogue: overwritten.
  void (*gelu)(DType, const void* x, void* y, std::int64_t count);
  // dx = dy * GELU'(x): overwritten; dx may be dy.
  void (*gelu_backward)(DType, const void* x, const void* dy, void* dx, std::int64_t count);
  void (*dropout_add)(DType, const DropoutAdd&);
  // out[cols] += sum over rows of x: added, a chain in the order of the rows.
  void (*sum_rows)(DType, const void* x, void* out, std::int64_t rows, std::int64_t cols);
  // y[rows, cols] + bias[cols], then + residual[rows, cols] if not null, as in gemm's epilogue:
  // overwrites y.
  void (*add_bias)(DType, const void* bias, const void* residual, void* y, std::int64_t rows,
                   std::int64_t cols);
  // y += x.
  void (*add)(DType, const void* x, void* y, std::int64_t count);
  void (*embedding_forward)(DType, const EmbeddingForward&);
  void (*embedding_backward)(DType, const EmbeddingBackward&);
  void (*cross_entropy_max)(DType, const CrossEntropyMax&);
  void (*cross_entropy_sum)(DType, const CrossEntropySum&);
  void (*cross_entropy_grad)(DType, const CrossEntropyGrad&);
  void (*adam)(const AdamStep&);
  // The exact sum of squares: added.
  void (*sum_squares)(DType, const void* x, std::int64_t count, SquareLimbs& sum);
  // Index of the first element that is not finite, or -1.
  std::int64_t (*find_not_finite)(DType, const void* x, std::int64_t count);
  // Index of the largest of cols elements in each row, the first of equals; NaN never wins.
  void (*argmax)(DType, const void* x, std::int64_t* out, std::int64_t rows, std::int64_t cols);
  void (*normal_fill)(const NormalFill&);
};

// The CPU's table: the best set that this processor has, or the one named ("baseline", "avx2",
// "avx512"; "" chooses). Throws UsageError for an unknown name or a set that this processor lacks.
[[nodiscard]] const Kernels& cpu_kernels(const char* set);

}  // namespace mt
