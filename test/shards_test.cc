// The pieces of --reduction tree: cuts, trees of products, counters of gradients.
#include "nn/shards.h"

#include <gtest/gtest.h>

#include <cmath>

#include "nn/gradient_parts.h"
#include "nn/layernorm.h"
#include "testing.h"

namespace mt {
namespace {

// The balanced tree over numbers, in float.
float tree(const std::vector<float>& x, std::size_t begin, std::size_t count) {
  if (count == 1) return x[begin];
  return tree(x, begin, count / 2) + tree(x, begin + count / 2, count / 2);
}

TEST(shards, cut_everything_once_and_as_ranks_do) {
  for (const std::int64_t n : {1, 7, 8, 61, 768, 50257}) {
    std::int64_t end = 0;
    for (int i = 0; i < 8; ++i) {
      const Interval shard = shard_of(n, i, 8);
      EXPECT_EQ(shard.begin, end);
      EXPECT_EQ(shard.begin, i * n / 8);
      end = shard.end;
    }
    EXPECT_EQ(end, n);
    for (const int ranks : {1, 2, 4, 8}) {
      for (int rank = 0; rank < ranks; ++rank) {
        const LonelyRank tp(rank, ranks);
        const LocalShards mine = local_shards(8, tp);
        EXPECT_EQ(shard_of(n, mine.first, mine.total).begin, owned_range(n, tp).begin);
        EXPECT_EQ(shard_of(n, mine.first + mine.count - 1, mine.total).end, owned_range(n, tp).end);
      }
    }
  }
}

TEST(shards, products_of_parts_are_added_as_a_tree) {
  TestRig rig;
  const std::int64_t rows = 5, in = 37, out = 19;
  const Tensor x = random_tensor(rig.pool, {rows, in}, 1),
               weight = random_tensor(rig.pool, {out, in}, 2),
               dy = random_tensor(rig.pool, {rows, in}, 3),
               dx_weight = random_tensor(rig.pool, {in, out}, 4);
  const auto a = values_of(x), w = values_of(weight), d = values_of(dy), v = values_of(dx_weight);
  for (const int shards : {1, 2, 8, 64}) {  // 64: some are empty
    const Tensor y(rig.pool, {rows, out}, DType::kF32, MemoryKind::kWorkspace),
        dx(rig.pool, {rows, out}, DType::kF32, MemoryKind::kWorkspace);
    sum_shards(shards, y, [&](int i, const Tensor& plus, const Tensor& to) {
      linear_part(x, weight, shard_of(in, i, shards), plus, to);
    });
    // Two parts of one contraction a shard, as of a fused weight.
    const std::int64_t half = in / 2;
    sum_shards(shards, dx, [&](int i, const Tensor& plus, const Tensor& to) {
      const Interval part = shard_of(half, i, shards);
      linear_dx_parts(dy, dx_weight, {part, {part.begin + half, part.end + half}}, plus, to);
    });
    std::vector<float> expected_y, expected_dx;
    for (std::size_t r = 0; r < 5; ++r) {
      for (std::size_t c = 0; c < 19; ++c) {
        std::vector<float> parts, dx_parts;
        for (int i = 0; i < shards; ++i) {
          float sum = 0, dx_sum = 0;
          const Interval part = shard_of(in, i, shards), half_part = shard_of(half, i, shards);
          for (auto k = static_cast<std::size_t>(part.begin);
               k < static_cast<std::size_t>(part.end); ++k) {
            sum = std::fma(a[r * 37 + k], w[c * 37 + k], sum);
          }
          for (const std::size_t offset : {std::size_t{0}, static_cast<std::size_t>(half)}) {
            for (auto k = static_cast<std::size_t>(half_part.begin) + offset;
                 k < static_cast<std::size_t>(half_part.end) + offset; ++k) {
              dx_sum = std::fma(d[r * 37 + k], v[k * 19 + c], dx_sum);
            }
          }
          parts.push_back(sum);
          dx_parts.push_back(dx_sum);
        }
        expected_y.push_back(tree(parts, 0, parts.size()));
        expected_dx.push_back(tree(dx_parts, 0, dx_parts.size()));
      }
    }
    expect_same_bits(values_of(y), expected_y, cat("y of ", shards));
    expect_same_bits(values_of(dx), expected_dx, cat("dx of ", shards));
  }
}

TEST(shards, a_tree_of_products_takes_one_tensor_a_level) {
  TestRig rig;
  const Tensor x = random_tensor(rig.pool, {64, 64}, 1),
               weight = random_tensor(rig.pool, {64, 64}, 2);
  const Tensor y(rig.pool, {64, 64}, DType::kF32, MemoryKind::kActivations);
  const std::int64_t before = rig.pool.use().peak_total;
  sum_shards(8, y, [&](int i, const Tensor& plus, const Tensor& to) {
    linear_part(x, weight, shard_of(64, i, 8), plus, to);
  });
  EXPECT_EQ(rig.pool.use().peak_total - before, 3 * y.bytes());
}

TEST(shards, gradients_of_parts_are_counted_as_a_tree) {
  TestRig rig;
  for (const int parts : {1, 2, 8, 16}) {
    const Tensor a = Tensor::zero(rig.pool, {3, 4}, DType::kF32, MemoryKind::kGradients),
                 b = Tensor::zero(rig.pool, {5}, DType::kF32, MemoryKind::kGradients);
    GradientParts counter({a, b}, parts);
    for (int step = 0; step < 2; ++step) {
      std::vector<std::vector<float>> of_a(12), of_b(5);
      for (int part = 0; part < parts; ++part) {
        for (std::uint32_t row = 0; row < 3; ++row) {
          const auto seed = static_cast<std::uint32_t>(part) * 10 + row;
          add(random_tensor(rig.pool, {3, 4}, seed), a);
          add(random_tensor(rig.pool, {5}, seed), b);
        }
        const auto chain_a = values_of(a), chain_b = values_of(b);
        for (std::size_t i = 0; i < 12; ++i) of_a[i].push_back(chain_a[i]);
        for (std::size_t i = 0; i < 5; ++i) of_b[i].push_back(chain_b[i]);
        counter.close();
      }
      std::vector<float> expected_a, expected_b;
      for (const auto& x : of_a) expected_a.push_back(tree(x, 0, x.size()));
      for (const auto& x : of_b) expected_b.push_back(tree(x, 0, x.size()));
      // of_a holds chains that began at zero only if close() cleared the gradient
      expect_same_bits(values_of(a), expected_a, cat("a of ", parts));
      expect_same_bits(values_of(b), expected_b, cat("b of ", parts));
      a.fill_zero();
      b.fill_zero();
    }
  }
}

TEST(shards, gains_sum_positions_in_shards_and_collapse) {
  TestRig rig;
  LayerSetup setup = rig.setup();
  LayerNorm plain("n", 6, 1e-5, setup);
  LayerNorm sharded("n", 6, 1e-5,
                    {.tp = *rig.tp, .pool = rig.pool, .layout = {.virtual_shards = 4}});
  const Tensor x = random_tensor(rig.pool, {2, 7, 6}, 1),
               dy = random_tensor(rig.pool, {2, 7, 6}, 2),
               residual = random_tensor(rig.pool, {2, 7, 6}, 3);
  std::vector<Parameter*> of_plain, of_sharded;
  plain.collect(of_plain);
  sharded.collect(of_sharded);
  for (const auto& all : {of_plain, of_sharded}) {
    for (const Parameter* parameter : all) initialize(*parameter, 1);
  }
  LayerNorm::Saved saved, saved_sharded;
  (void)plain.forward(x, &saved);
  (void)sharded.forward(x, &saved_sharded);
  const Tensor dx = plain.backward(dy, copy_of(residual), saved);
  expect_same_bits(values_of(sharded.backward(dy, copy_of(residual), saved_sharded)), values_of(dx),
                   "dx");
  expect_same_bits(values_of(sharded.backward(dy, {}, saved_sharded)),
                   values_of(plain.backward(dy, {}, saved)), "dx without residual");
  for (Parameter* parameter : of_sharded) ASSERT_EQ(parameter->grad_shards.shape(), (Shape{4, 6}));
  // The bias: dy's rows of positions 0, 1-2, 3-4, 5-6 of both samples in turn, twice.
  const auto d = values_of(dy);
  std::vector<float> expected;
  for (std::size_t c = 0; c < 6; ++c) {
    std::vector<float> parts;
    for (const auto& [begin, end] : {std::pair{0, 1}, {1, 3}, {3, 5}, {5, 7}}) {
      float sum = 0;
      for (int pass = 0; pass < 2; ++pass) {
        for (int sample = 0; sample < 2; ++sample) {
          for (int s = begin; s < end; ++s)
            sum += d[static_cast<std::size_t>(sample * 7 + s) * 6 + c];
        }
      }
      parts.push_back(sum);
    }
    expected.push_back(tree(parts, 0, 4));
  }
  for (Parameter* parameter : of_sharded) collapse_gradient_shards(*parameter);
  expect_same_bits(values_of(of_sharded[1]->grad), expected, "bias");
  const auto near = values_of(of_plain[0]->grad);
  expect_near(values_of(of_sharded[0]->grad), {near.begin(), near.end()}, 1e-5, "gain");
  for (const float value : values_of(of_sharded[0]->grad_shards)) EXPECT_EQ(value, 0);
}

}  // namespace
}  // namespace mt
