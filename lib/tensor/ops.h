// Operations on tensors. Shapes and types are checked here, once, and the kernels of the tensors'
// device are called: nothing else in lib/ calls a kernel. kernels/kernels.h has the mathematics and
// what the results' bits depend on.
//
// "Rows" of a tensor are all its dimensions but the last, taken together. Outputs are overwritten
// unless "added" is said. Everything is f32 unless said otherwise. A mismatch of shapes is our own
// mistake: Error with status kInternal, naming the operation and the shapes.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace mt {

// Between the host and a tensor of the device; all of the tensor's bytes.
void copy_from_host(const void* from, const Tensor& to);
void copy_to_host(const Tensor& from, void* to);
// A new tensor with the host's values.
[[nodiscard]] Tensor upload(Pool& pool, const void* from, Shape shape, DType dtype,
                            MemoryKind kind);
// Between tensors of equal size on one device.
void copy(const Tensor& from, const Tensor& to);
// Rows of `from` [b, s, n] to `to` [b, >= position + s, n], from column `column` of from (which may
// be wider than to) and from position `position` of to on.
void copy_positions(const Tensor& from, std::int64_t column, const Tensor& to,
                    std::int64_t position);
// Where the rows of a batch lie in a cache: sample i of the batch is sample slots[i] of the cache
// and starts at position starts[i] there. No slot comes twice.
struct CachePlaces {
  std::vector<std::int64_t> slots, starts;
};
// The same with `to` [slots, capacity, n].
void copy_positions(const Tensor& from, std::int64_t column, const Tensor& to,
                    const CachePlaces& places);
// The first `positions` positions of slot `from` of a cache [slots, capacity, n] to slot `to`.
void copy_slot(const Tensor& cache, std::int64_t from, std::int64_t to, std::int64_t positions);

// What a product adds and applies before its output is written; undefined tensors are absent.
struct Epilogue {
  Tensor bias{};      // [n]
  Tensor residual{};  // like y
  Tensor gelu{};      // like y: gets GELU(y)
};
// The weight of linear and linear_columns and the tables of embedding may be bf16.
// y [.., n] = x [.., k] W^T + bias + residual, W [n, k].
void linear(const Tensor& x, const Tensor& weight, const Tensor& y, const Epilogue& epilogue = {});
// Columns [column, column + n) of y [.., wider] = x W^T.
void linear_columns(const Tensor& x, const Tensor& weight, const Tensor& y, std::int64_t column);
// dx [.., k] = dy [.., n] W.
void linear_dx(const Tensor& dy, const Tensor& weight, const Tensor& dx);
// Things begin to end - 1 of a dimension; may be empty.
struct Interval {
  std::int64_t begin = 0, end = 0;
};
// The same products with parts of their contractions; plus, of the result's shape and another
// buffer, is added after the chain, or undefined.
// y [.., n] = x [.., part] W [:, part]^T + plus.
void linear_part(const Tensor& x, const Tensor& weight, const Interval& part, const Tensor& plus,
                 const Tensor& y);
// dx [.., k] = one chain over the parts in their order, dy [.., part] W [part, :], then + plus.
void linear_dx_parts(const Tensor& dy, const Tensor& weight, const std::vector<Interval>& parts,
                     const Tensor& plus, const Tensor& dx);
// dweight [n, k] += dy^T x: added, a chain over the rows that continues from the present value, or
// overwritten, the same chain from 0.
void linear_dweight(const Tensor& dy, const Tensor& x, const Tensor& dweight,
                    Output output = Output::kAdd);

// Where the queries, keys and values of a micro-batch lie inside the last dimension of tensors.
struct AttentionInputs {
  Tensor q{};                 // [b, queries, .]
  std::int64_t q_column = 0;  // head i starts at q_column + i * head_size
  Tensor kv{};                // [b, >= keys, .]; for the backward pass the tensor q itself
  std::int64_t k_column = 0, v_column = 0;
  std::int64_t keys = 0;  // the last query has position keys - 1
  // With a cache as kv [slots, >= keys, .], inference only: query j of sample i has position
  // cache->starts[i] + j and sees the keys of slot cache->slots[i] up to it. `keys` is not used.
  const CachePlaces* cache = nullptr;
  std::int64_t heads = 0, head_size = 0;
  std::int64_t first_head = 0;  // global index of head 0, for dropout
  Tensor first_key{};           // i32 [b, queries], or undefined: 0
  Dropout dropout{};
};
// out [b, queries, heads * head_size]; log_sum_exp [b, heads, queries] may be undefined
// (inference).
void attention(const AttentionInputs& inputs, const Tensor& out, const Tensor& log_sum_exp);
// dqkv has the shape and columns of inputs.q.
void attention_backward(const AttentionInputs& inputs, const Tensor& out, const Tensor& log_sum_exp,
                        const Tensor& dout, const Tensor& dqkv);

