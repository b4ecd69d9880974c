// The linear layers, the norm and the embedding: values against loops in double, gradients against
// finite differences, parts of two and three ranks against the whole.
#include "nn/linear.h"

#include <gtest/gtest.h>

#include <cmath>

#include "nn/embedding.h"
#include "nn/layernorm.h"
#include "tensor/ops.h"
#include "testing.h"

namespace mt {
namespace {

struct Sizes {
  std::int64_t batch, sequence, in, out;
};
constexpr Sizes kSizes[] = {
    {1, 1, 1, 1}, {1, 2, 3, 5}, {2, 3, 17, 7}, {1, 7, 33, 31}, {3, 5, 8, 65}};

std::vector<double> product(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const auto a = values_of(x), w = values_of(weight), b = values_of(bias);
  const auto n = static_cast<std::size_t>(weight.dim(0)),
             k = static_cast<std::size_t>(weight.dim(1));
  std::vector<double> y(a.size() / k * n);
  for (std::size_t i = 0; i < a.size() / k; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      double sum = b[j];
      for (std::size_t c = 0; c < k; ++c) sum += static_cast<double>(a[i * k + c]) * w[j * k + c];
      y[i * n + j] = sum;
    }
  }
  return y;
}

template <typename Layer>
std::vector<Parameter*> parameters_of(Layer& layer) {
  std::vector<Parameter*> parameters;
  layer.collect(parameters);
  return parameters;
}

TEST(linear, column_layer_computes_the_product_and_its_gradients) {
  TestRig rig;
  for (const Sizes& size : kSizes) {
    SCOPED_TRACE(cat(size.batch, " ", size.sequence, " ", size.in, " ", size.out));
    ColumnParallelLinear layer({"a", "b", "c"}, size.in, size.out, rig.setup());
    const auto parameters = parameters_of(layer);
    randomise(parameters, 1);
    const Tensor x = random_tensor(rig.pool, {size.batch, size.sequence, size.in}, 2);
    ColumnParallelLinear::Saved saved;
    const Tensor y = layer.forward(x, &saved);
    ASSERT_EQ(y.shape(), (Shape{size.batch, size.sequence, 3 * size.out}));
    expect_near(values_of(y), product(x, parameters[0]->value, parameters[1]->value), 1e-5, "y");

    const Tensor dy = random_tensor(rig.pool, y.shape(), 3);
    const Tensor dx = layer.backward(dy, saved);
    const auto loss = [&] { return weighted_sum(layer.forward(x, nullptr), dy); };
    EXPECT_LT(gradient_error(x, dx, loss), kGradientTolerance);
    expect_parameter_gradients(parameters, loss);
  }
}

TEST(linear, column_layer_with_gelu_returns_both_sides) {
  TestRig rig;
  ColumnParallelLinear layer({"a"}, 7, 19, rig.setup());
  randomise(parameters_of(layer), 1);
  const Tensor x = random_tensor(rig.pool, {2, 3, 7}, 2, 3.0F);
  const auto both = layer.forward_gelu(x, nullptr);
  expect_same_bits(values_of(both.y), values_of(layer.forward(x, nullptr)), "before GELU");
  std::vector<double> expected;
  for (const float value : values_of(both.y)) {
    const double u = value;
    expected.push_back(0.5 * u * (1 + std::tanh(std::sqrt(2 / M_PI) * (u + 0.044715 * u * u * u))));
  }
  expect_near(values_of(both.gelu), expected, 1e-6, "GELU");
}

TEST(linear, row_layer_adds_the_residual_once_and_computes_gradients) {
  TestRig rig;
  for (const Sizes& size : kSizes) {
    SCOPED_TRACE(cat(size.batch, " ", size.sequence, " ", size.in, " ", size.out));
    RowParallelLinear layer("r", size.in, size.out, rig.setup());
    const auto parameters = parameters_of(layer);
    randomise(parameters, 4);
    const Tensor x = random_tensor(rig.pool, {size.batch, size.sequence, size.in}, 5);
    const Tensor residual = random_tensor(rig.pool, {size.batch, size.sequence, size.out}, 6);
    RowParallelLinear::Saved saved;
    const Tensor y = layer.forward(x, residual, &saved);
    auto expected = product(x, parameters[0]->value, parameters[1]->value);
    const auto added = values_of(residual);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += added[i];
    expect_near(values_of(y), expected, 1e-5, "y");

    const Tensor dy = random_tensor(rig.pool, y.shape(), 7);
    const Tensor dx = layer.backward(dy, saved);
    const auto loss = [&] { return weighted_sum(layer.forward(x, residual, nullptr), dy); };
    EXPECT_LT(gradient_error(x, dx, loss), kGradientTolerance);
    expect_parameter_gradients(parameters, loss);
  }
}

TEST(linear, parameter_gradients_add) {
  TestRig rig;
  RowParallelLinear layer("r", 5, 3, rig.setup());
  const auto parameters = parameters_of(layer);
  randomise(parameters, 4);
  RowParallelLinear::Saved saved;
  (void)layer.forward(random_tensor(rig.pool, {1, 1, 5}, 5), {}, &saved);
  const Tensor dy = random_tensor(rig.pool, {1, 1, 3}, 7);
  (void)layer.backward(dy, saved);
  const auto once = values_of(parameters[0]->grad), bias_once = values_of(parameters[1]->grad);
  (void)layer.backward(dy, saved);
  const auto twice = values_of(parameters[0]->grad), bias_twice = values_of(parameters[1]->grad);
  for (std::size_t i = 0; i < once.size(); ++i) EXPECT_FLOAT_EQ(twice[i], 2 * once[i]);
  for (std::size_t i = 0; i < bias_once.size(); ++i)
    EXPECT_FLOAT_EQ(bias_twice[i], 2 * bias_once[i]);
}

TEST(linear, parts_of_ranks_make_the_whole) {
  TestRig rig;
  ColumnParallelLinear column({"q", "k"}, 5, 12, rig.setup());
  RowParallelLinear row("r", 12, 5, rig.setup());
  randomise(parameters_of(column), 1);
  randomise(parameters_of(row), 2);
  const Tensor x = random_tensor(rig.pool, {2, 3, 5}, 3),
               z = random_tensor(rig.pool, {2, 3, 12}, 4);
  const auto wide = values_of(column.forward(x, nullptr));
  const auto whole = values_of(row.forward(z, x, nullptr));
  for (const int ranks : {2, 3}) {
    std::vector<double> sum(whole.size(), 0.0);
    const std::size_t part = 12U / static_cast<std::size_t>(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const LonelyRank tp(rank, ranks);
      const LayerSetup setup{.tp = tp, .pool = rig.pool};
      ColumnParallelLinear column_part({"q", "k"}, 5, 12, setup);
      RowParallelLinear row_part("r", 12, 5, setup);
      copy_boxes(parameters_of(column), parameters_of(column_part));
      copy_boxes(parameters_of(row), parameters_of(row_part));
      const std::size_t first = part * static_cast<std::size_t>(rank);

      const auto narrow = values_of(column_part.forward(x, nullptr));
      std::vector<float> expected, z_part;
      for (std::size_t i = 0; i < 6; ++i) {
        for (const std::size_t segment : {0U, 12U}) {
          const auto begin = wide.begin() + static_cast<std::ptrdiff_t>(i * 24 + segment + first);
          expected.insert(expected.end(), begin, begin + static_cast<std::ptrdiff_t>(part));
        }
        const auto z_values = values_of(z);
        const auto begin = z_values.begin() + static_cast<std::ptrdiff_t>(i * 12 + first);
        z_part.insert(z_part.end(), begin, begin + static_cast<std::ptrdiff_t>(part));
      }
      expect_same_bits(narrow, expected, cat("columns of rank ", rank, " of ", ranks));
      const Tensor z_tensor =
          upload(rig.pool, z_part.data(), {2, 3, static_cast<std::int64_t>(part)}, DType::kF32,
                 MemoryKind::kWorkspace);
      const auto y = values_of(row_part.forward(z_tensor, x, nullptr));
      for (std::size_t i = 0; i < y.size(); ++i) sum[i] += y[i];
    }
    expect_near(whole, sum, 1e-5, cat("sum over ", ranks, " ranks"));
  }
}

TEST(linear, refuses_features_that_ranks_do_not_divide) {
  TestRig rig;
  const LonelyRank tp(0, 3);
  const LayerSetup setup{.tp = tp, .pool = rig.pool};
  EXPECT_THROW(ColumnParallelLinear({"a"}, 4, 7, setup), UsageError);
  EXPECT_THROW(RowParallelLinear("a", 7, 4, setup), UsageError);
}

TEST(linear, a_wrong_shape_is_named) {
  TestRig rig;
  const Tensor x = random_tensor(rig.pool, {2, 3}, 1), w = random_tensor(rig.pool, {5, 4}, 2);
  const Tensor y = random_tensor(rig.pool, {2, 5}, 3);
  try {
    linear(x, w, y);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), ExitStatus::kInternal);
    EXPECT_NE(std::string(error.what()).find("f32[2, 3] f32[5, 4]"), std::string::npos)
        << error.what();
  }
}

