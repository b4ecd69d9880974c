// Weights of 16 bits: every kernel that takes them, and a whole model, give the bits that the same
// numbers give as f32, with every kernel set and number of threads.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/small_floats.h"
#include "ckpt/checkpoint.h"
#include "ckpt/parameters.h"
#include "kernels_testing.h"
#include "shared_data.h"
#include "small_gpt.h"
#include "tensor/ops.h"

namespace mt {
namespace {

using Halves = std::vector<std::uint16_t>;

Halves rounded(const Numbers& x) {
  Halves y(x.size());
  convert_floats(x.data(), DType::kF32, y.data(), DType::kBf16, x.size());
  return y;
}
Numbers widened(const Halves& x) {
  Numbers y(x.size());
  convert_floats(x.data(), DType::kBf16, y.data(), DType::kF32, x.size());
  return y;
}

struct Shape3 {
  std::int64_t m, n, k, gap;
};

// One past a vector, a panel, a line of memory and a block of the contraction; few rows and many.
constexpr Shape3 kShapes[] = {
    {1, 1, 1, 0},     {1, 16, 16, 0},  {1, 33, 31, 3},   {1, 259, 770, 0}, {2, 17, 129, 0},
    {3, 48, 47, 5},   {4, 64, 385, 1}, {5, 31, 128, 0},  {6, 18, 300, 2},  {7, 40, 15, 0},
    {8, 131, 257, 0}, {12, 32, 64, 7}, {13, 50, 99, 0},  {16, 67, 400, 1}, {17, 33, 48, 0},
    {29, 70, 800, 3}, {64, 19, 33, 0}, {1, 50, 2061, 3}, {6, 33, 2311, 0}, {11, 19, 2307, 1}};

Numbers product(const Kernels& kernels, const Shape3& s, const void* b, DType type, bool more) {
  const Numbers a = random_numbers(static_cast<std::size_t>(s.m * (s.k + s.gap)), 1);
  const Numbers bias = random_numbers(static_cast<std::size_t>(s.n), 2);
  Numbers c = random_numbers(static_cast<std::size_t>(s.m * s.n), 3), gelu(c.size());
  const Numbers residual = c;
  Gemm g{.m = s.m,
         .n = s.n,
         .k = s.k,
         .a = a.data(),
         .lda = s.k + s.gap,
         .b = b,
         .b_type = type,
         .ldb = s.k + s.gap,
         .b_transposed = true,
         .c = c.data(),
         .ldc = s.n};
  if (more) {
    g.bias = bias.data();
    g.residual = residual.data();
    g.gelu = gelu.data();
  } else {
    g.output = Output::kAdd;
  }
  kernels.gemm(DType::kF32, g);
  c.insert(c.end(), gelu.begin(), gelu.end());
  return c;
}

TEST(Bf16, products_have_the_bits_of_the_widened_weight) {
  for (const Shape3& s : kShapes) {
    SCOPED_TRACE(cat(s.m, " x ", s.n, " x ", s.k));
    // Exactly as long as is read, so that a sanitizer sees an access beyond.
    const Halves b =
        rounded(random_numbers(static_cast<std::size_t>(s.n * (s.k + s.gap) - s.gap), 7));
    const Numbers wide = widened(b);
    for (const bool more : {false, true}) {
      const Numbers expected = product(cpu_kernels("baseline"), s, wide.data(), DType::kF32, more);
      const Numbers got = same_everywhere([&](const Kernels& kernels) {
        return product(kernels, s, b.data(), DType::kBf16, more);
      });
      EXPECT_TRUE(same_bits(got, expected));
    }
  }
}

TEST(Bf16, a_weight_that_is_not_transposed_is_refused) {
  const Halves b(4);
  float x[4] = {};
  Gemm g{.m = 2,
         .n = 2,
         .k = 2,
         .a = x,
         .lda = 2,
         .b = b.data(),
         .b_type = DType::kBf16,
         .ldb = 2,
         .c = x,
         .ldc = 2};
  EXPECT_THROW(cpu_kernels("").gemm(DType::kF32, g), UsageError);
  g.b_transposed = true;
  g.b_type = DType::kF16;
  EXPECT_THROW(cpu_kernels("").gemm(DType::kF32, g), UsageError);
}

TEST(Bf16, embedding_has_the_bits_of_the_widened_tables) {
  for (const std::int64_t cols : {1, 15, 16, 33, 100}) {
    const Halves words = rounded(random_numbers(static_cast<std::size_t>(9 * cols), 1));
    const Halves positions = rounded(random_numbers(static_cast<std::size_t>(4 * cols), 2));
    const Numbers wide_words = widened(words), wide_positions = widened(positions);
    const std::vector<std::int32_t> tokens{5, 13, 6, 4, 14, 9}, ids{0, 1, 2, 3, 0, 1};
    const auto run = [&](const Kernels& kernels, DType type, const void* w, const void* p) {
      Numbers out(tokens.size() * static_cast<std::size_t>(cols));
      kernels.embedding_forward(DType::kF32, {.count = static_cast<std::int64_t>(tokens.size()),
                                              .cols = cols,
                                              .first = 5,
                                              .rows = 9,
                                              .tokens = tokens.data(),
                                              .position_ids = ids.data(),
                                              .table_type = type,
                                              .words = w,
                                              .positions = p,
                                              .out = out.data()});
      return out;
    };
    for (const bool both : {false, true}) {
      const Numbers expected = run(cpu_kernels("baseline"), DType::kF32, wide_words.data(),
                                   both ? wide_positions.data() : nullptr);
      EXPECT_TRUE(same_bits(expected, same_everywhere([&](const Kernels& kernels) {
                              return run(kernels, DType::kBf16, words.data(),
                                         both ? positions.data() : nullptr);
                            })))
          << cols;
    }
  }
}

// Models of one configuration: weights as stored, rounded by hand, and of 16 bits.
struct Models {
  testing::SmallGpt wide;
  testing::SmallGpt by_hand;
  GptStage half{wide.config,     {.first_layer = 0, .last_layer = 2},
                *wide.world,     wide.pool,
                Use::kInference, DType::kBf16};