// mean and rstd [rows] may both be undefined.
void layernorm(const Tensor& x, const Tensor& gain, const Tensor& bias, float epsilon,
               const Tensor& y, const Tensor& mean, const Tensor& rstd);
struct LayerNormGradients {
  Tensor dx{};              // overwritten
  Tensor residual{};        // added to dx; may be dx itself, or undefined
  Tensor dgain{}, dbias{};  // added
};
void layernorm_backward(const Tensor& x, const Tensor& gain, const Tensor& mean, const Tensor& rstd,
                        const Tensor& dy, const LayerNormGradients& gradients);

// y = GELU(x), the bits of linear's epilogue.
void gelu(const Tensor& x, const Tensor& y);
// dx = dy GELU'(x); dx may be dy.
void gelu_backward(const Tensor& x, const Tensor& dy, const Tensor& dx);
// out = dropout(x) + residual; all [b, rows, cols]; residual may be undefined; out may be either.
// With dropout.first_row they are a slice of the rows of larger samples.
void dropout_add(const Tensor& x, const Tensor& residual, const Tensor& out,
                 const Dropout& dropout);
// out [n] += sum over the rows of x [.., n]: added.
void sum_rows(const Tensor& x, const Tensor& out);
// y = y [.., n] + bias [n] + residual, the bits of linear's epilogue; residual, like y, may be
// undefined.
void add_bias(const Tensor& bias, const Tensor& residual, const Tensor& y);
// y += x.
void add(const Tensor& x, const Tensor& y);

// out [.., h] = words [token - first] + positions [position]; tokens and positions i32 [..];
// `positions` undefined: words only.
void embedding(const Tensor& tokens, const Tensor& position_ids, const Tensor& words,
               std::int64_t first, const Tensor& positions, const Tensor& out);
// dwords and dpositions: added. dpositions may be undefined, with position_ids.
void embedding_backward(const Tensor& tokens, const Tensor& position_ids, const Tensor& dy,
                        std::int64_t first, const Tensor& dwords, const Tensor& dpositions);

// The steps of softmax cross entropy on logits [rows, V/t] whose columns start at entry `first`;
// everything else is [rows], labels i32. Sum and target are those of the given columns.
void cross_entropy_max(const Tensor& logits, const Tensor& max);
enum class Exponentials { kDropped, kKept };  // kept: they overwrite the logits
void cross_entropy_sum(const Tensor& logits, std::int64_t first, const Interval& columns,
                       const Tensor& labels, const Tensor& max, Exponentials exponentials,
                       const Tensor& sum, const Tensor& target);
void cross_entropy_grad(const Tensor& logits, std::int64_t first, const Tensor& labels,
                        const Tensor& sum, const Tensor& weight);

// scalars: u8, the bytes of one AdamScalars. Sets the gradient to zero, if asked to.
void adam(const Tensor& parameter, const Tensor& exp_avg, const Tensor& exp_avg_sq,
          const Tensor& gradient, bool decay, const Tensor& scalars, bool zero_gradient = true);
// sum += the squares of x, exactly. tensor/square_sum.h makes a number of it.
void sum_squares(const Tensor& x, SquareLimbs& sum);
// Index of the first element that is not finite, or -1.
[[nodiscard]] std::int64_t find_not_finite(const Tensor& x);
// The host's out[rows]: the column of each row's largest element, the first of equals.
void argmax(const Tensor& x, std::int64_t* out);
// N(0, std) for the box of x's shape at `offset` of a tensor of `global_shape` (one or two
// dimensions); `tensor` and seed key the draw.
void normal_fill(const Tensor& x, const Shape& global_shape, const Shape& offset,
                 std::uint32_t seed, std::uint64_t tensor, double std);

}  // namespace mt