TEST(layernorm, gradients_match_finite_differences) {
  TestRig rig;
  for (const std::int64_t hidden : {2, 5, 17, 64, 67}) {
    SCOPED_TRACE(hidden);
    LayerNorm layer("n", hidden, 1e-5, rig.setup());
    const auto parameters = parameters_of(layer);
    randomise(parameters, 1);
    const Tensor x = random_tensor(rig.pool, {1, 3, hidden}, 2, 2.0F);
    const Tensor dy = random_tensor(rig.pool, x.shape(), 3);
    const Tensor past = random_tensor(rig.pool, x.shape(), 4);
    LayerNorm::Saved saved;
    (void)layer.forward(x, &saved);
    const Tensor dx = layer.backward(dy, copy_of(past), saved);
    const auto loss = [&] {
      return weighted_sum(layer.forward(x, nullptr), dy) + weighted_sum(x, past);
    };
    // With two columns the norm is a sign: a step as long as the difference of x says nothing.
    if (hidden > 2) {
      EXPECT_LT(gradient_error(x, dx, loss), 5e-3);
    }
    expect_parameter_gradients(parameters, loss);
  }
}

TEST(embedding, gradients_match_finite_differences_with_dropout) {
  TestRig rig;
  VocabParallelEmbedding layer({.vocabulary = 7, .positions = 5, .hidden = 9, .dropout = 0.4},
                               rig.setup());
  const auto parameters = parameters_of(layer);
  randomise(parameters, 1);
  const auto ids = random_ids(6, 7, 2), where = random_ids(6, 5, 3);
  const std::int64_t numbers[] = {11, 4};
  MicroBatch micro;
  micro.dropout_seed = 5;
  micro.samples = upload(rig.pool, numbers, {2, 8}, DType::kU8, MemoryKind::kWorkspace);
  const Tensor tokens = upload(rig.pool, ids.data(), {2, 3}, DType::kI32, MemoryKind::kWorkspace);
  const Tensor places = upload(rig.pool, where.data(), {2, 3}, DType::kI32, MemoryKind::kWorkspace);
  const Tensor dy = random_tensor(rig.pool, {2, 3, 9}, 3);
  VocabParallelEmbedding::Saved saved;
  (void)layer.forward(tokens, places, micro, &saved);
  layer.backward(copy_of(dy), micro, saved);
  expect_parameter_gradients(
      parameters, [&] { return weighted_sum(layer.forward(tokens, places, micro, nullptr), dy); });
}