  Models() {
    // Biases and gains that rounding changes.
    float next = 0.1F;
    for (testing::SmallGpt* model : {&wide, &by_hand}) {
      next = 0.1F;
      for (Parameter* p : model->stage.parameters()) {
        if (p->value.shape().size() > 1) continue;
        for (std::int64_t i = 0; i < p->value.size(); ++i)
          p->value.as<float>()[i] += (next *= 1.01F);
      }
    }
    for (Parameter* p : by_hand.stage.parameters()) {
      float* const x = p->value.as<float>();
      for (std::int64_t i = 0; i < p->value.size(); ++i) x[i] = from_bf16(to_bf16(x[i]));
    }
  }
};

Numbers results(GptStage& stage) {
  const std::vector<std::int32_t> tokens{1, 5, 30, 7, 7, 2, 0, 9, 11, 4};
  const std::vector<std::int32_t> labels{5, 30, 7, 7, 2, 0, 9, 11, 4, 3};
  Numbers out(tokens.size());
  const GptInput input{.batch = 2, .sequence = 5, .tokens = tokens.data(), .labels = labels.data()};
  stage.token_nll(input, out.data());
  const Tensor logits = stage.all_logits(input);
  out.insert(out.end(), logits.as<float>(), logits.as<float>() + logits.size());
  const auto cache = stage.make_cache(2, 8);
  for (const std::int64_t length : {3, 1, 1}) {
    const Tensor next =
        stage.next_logits({.batch = 2, .sequence = length, .tokens = tokens.data()}, *cache);
    out.insert(out.end(), next.as<float>(), next.as<float>() + next.size());
  }
  return out;
}

void save(const std::string& path, GptStage& stage, DType type) {
  const auto world = make_single_communicator();
  std::vector<std::vector<std::byte>> keep;
  CheckpointContent content;
  content.model = stage.config().to_json();
  for (Box box : parameter_boxes(stage.parameters())) {
    const auto count = static_cast<std::size_t>(element_count(box.extent));
    auto& bytes = keep.emplace_back(count * dtype_size(type));
    convert_floats(box.data, box.dtype, bytes.data(), type, count);
    box.dtype = type;
    box.data = bytes.data();
    content.weights.push_back(box);
  }
  save_checkpoint(path, content, *world, false);
}

TEST(Bf16, a_model_of_16_bits_is_the_f32_model_of_the_rounded_weights) {
  const testing::Scratch scratch;
  Models models;
  save(scratch / "f32", models.wide.stage, DType::kF32);
  load_parameters(CheckpointReader(scratch / "f32"), models.half.parameters(), true);
  EXPECT_EQ(models.half.parameters().front()->value.dtype(), DType::kBf16);
  const Numbers expected = results(models.by_hand.stage);
  EXPECT_TRUE(same_bits(results(models.half), expected));
  EXPECT_FALSE(same_bits(results(models.wide.stage), expected));
}

TEST(Bf16, initial_weights_are_the_rounded_ones) {
  testing::SmallGpt by_hand;
  GptStage half(by_hand.config, {.first_layer = 0, .last_layer = 2}, *by_hand.world, by_hand.pool,
                Use::kInference, DType::kBf16);
  half.initialize(3);
  for (Parameter* p : by_hand.stage.parameters()) {
    for (std::int64_t i = 0; i < p->value.size(); ++i) {
      p->value.as<float>()[i] = from_bf16(to_bf16(p->value.as<float>()[i]));
    }
  }
  EXPECT_TRUE(same_bits(results(half), results(by_hand.stage)));
}

TEST(Bf16, any_floating_type_is_loaded_into_any) {
  const testing::Scratch scratch;
  Models models;
  save(scratch / "bf16", models.wide.stage, DType::kBf16);
  save(scratch / "f16", models.wide.stage, DType::kF16);
  const Numbers expected = results(models.by_hand.stage);
  load_parameters(CheckpointReader(scratch / "bf16"), models.half.parameters(), true);
  EXPECT_TRUE(same_bits(results(models.half), expected));
  load_parameters(CheckpointReader(scratch / "bf16"), models.wide.stage.parameters(), true);
  EXPECT_TRUE(same_bits(results(models.wide.stage), expected));
  // f16 has three more bits than bf16: rounding twice differs, and widening keeps them.
  load_parameters(CheckpointReader(scratch / "f16"), models.wide.stage.parameters(), true);
  EXPECT_FALSE(same_bits(results(models.wide.stage), expected));
  load_parameters(CheckpointReader(scratch / "f16"), models.half.parameters(), true);
  for (std::size_t i = 0; i < models.half.parameters().size(); ++i) {
    const Parameter& a = *models.half.parameters()[i];
    const Parameter& b = *models.wide.stage.parameters()[i];
    for (std::int64_t j = 0; j < a.value.size(); ++j) {
      const float x = from_bf16(to_bf16(b.value.as<float>()[j]));
      ASSERT_EQ(a.value.dtype() == DType::kBf16 ? from_bf16(a.value.as<std::uint16_t>()[j])
                                                : a.value.as<float>()[j],
                x);
    }
  }
}

}  // namespace
}  // namespace mt
