// Cross entropy and the head in blocks of rows, against double and across ranks.
#include "nn/loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tensor/ops.h"
#include "testing.h"

namespace mt {
namespace {

Tensor labels_of(Pool& pool, const std::vector<std::int32_t>& labels) {
  return upload(pool, labels.data(), {static_cast<std::int64_t>(labels.size())}, DType::kI32,
                MemoryKind::kWorkspace);
}

// Softmax of one row in double.
std::vector<double> softmax(const float* logits, std::size_t count) {
  const double max = *std::max_element(logits, logits + count);
  std::vector<double> p(count);
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += p[i] = std::exp(logits[i] - max);
  for (double& value : p) value /= sum;
  return p;
}

TEST(loss, matches_double_at_odd_sizes_and_large_logits) {
  TestRig rig;
  for (const std::int64_t vocabulary : {1, 2, 13, 64, 211, 1031}) {
    for (const float scale : {1.0F, 80.0F}) {
      SCOPED_TRACE(cat(vocabulary, " ", scale));
      const std::int64_t rows = 7;
      const auto n = static_cast<std::size_t>(vocabulary);
      const Tensor logits = random_tensor(rig.pool, {rows, vocabulary}, 1, scale);
      const auto ids = random_ids(rows, static_cast<std::int32_t>(vocabulary), 2);
      const Tensor weight = random_tensor(rig.pool, {rows}, 3);
      const auto before = values_of(logits), weights = values_of(weight);
      VocabParallelCrossEntropy layer(vocabulary, *rig.tp);
      std::vector<float> nll(7), nll_kept(7);
      layer.forward(logits, labels_of(rig.pool, ids), nll.data(), nullptr);
      expect_same_bits(values_of(logits), before, "logits of inference");
      VocabParallelCrossEntropy::Saved saved;
      layer.forward(logits, labels_of(rig.pool, ids), nll_kept.data(), &saved);
      expect_same_bits(nll_kept, nll, "nll");
      layer.backward(logits, weight, saved);
      std::vector<double> expected, gradient;
      for (std::size_t row = 0; row < 7; ++row) {
        auto p = softmax(before.data() + row * n, n);
        const auto label = static_cast<std::size_t>(ids[row]);
        expected.push_back(-std::log(p[label]));
        p[label] -= 1;
        for (const double value : p) gradient.push_back(value * weights[row]);
      }
      expect_near(nll, expected, 2e-6 * std::max(1.0F, scale), "nll");
      expect_near(values_of(logits), gradient, 1e-6, "gradient");
    }
  }
}

TEST(loss, head_gradients_match_finite_differences) {
  TestRig rig;
  const Tensor x = random_tensor(rig.pool, {5, 6}, 1), weight = random_tensor(rig.pool, {17, 6}, 2);
  const Tensor dweight = Tensor::zero(rig.pool, {17, 6}, DType::kF32, MemoryKind::kGradients);
  const Tensor labels = labels_of(rig.pool, {0, 16, 3, 3, 8});
  const Tensor row_weight = random_tensor(rig.pool, {5}, 4);
  const auto weights = values_of(row_weight);
  VocabParallelHead head(17, *rig.tp);
  std::vector<float> nll(5);
  const Tensor dx = copy_of(x);
  head.nll_and_gradients(dx, weight, dweight, labels, row_weight, nll.data());
  const auto loss = [&] {
    head.nll(x, weight, labels, nll.data());
    double sum = 0;
    for (std::size_t i = 0; i < 5; ++i) sum += static_cast<double>(weights[i]) * nll[i];
    return sum;
  };
  EXPECT_LT(gradient_error(x, dx, loss), kGradientTolerance);
  EXPECT_LT(gradient_error(weight, dweight, loss), kGradientTolerance);
}

TEST(loss, block_borders_change_no_bit) {
  TestRig rig;
  const std::int64_t vocabulary = 1031, hidden = 7, rows = 8;
  const std::int64_t block_bytes = 4 * vocabulary * static_cast<std::int64_t>(sizeof(float)) - 1;
  VocabParallelHead head(vocabulary, *rig.tp, block_bytes), whole(vocabulary, *rig.tp);
  ASSERT_EQ(head.block_rows(), 3);
  const Tensor weight = random_tensor(rig.pool, {vocabulary, hidden}, 1);
  const Tensor x = random_tensor(rig.pool, {rows, hidden}, 2);
  const Tensor row_weight = random_tensor(rig.pool, {rows}, 3);
  const auto ids = random_ids(rows, static_cast<std::int32_t>(vocabulary), 4);
  const Tensor labels = labels_of(rig.pool, ids);
  const Shape shape{vocabulary, hidden};
  const Tensor together = Tensor::zero(rig.pool, shape, DType::kF32, MemoryKind::kGradients);
  const Tensor apart = Tensor::zero(rig.pool, shape, DType::kF32, MemoryKind::kGradients);
  std::vector<float> nll(8), nll_apart(8);
  const Tensor dx = copy_of(x), dx_apart = copy_of(x);
  whole.nll_and_gradients(copy_of(x), weight, together, labels, row_weight, nll.data());
  const auto in_one = values_of(together);
  together.fill_zero();
  head.nll_and_gradients(dx, weight, together, labels, row_weight, nll.data());
  expect_same_bits(values_of(together), in_one, "dweight in one block");
  for (std::int64_t i = 0; i < rows; ++i) {
    head.nll_and_gradients(dx_apart.rows(i, i + 1), weight, apart, labels.rows(i, i + 1),
                           row_weight.rows(i, i + 1), nll_apart.data() + i);
  }
  expect_same_bits(nll_apart, nll, "nll");
  expect_same_bits(values_of(dx_apart), values_of(dx), "dx");
  expect_same_bits(values_of(apart), in_one, "dweight row by row");
}

TEST(loss, logits_are_never_held_whole) {
  TestRig rig;
  const std::int64_t vocabulary = 50257, rows = 1000;  // 192 MiB of logits
  VocabParallelHead head(vocabulary, *rig.tp);
  const Tensor weight = random_tensor(rig.pool, {vocabulary, 1}, 1);
  const Tensor x = random_tensor(rig.pool, {rows, 1}, 2);
  const auto ids = random_ids(rows, static_cast<std::int32_t>(vocabulary), 4);
  std::vector<float> nll(static_cast<std::size_t>(rows));
  const std::int64_t before = rig.pool.use().peak_total;
  head.nll(x, weight, labels_of(rig.pool, ids), nll.data());
  EXPECT_LT(rig.pool.use().peak_total - before, kLogitsBlockBytes + 100'000);
  EXPECT_GT(rig.pool.use().peak_total - before, kLogitsBlockBytes / 2);
}

TEST(loss, logits_of_ranks_lie_at_their_columns) {
  TestRig rig;
  const Tensor x = random_tensor(rig.pool, {3, 4}, 1), weight = random_tensor(rig.pool, {11, 4}, 2);
  const auto whole = values_of(VocabParallelHead(11, *rig.tp).logits(x, weight));
  std::vector<double> sum(whole.size(), 0.0);
  for (int rank = 0; rank < 3; ++rank) {
    const LonelyRank tp(rank, 3);
    const OwnedRange range = owned_range(11, tp);
    const auto part =
        values_of(VocabParallelHead(11, tp).logits(x, weight.rows(range.begin, range.end)));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  expect_near(whole, sum, 0.0, "logits");
}

}  // namespace
}  // namespace mt