TEST(embedding, parts_of_ranks_add_up_for_a_prime_vocabulary) {
  TestRig rig;
  const EmbeddingSizes sizes{.vocabulary = 13, .positions = 4, .hidden = 3};
  VocabParallelEmbedding whole(sizes, rig.setup());
  randomise(parameters_of(whole), 1);
  const std::vector<std::int32_t> ids = {0, 12, 3, 4, 6, 8}, where = {0, 1, 2, 3, 0, 1};
  const Tensor tokens = upload(rig.pool, ids.data(), {1, 6}, DType::kI32, MemoryKind::kWorkspace);
  const Tensor places = upload(rig.pool, where.data(), {1, 6}, DType::kI32, MemoryKind::kWorkspace);
  const auto y = values_of(whole.forward(tokens, places, {}, nullptr));
  std::vector<double> sum(y.size(), 0.0);
  std::int64_t rows = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const LonelyRank tp(rank, 4);
    VocabParallelEmbedding part(sizes, {.tp = tp, .pool = rig.pool});
    copy_boxes(parameters_of(whole), parameters_of(part));
    rows += part.words().value.dim(0);
    const auto values = values_of(part.forward(tokens, places, {}, nullptr));
    for (std::size_t i = 0; i < y.size(); ++i) sum[i] += values[i];
  }
  EXPECT_EQ(rows, 13);
  expect_near(y, sum, 1e-6, "sum over ranks");
}

}  // namespace
}  // namespace mt
