// A whole block: gradients by finite differences, dropout, micro-batches.
#include "nn/block.h"

#include <gtest/gtest.h>

#include "tensor/ops.h"
#include "testing.h"

namespace mt {
namespace {

class Layer {
 public:
  explicit Layer(TestRig& rig, double dropout, std::int64_t heads = 3, std::int64_t inner = 11)
      : block({.hidden = 3 * heads,
               .inner = inner,
               .heads = heads,
               .layer = 4,
               .hidden_dropout = dropout,
               .attention_dropout = dropout / 2,
               .output_std = 0.1},
              rig.setup()) {
    block.collect(parameters);
    randomise(parameters, 20);
  }
  Block block;
  std::vector<Parameter*> parameters;
};

MicroBatch micro_batch(Pool& pool, const std::vector<std::int64_t>& samples) {
  MicroBatch micro;
  micro.dropout_seed = 77;
  micro.samples = upload(pool, samples.data(), {static_cast<std::int64_t>(samples.size()), 8},
                         DType::kU8, MemoryKind::kWorkspace);
  return micro;
}

TEST(block, gradients_match_finite_differences) {
  TestRig rig;
  for (const double dropout : {0.0, 0.35}) {
    SCOPED_TRACE(dropout);
    Layer layer(rig, dropout);
    const Tensor x = random_tensor(rig.pool, {2, 5, 9}, 1);
    const Tensor dy = random_tensor(rig.pool, x.shape(), 2);
    const MicroBatch micro = micro_batch(rig.pool, {3, 8});
    Block::Saved saved;
    (void)layer.block.forward(x, micro, &saved);
    const Tensor dx = layer.block.backward(copy_of(dy), micro, saved);
    const auto loss = [&] { return weighted_sum(layer.block.forward(x, micro, nullptr), dy); };
    EXPECT_LT(gradient_error(x, dx, loss), kGradientTolerance);
    expect_parameter_gradients(layer.parameters, loss);
  }
}

TEST(block, backward_releases_what_was_saved) {
  TestRig rig;
  Layer layer(rig, 0.1);
  const Tensor x = random_tensor(rig.pool, {2, 5, 9}, 1);
  const MicroBatch micro = micro_batch(rig.pool, {3, 8});
  const auto held = [&] {
    return rig.pool.use().current[static_cast<std::size_t>(MemoryKind::kActivations)];
  };
  const std::int64_t before = held();
  Block::Saved saved;
  Tensor y = layer.block.forward(x, micro, &saved);
  EXPECT_GT(held(), before);
  y = {};
  (void)layer.block.backward(copy_of(x), micro, saved);
  EXPECT_EQ(held(), before);
}

TEST(block, dropout_hangs_on_the_sample_and_not_on_its_place) {
  TestRig rig;
  Layer layer(rig, 0.4);
  const Tensor x = random_tensor(rig.pool, {3, 5, 9}, 1);
  const Tensor whole = layer.block.forward(x, micro_batch(rig.pool, {5, 6, 7}), nullptr);
  const Tensor last = layer.block.forward(x.rows(2, 3), micro_batch(rig.pool, {7}), nullptr);
  const Tensor other = layer.block.forward(x.rows(2, 3), micro_batch(rig.pool, {8}), nullptr);
  expect_same_bits(values_of(last), values_of(whole.rows(2, 3)), "sample 7");
  EXPECT_NE(values_of(other), values_of(last));
  const Tensor plain = layer.block.forward(x.rows(2, 3), {}, nullptr);
  EXPECT_NE(values_of(plain), values_of(last));
}

TEST(block, a_split_batch_gives_the_same_bits_of_every_gradient) {
  TestRig rig;
  Layer whole(rig, 0.2), split(rig, 0.2);
  const Tensor x = random_tensor(rig.pool, {5, 7, 9}, 1);
  const Tensor dy = random_tensor(rig.pool, x.shape(), 2);
  Block::Saved saved;
  const MicroBatch all = micro_batch(rig.pool, {1, 2, 3, 4, 5});
  (void)whole.block.forward(x, all, &saved);
  const Tensor dx = whole.block.backward(copy_of(dy), all, saved);
  for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 2}, {2, 3}, {3, 5}}) {
    std::vector<std::int64_t> samples;
    for (std::int64_t i = begin; i < end; ++i) samples.push_back(i + 1);
    const MicroBatch micro = micro_batch(rig.pool, samples);
    (void)split.block.forward(x.rows(begin, end), micro, &saved);
    const Tensor part = split.block.backward(copy_of(dy.rows(begin, end)), micro, saved);
    expect_same_bits(values_of(part), values_of(dx.rows(begin, end)), "dx");
  }
  for (std::size_t i = 0; i < whole.parameters.size(); ++i) {
    expect_same_bits(values_of(split.parameters[i]->grad), values_of(whole.parameters[i]->grad),
                     whole.parameters[i]->segments.front().name);
  }
}

}  // namespace
}  // namespace mt
