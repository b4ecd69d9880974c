// Self-attention: against plain loops in double, finite differences, and decoding with a cache.
#include "nn/attention.h"

#include <gtest/gtest.h>

#include <array>

#include <algorithm>
#include <cmath>

#include "tensor/ops.h"
#include "testing.h"

namespace mt {
namespace {

struct Sizes {
  std::int64_t batch, sequence, heads, head_size;
};
constexpr Sizes kSizes[] = {
    {1, 1, 1, 1}, {2, 5, 3, 7}, {1, 17, 2, 16}, {1, 67, 1, 5}, {2, 33, 5, 6}};

class Layer {
 public:
  Layer(TestRig& rig, const Sizes& sizes, double dropout)
      : hidden(sizes.heads * sizes.head_size),
        attention("attention",
                  {.hidden = hidden,
                   .heads = sizes.heads,
                   .layer = 2,
                   .dropout = dropout,
                   .output_std = 0.2},
                  rig.setup()) {
    attention.collect(parameters);
    randomise(parameters, 10);
  }
  std::int64_t hidden;
  SelfAttention attention;
  std::vector<Parameter*> parameters;
};

// Attention of one query row in double; q, k, v start at the head.
void attend(const float* q, const float* kv, std::int64_t first, std::int64_t last,
            std::int64_t stride, const Sizes& sizes, double* out) {
  const std::int64_t hidden = sizes.heads * sizes.head_size;
  std::vector<double> weight;
  double total = 0;
  for (std::int64_t key = first; key <= last; ++key) {
    double score = 0;
    for (std::int64_t d = 0; d < sizes.head_size; ++d) {
      score += static_cast<double>(q[d]) * kv[key * stride + hidden + d];
    }
    weight.push_back(std::exp(score / std::sqrt(static_cast<double>(sizes.head_size))));
    total += weight.back();
  }
  for (std::int64_t d = 0; d < sizes.head_size; ++d) {
    out[d] = 0;
    for (std::int64_t key = first; key <= last; ++key) {
      out[d] +=
          weight[static_cast<std::size_t>(key - first)] / total * kv[key * stride + 2 * hidden + d];
    }
  }
}

TEST(attention, operation_matches_loops_in_double_with_and_without_documents) {
  TestRig rig;
  for (const Sizes& sizes : kSizes) {
    for (const bool documents : {false, true}) {
      SCOPED_TRACE(cat(sizes.sequence, " ", sizes.heads, " ", sizes.head_size, " ", documents));
      const std::int64_t hidden = sizes.heads * sizes.head_size, s = sizes.sequence;
      const Tensor qkv = random_tensor(rig.pool, {sizes.batch, s, 3 * hidden}, 1, 2.0F);
      std::vector<std::int32_t> first(static_cast<std::size_t>(sizes.batch * s), 0);
      for (std::int64_t i = 0; documents && i < sizes.batch * s; ++i) {
        first[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i % s / 3 * 3);
      }
      const Tensor first_key =
          upload(rig.pool, first.data(), {sizes.batch, s}, DType::kI32, MemoryKind::kWorkspace);
      const Tensor out(rig.pool, {sizes.batch, s, hidden}, DType::kF32, MemoryKind::kWorkspace);
      attention({.q = qkv,
                 .kv = qkv,
                 .k_column = hidden,
                 .v_column = 2 * hidden,
                 .keys = s,
                 .heads = sizes.heads,
                 .head_size = sizes.head_size,
                 .first_key = documents ? first_key : Tensor()},
                out, {});
      std::vector<double> expected(static_cast<std::size_t>(out.size()));
      const auto values = values_of(qkv);
      for (std::int64_t row = 0; row < sizes.batch * s; ++row) {
        for (std::int64_t head = 0; head < sizes.heads; ++head) {
          const float* sample = values.data() + row / s * s * 3 * hidden + head * sizes.head_size;
          attend(sample + row % s * 3 * hidden, sample, first[static_cast<std::size_t>(row)],
                 row % s, 3 * hidden, sizes,
                 expected.data() + row * hidden + head * sizes.head_size);
        }
      }
      expect_near(values_of(out), expected, 5e-6, "attention");
    }
  }
}

TEST(attention, gradients_match_finite_differences) {
  TestRig rig;
  for (const Sizes& sizes : kSizes) {
    for (const double dropout : {0.0, 0.3}) {
      SCOPED_TRACE(cat(sizes.sequence, " ", sizes.heads, " ", sizes.head_size, " ", dropout));
      Layer layer(rig, sizes, dropout);
      const Shape shape{sizes.batch, sizes.sequence, layer.hidden};
      const Tensor x = random_tensor(rig.pool, shape, 1),
                   residual = random_tensor(rig.pool, shape, 2);
      const Tensor dy = random_tensor(rig.pool, shape, 3);
      const std::int64_t numbers[] = {7, 1'000'000'000'000};
      MicroBatch micro;
      micro.dropout_seed = 9;
      micro.samples =
          upload(rig.pool, numbers, {sizes.batch, 8}, DType::kU8, MemoryKind::kWorkspace);
      SelfAttention::Saved saved;
      (void)layer.attention.forward(x, residual, micro, &saved);
      const Tensor dx = layer.attention.backward(dy, micro, saved);
      const auto loss = [&] {
        return weighted_sum(layer.attention.forward(x, residual, micro, nullptr), dy);
      };
      EXPECT_LT(gradient_error(x, dx, loss, 30), kGradientTolerance);
      for (const Parameter* parameter : layer.parameters) {
        // The key bias has gradient zero where nothing is dropped: it is the middle third here.
        EXPECT_LT(gradient_error(parameter->value, parameter->grad, loss, 30), kGradientTolerance)
            << parameter->segments.front().name;
      }
    }
  }
}

// Two sequences in slots 3 and 1 of a cache of four, at lengths of their own.
TEST(attention, decoding_with_a_cache_gives_the_bits_of_the_whole) {
  for (const char* set : {"baseline", ""}) {
    for (const int threads : {1, 3}) {
      TestRig rig(set, threads);
      const Sizes sizes{2, 70, 3, 10};
      Layer layer(rig, sizes, 0.0);
      const Tensor x = random_tensor(rig.pool, {2, 70, 30}, 1);
      const Tensor whole = layer.attention.forward(x, x, {}, nullptr);
      const Tensor cache = layer.attention.make_cache(rig.pool, 4, 71);
      const std::array<std::int64_t, 2> slots{3, 1};
      std::array<std::int64_t, 2> held{0, 0};
      // (which, how many): one of them alone, or both together.
      for (const auto& [which, step] :
           std::vector<std::pair<std::vector<int>, std::int64_t>>{{{1}, 7},
                                                                  {{0, 1}, 1},
                                                                  {{1, 0}, 20},
                                                                  {{0}, 29},
                                                                  {{0, 1}, 19},
                                                                  {{1, 0}, 1},
                                                                  {{1}, 22}}) {
        const auto rows = static_cast<std::int64_t>(which.size());
        const Tensor part(rig.pool, {rows, step, 30}, DType::kF32, MemoryKind::kWorkspace);
        CachePlaces places;
        const auto rows_at = [&](const Tensor& t, std::int64_t sample, std::int64_t begin) {
          const Tensor flat = t.view({t.dim(0) * t.dim(1), 30});
          return flat.rows(sample * t.dim(1) + begin, sample * t.dim(1) + begin + step);
        };
        for (std::int64_t i = 0; i < rows; ++i) {
          const auto sample = static_cast<std::size_t>(which[static_cast<std::size_t>(i)]);
          places.slots.push_back(slots.at(sample));
          places.starts.push_back(held.at(sample));
          copy(rows_at(x, which[static_cast<std::size_t>(i)], held.at(sample)),
               rows_at(part, i, 0));
        }
        const Tensor y = layer.attention.forward_cached(part, part, cache, places);
        for (std::int64_t i = 0; i < rows; ++i) {
          const auto sample = static_cast<std::size_t>(which[static_cast<std::size_t>(i)]);
          expect_same_bits(
              values_of(rows_at(y, i, 0)),
              values_of(rows_at(whole, which[static_cast<std::size_t>(i)], held.at(sample))),
              cat("sample ", sample, ", positions from ", held.at(sample)));
          held.at(sample) += step;
        }
      }
      EXPECT_EQ(held[0], 70);
      EXPECT_EQ(held[1], 70);
    }
  }
}

TEST(attention, heads_of_ranks_add_up) {
  TestRig rig;
  const Sizes sizes{1, 9, 4, 3};
  Layer layer(rig, sizes, 0.25);
  const Tensor x = random_tensor(rig.pool, {1, 9, 12}, 1);
  const std::int64_t number = 3;
  MicroBatch micro;
  micro.samples = upload(rig.pool, &number, {1, 8}, DType::kU8, MemoryKind::kWorkspace);
  const auto whole = values_of(layer.attention.forward(x, x, micro, nullptr));
  std::vector<double> sum(whole.size(), 0.0);
  for (int rank = 0; rank < 2; ++rank) {
    const LonelyRank tp(rank, 2);
    SelfAttention part("attention", {.hidden = 12, .heads = 4, .layer = 2, .dropout = 0.25},
                       {.tp = tp, .pool = rig.pool});
    std::vector<Parameter*> parameters;
    part.collect(parameters);
    copy_boxes(layer.parameters, parameters);
    const auto y = values_of(part.forward(x, x, micro, nullptr));
    for (std::size_t i = 0; i < y.size(); ++i) sum[i] += y[i];
  }
  // dropout masks hang on global heads, so the parts drop what the whole drops
  expect_near(whole, sum, 1e-5, "sum over ranks");
}

TEST(attention, refuses_heads_that_do_not_divide) {
  TestRig rig;
  EXPECT_THROW(SelfAttention("a", {.hidden = 10, .heads = 3}, rig.setup()), UsageError);
  const LonelyRank tp(0, 2);
  EXPECT_THROW(SelfAttention("a", {.hidden = 12, .heads = 3}, {.tp = tp, .pool = rig.pool}),
               UsageError);
}

}  // namespace
}  // namespace mt
