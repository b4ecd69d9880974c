#include "tensor/ops.h"

#include <cstddef>
#include <utility>

#include "tensor/ops_checks.h"

namespace mt {

using namespace ops;
namespace {

bool lies_in(const Interval& part, std::int64_t size) {
  return 0 <= part.begin && part.begin <= part.end && part.end <= size;
}

}  // namespace

void copy_from_host(const void* from, const Tensor& to) {
  to.device().runtime->copy(to.data(), from, static_cast<std::size_t>(to.bytes()));
}

void copy_to_host(const Tensor& from, void* to) {
  from.device().runtime->copy(to, from.data(), static_cast<std::size_t>(from.bytes()));
  from.device().runtime->synchronize();
}

Tensor upload(Pool& pool, const void* from, Shape shape, DType dtype, MemoryKind kind) {
  Tensor to(pool, std::move(shape), dtype, kind);
  copy_from_host(from, to);
  return to;
}

void copy(const Tensor& from, const Tensor& to) {
  require(from.bytes() == to.bytes(), "copy", {&from, &to});
  to.device().runtime->copy(to.data(), from.data(), static_cast<std::size_t>(from.bytes()));
}

void linear(const Tensor& x, const Tensor& weight, const Tensor& y, const Epilogue& epilogue) {
  const std::int64_t m = rows_of(x), k = columns_of(x), n = columns_of(y);
  require(floats({&x, &y}) && is_weight(weight) && weight.shape() == Shape{n, k} &&
              rows_of(y) == m && float_or_none(epilogue.bias, n) &&
              float_or_none(epilogue.residual, m * n) && float_or_none(epilogue.gelu, m * n),
          "linear", {&x, &weight, &y, &epilogue.bias, &epilogue.residual, &epilogue.gelu});
  kernels_of(x).gemm(DType::kF32,
                     {.m = m,
                      .n = n,
                      .k = k,
                      .a = x.data(),
                      .lda = k,
                      .b = weight.data(),
                      .b_type = weight.dtype(),
                      .ldb = k,
                      .b_transposed = true,
                      .c = y.data(),
                      .ldc = n,
                      .bias = data_or_null(epilogue.bias),
                      .residual = data_or_null(epilogue.residual),
                      .gelu = epilogue.gelu.defined() ? epilogue.gelu.data() : nullptr});
}

void linear_columns(const Tensor& x, const Tensor& weight, const Tensor& y, std::int64_t column) {
  const std::int64_t m = rows_of(x), k = columns_of(x);
  require(floats({&x, &y}) && is_weight(weight) && weight.dim(1) == k && rows_of(y) == m &&
              column + weight.dim(0) <= columns_of(y),
          "linear_columns", {&x, &weight, &y});
  kernels_of(x).gemm(DType::kF32, {.m = m,
                                   .n = weight.dim(0),
                                   .k = k,
                                   .a = x.data(),
                                   .lda = k,
                                   .b = weight.data(),
                                   .b_type = weight.dtype(),
                                   .ldb = k,
                                   .b_transposed = true,
                                   .c = y.as<float>() + column,
                                   .ldc = columns_of(y)});
}

void linear_dx(const Tensor& dy, const Tensor& weight, const Tensor& dx) {
  const std::int64_t m = rows_of(dy), n = columns_of(dx), k = columns_of(dy);
  require(floats({&dy, &weight, &dx}) && weight.shape() == Shape{k, n} && rows_of(dx) == m,
          "linear_dx", {&dy, &weight, &dx});
  kernels_of(dy).gemm(DType::kF32, {.m = m,
                                    .n = n,
                                    .k = k,
                                    .a = dy.data(),
                                    .lda = k,
                                    .b = weight.data(),
                                    .ldb = n,
                                    .c = dx.data(),
                                    .ldc = n});
}

void linear_part(const Tensor& x, const Tensor& weight, const Interval& part, const Tensor& plus,
                 const Tensor& y) {
  const std::int64_t m = rows_of(x), k = columns_of(x), n = columns_of(y);
  require(floats({&x, &y}) && is_weight(weight) && weight.shape() == Shape{n, k} &&
              rows_of(y) == m && lies_in(part, k) && float_or_none(plus, m * n),
          "linear_part", {&x, &weight, &plus, &y});
  const auto skipped = static_cast<std::size_t>(part.begin) * dtype_size(weight.dtype());
  kernels_of(x).gemm(DType::kF32, {.m = m,
                                   .n = n,
                                   .k = part.end - part.begin,
                                   .a = x.as<float>() + part.begin,
                                   .lda = k,
                                   .b = weight.as<std::byte>() + skipped,
                                   .b_type = weight.dtype(),
                                   .ldb = k,
                                   .b_transposed = true,
                                   .c = y.data(),
                                   .ldc = n,
                                   .residual = data_or_null(plus)});
}

void linear_dx_parts(const Tensor& dy, const Tensor& weight, const std::vector<Interval>& parts,
                     const Tensor& plus, const Tensor& dx) {
  const std::int64_t m = rows_of(dy), n = columns_of(dx), k = columns_of(dy);
  require(floats({&dy, &weight, &dx}) && weight.shape() == Shape{k, n} && rows_of(dx) == m &&
              !parts.empty() && float_or_none(plus, m * n),
          "linear_dx_parts", {&dy, &weight, &plus, &dx});
  for (std::size_t i = 0; i < parts.size(); ++i) {
    require(lies_in(parts[i], k), "linear_dx_parts", {&dy, &weight});
    kernels_of(dy).gemm(DType::kF32,
                        {.m = m,
                         .n = n,
                         .k = parts[i].end - parts[i].begin,
                         .a = dy.as<float>() + parts[i].begin,
                         .lda = k,
                         .b = weight.as<float>() + parts[i].begin * n,
                         .ldb = n,
                         .c = dx.data(),
                         .ldc = n,
                         .output = i == 0 ? Output::kOverwrite : Output::kAdd,
                         .residual = i + 1 == parts.size() ? data_or_null(plus) : nullptr});
  }
}

void linear_dweight(const Tensor& dy, const Tensor& x, const Tensor& dweight, Output output) {
  const std::int64_t m = columns_of(dy), n = columns_of(x), k = rows_of(dy);
  require(floats({&dy, &x, &dweight}) && dweight.shape() == Shape{m, n} && rows_of(x) == k,
          "linear_dweight", {&dy, &x, &dweight});
  kernels_of(dy).gemm(DType::kF32, {.m = m,
                                    .n = n,
                                    .k = k,
                                    .a = dy.data(),
                                    .lda = m,
                                    .a_transposed = true,
                                    .b = x.data(),
                                    .ldb = n,
                                    .c = dweight.data(),
                                    .ldc = n,
                                    .output = output});
}

void layernorm(const Tensor& x, const Tensor& gain, const Tensor& bias, float epsilon,
               const Tensor& y, const Tensor& mean, const Tensor& rstd) {
  const std::int64_t rows = rows_of(x), cols = columns_of(x);
  require(floats({&x, &gain, &bias, &y}) && y.size() == x.size() && gain.size() == cols &&
              bias.size() == cols && float_or_none(mean, rows) && float_or_none(rstd, rows),
          "layernorm", {&x, &gain, &bias, &y, &mean, &rstd});
  kernels_of(x).layernorm_forward(DType::kF32,
                                  {.rows = rows,
                                   .cols = cols,
                                   .epsilon = epsilon,
                                   .x = x.data(),
                                   .gain = gain.data(),
                                   .bias = bias.data(),
                                   .y = y.data(),
                                   .mean = mean.defined() ? mean.as<float>() : nullptr,
                                   .rstd = rstd.defined() ? rstd.as<float>() : nullptr});
}

void layernorm_backward(const Tensor& x, const Tensor& gain, const Tensor& mean, const Tensor& rstd,
                        const Tensor& dy, const LayerNormGradients& gradients) {
  const std::int64_t rows = rows_of(x), cols = columns_of(x);
  require(
      floats({&x, &gain, &mean, &rstd, &dy, &gradients.dx, &gradients.dgain, &gradients.dbias}) &&
          dy.size() == x.size() && gradients.dx.size() == x.size() && gain.size() == cols &&
          mean.size() == rows && rstd.size() == rows && gradients.dgain.size() == cols &&
          gradients.dbias.size() == cols && float_or_none(gradients.residual, x.size()),
      "layernorm_backward", {&x, &gain, &mean, &rstd, &dy, &gradients.dx});
  kernels_of(x).layernorm_backward(DType::kF32, {.rows = rows,
                                                 .cols = cols,
                                                 .x = x.data(),
                                                 .gain = gain.data(),
                                                 .dy = dy.data(),
                                                 .residual = data_or_null(gradients.residual),
                                                 .mean = mean.as<float>(),
                                                 .rstd = rstd.as<float>(),
                                                 .dx = gradients.dx.data(),
                                                 .dgain = gradients.dgain.data(),
                                                 .dbias = gradients.dbias.data()});
}

void gelu(const Tensor& x, const Tensor& y) {
  require(floats({&x, &y}) && y.size() == x.size(), "gelu", {&x, &y});
  kernels_of(x).gelu(DType::kF32, x.data(), y.data(), x.size());
}

void gelu_backward(const Tensor& x, const Tensor& dy, const Tensor& dx) {
  require(floats({&x, &dy, &dx}) && dy.size() == x.size() && dx.size() == x.size(), "gelu_backward",
          {&x, &dy, &dx});
  kernels_of(x).gelu_backward(DType::kF32, x.data(), dy.data(), dx.data(), x.size());
}

void dropout_add(const Tensor& x, const Tensor& residual, const Tensor& out,
                 const Dropout& dropout) {
  require(floats({&x, &out}) && x.shape().size() == 3 && out.shape() == x.shape() &&
              float_or_none(residual, x.size()),
          "dropout_add", {&x, &residual, &out});
  kernels_of(x).dropout_add(DType::kF32, {.batch = x.dim(0),
                                          .rows = x.dim(1),
                                          .cols = x.dim(2),
                                          .x = x.data(),
                                          .residual = data_or_null(residual),
                                          .out = out.data(),
                                          .dropout = dropout});
}

void sum_rows(const Tensor& x, const Tensor& out) {
  require(floats({&x, &out}) && out.size() == columns_of(x), "sum_rows", {&x, &out});
  kernels_of(x).sum_rows(DType::kF32, x.data(), out.data(), rows_of(x), columns_of(x));
}

void add_bias(const Tensor& bias, const Tensor& residual, const Tensor& y) {
  require(floats({&bias, &y}) && bias.size() == columns_of(y) && float_or_none(residual, y.size()),
          "add_bias", {&bias, &residual, &y});
  kernels_of(y).add_bias(DType::kF32, bias.data(), data_or_null(residual), y.data(), rows_of(y),
                         columns_of(y));
}

void add(const Tensor& x, const Tensor& y) {
  require(floats({&x, &y}) && x.size() == y.size(), "add", {&x, &y});
  kernels_of(x).add(DType::kF32, x.data(), y.data(), x.size());
}

void embedding(const Tensor& tokens, const Tensor& position_ids, const Tensor& words,
               std::int64_t first, const Tensor& positions, const Tensor& out) {
  const std::int64_t count = rows_of(out), cols = columns_of(out);
  require(floats({&out}) && is_weight(words) && words.dim(1) == cols && integers(tokens, count) &&
              integers(position_ids, count) &&
              (!positions.defined() || (is_weight(positions) && positions.dim(1) == cols &&
                                        positions.dtype() == words.dtype())),
          "embedding", {&tokens, &position_ids, &words, &positions, &out});
  kernels_of(out).embedding_forward(DType::kF32, {.count = count,
                                                  .cols = cols,
                                                  .first = first,
                                                  .rows = words.dim(0),
                                                  .tokens = tokens.as<std::int32_t>(),
                                                  .position_ids = position_ids.as<std::int32_t>(),
                                                  .table_type = words.dtype(),
                                                  .words = words.data(),
                                                  .positions = data_or_null(positions),
                                                  .out = out.data()});
}

void embedding_backward(const Tensor& tokens, const Tensor& position_ids, const Tensor& dy,
                        std::int64_t first, const Tensor& dwords, const Tensor& dpositions) {
  const std::int64_t count = rows_of(dy), cols = columns_of(dy);
  const bool places =
      !dpositions.defined() ||
      (floats({&dpositions}) && integers(position_ids, count) && dpositions.dim(1) == cols);
  require(floats({&dy, &dwords}) && integers(tokens, count) && dwords.dim(1) == cols && places,
          "embedding_backward", {&tokens, &position_ids, &dy, &dwords, &dpositions});
  kernels_of(dy).embedding_backward(DType::kF32, {.count = count,
                                                  .cols = cols,
                                                  .first = first,
                                                  .rows = dwords.dim(0),
                                                  .tokens = tokens.as<std::int32_t>(),
                                                  .position_ids = position_ids.as<std::int32_t>(),
                                                  .dy = dy.data(),
                                                  .dwords = dwords.data(),
                                                  .dpositions = dpositions.data()});
}

void cross_entropy_max(const Tensor& logits, const Tensor& max) {
  require(floats({&logits, &max}) && max.size() == rows_of(logits), "cross_entropy_max",
          {&logits, &max});
  kernels_of(logits).cross_entropy_max(DType::kF32, {.rows = rows_of(logits),
                                                     .cols = columns_of(logits),
                                                     .ld = columns_of(logits),
                                                     .logits = logits.data(),
                                                     .max = max.as<float>()});
}

void cross_entropy_sum(const Tensor& logits, std::int64_t first, const Interval& columns,
                       const Tensor& labels, const Tensor& max, Exponentials exponentials,
                       const Tensor& sum, const Tensor& target) {
  const std::int64_t rows = rows_of(logits);
  require(floats({&logits, &max, &sum, &target}) && lies_in(columns, columns_of(logits)) &&
              integers(labels, rows) && max.size() == rows && sum.size() == rows &&
              target.size() == rows,
          "cross_entropy_sum", {&logits, &labels, &max, &sum, &target});
  kernels_of(logits).cross_entropy_sum(DType::kF32,
                                       {.rows = rows,
                                        .cols = columns.end - columns.begin,
                                        .ld = columns_of(logits),
                                        .first = first + columns.begin,
                                        .logits = logits.as<float>() + columns.begin,
                                        .keep_exp = exponentials == Exponentials::kKept,
                                        .labels = labels.as<std::int32_t>(),
                                        .max = max.as<float>(),
                                        .sum = sum.as<float>(),
                                        .target = target.as<float>()});
}

void cross_entropy_grad(const Tensor& logits, std::int64_t first, const Tensor& labels,
                        const Tensor& sum, const Tensor& weight) {
  const std::int64_t rows = rows_of(logits);
  require(floats({&logits, &sum, &weight}) && integers(labels, rows) && sum.size() == rows &&
              weight.size() == rows,
          "cross_entropy_grad", {&logits, &labels, &sum, &weight});
  kernels_of(logits).cross_entropy_grad(DType::kF32, {.rows = rows,
                                                      .cols = columns_of(logits),
                                                      .ld = columns_of(logits),
                                                      .first = first,
                                                      .logits = logits.data(),
                                                      .labels = labels.as<std::int32_t>(),
                                                      .sum = sum.as<float>(),
                                                      .weight = weight.as<float>()});
}

void adam(const Tensor& parameter, const Tensor& exp_avg, const Tensor& exp_avg_sq,
          const Tensor& gradient, bool decay, const Tensor& scalars, bool zero_gradient) {
  const std::int64_t count = parameter.size();
  require(floats({&parameter, &exp_avg, &exp_avg_sq, &gradient}) && exp_avg.size() == count &&
              exp_avg_sq.size() == count && gradient.size() == count &&
              scalars.bytes() == static_cast<std::int64_t>(sizeof(AdamScalars)),
          "adam", {&parameter, &exp_avg, &exp_avg_sq, &gradient, &scalars});
  kernels_of(parameter).adam({.count = count,
                              .parameter = parameter.as<float>(),
                              .exp_avg = exp_avg.as<float>(),
                              .exp_avg_sq = exp_avg_sq.as<float>(),
                              .gradient = gradient.as<float>(),
                              .decay = decay,
                              .zero_gradient = zero_gradient,
                              .scalars = scalars.as<AdamScalars>()});
}

void sum_squares(const Tensor& x, SquareLimbs& sum) {
  require(floats({&x}), "sum_squares", {&x});
  kernels_of(x).sum_squares(DType::kF32, x.data(), x.size(), sum);
}

std::int64_t find_not_finite(const Tensor& x) {
  require(floats({&x}), "find_not_finite", {&x});
  return kernels_of(x).find_not_finite(DType::kF32, x.data(), x.size());
}

void argmax(const Tensor& x, std::int64_t* out) {
  require(floats({&x}), "argmax", {&x});
  kernels_of(x).argmax(DType::kF32, x.data(), out, rows_of(x), columns_of(x));
}

void normal_fill(const Tensor& x, const Shape& global_shape, const Shape& offset,
                 std::uint32_t seed, std::uint64_t tensor, double std) {
  const bool matrix = global_shape.size() == 2;
  require(floats({&x}) && global_shape.size() == x.shape().size() &&
              offset.size() == global_shape.size() && global_shape.size() <= 2,
          "normal_fill", {&x});
  kernels_of(x).normal_fill({.global_cols = matrix ? global_shape[1] : 1,
                             .row_offset = offset[0],
                             .col_offset = matrix ? offset[1] : 0,
                             .rows = x.dim(0),
                             .cols = matrix ? x.dim(1) : 1,
                             .seed = seed,
                             .tensor = tensor,
                             .std = static_cast<float>(std),
                             .out = x.data()});
}

}  // namespace mt
