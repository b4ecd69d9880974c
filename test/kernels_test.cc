// Operations element by element against float64: AdamW, GELU, sums, dropout, normal
// numbers, and the search for what is not finite.
#include "kernels_testing.h"

namespace mt {
namespace {

const std::size_t kCounts[] = {1, 15, 16, 17, 4099, 40009};

std::int64_t count_of(const Numbers& x) {
  return static_cast<std::int64_t>(x.size());
}

double gelu_exact(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST(Gelu, backward_matches_finite_differences) {
  for (const std::size_t count : kCounts) {
    const Numbers x = random_numbers(count, 1, 2.0F), dy = random_numbers(count, 2);
    const Numbers got = same_everywhere([&](const Kernels& kernels) {
      Numbers dx = dy;  // in place
      kernels.gelu_backward(DType::kF32, x.data(), dx.data(), dx.data(), count_of(x));
      return dx;
    });
    for (std::size_t i = 0; i < count; ++i) {
      const double h = 1e-5, at = x[i];
      const double want =
          static_cast<double>(dy[i]) * (gelu_exact(at + h) - gelu_exact(at - h)) / (2 * h);
      ASSERT_NEAR(got[i], want, 1e-6 * (1 + std::fabs(want)));
    }
  }
}

// y = x I through the product, so that its epilogue finishes x itself.
struct Epilogue {
  const Numbers& x;
  std::int64_t rows, cols;
  const float *bias = nullptr, *residual = nullptr;
  float* gelu = nullptr;

  [[nodiscard]] Numbers finish(const Kernels& kernels) const {
    Numbers one(static_cast<std::size_t>(cols * cols)), y(x.size());
    for (std::int64_t i = 0; i < cols; ++i) one[static_cast<std::size_t>(i * cols + i)] = 1;
    kernels.gemm(DType::kF32, {.m = rows,
                               .n = cols,
                               .k = cols,
                               .a = x.data(),
                               .lda = cols,
                               .b = one.data(),
                               .ldb = cols,
                               .b_transposed = true,
                               .c = y.data(),
                               .ldc = cols,
                               .bias = bias,
                               .residual = residual,
                               .gelu = gelu});
    return y;
  }
};

TEST(Gelu, forward_is_the_formula_with_the_bits_of_the_epilogue) {
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {7, 17}, {400, 50}}) {
    const Numbers x = random_numbers(static_cast<std::size_t>(rows * cols), 1, 2.0F);
    const Numbers got = same_everywhere([&](const Kernels& kernels) {
      Numbers y(x.size()), epilogue(x.size());
      kernels.gelu(DType::kF32, x.data(), y.data(), count_of(x));
      const Epilogue product{.x = x, .rows = rows, .cols = cols, .gelu = epilogue.data()};
      (void)product.finish(kernels);
      EXPECT_TRUE(same_bits(y, epilogue));
      return y;
    });
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(got[i], gelu_exact(x[i]), 1e-6);
  }
}

TEST(AddBias, has_the_bits_of_the_epilogue) {
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {7, 17}, {400, 50}}) {
    const auto n = static_cast<std::size_t>(rows * cols);
    const Numbers x = random_numbers(n, 1), residual = random_numbers(n, 2);
    const Numbers bias = random_numbers(static_cast<std::size_t>(cols), 3);
    for (const float* more : {static_cast<const float*>(nullptr), residual.data()}) {
      (void)same_everywhere([&](const Kernels& kernels) {
        Numbers y = x;
        kernels.add_bias(DType::kF32, bias.data(), more, y.data(), rows, cols);
        const Epilogue product{
            .x = x, .rows = rows, .cols = cols, .bias = bias.data(), .residual = more};
        EXPECT_TRUE(same_bits(y, product.finish(kernels)));
        return y;
      });
    }
  }
}

TEST(Add, adds) {
  for (const std::size_t count : kCounts) {
    const Numbers x = random_numbers(count, 1), y = random_numbers(count, 2);
    const Numbers got = same_everywhere([&](const Kernels& kernels) {
      Numbers out = y;
      kernels.add(DType::kF32, x.data(), out.data(), count_of(x));
      return out;
    });
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], x[i] + y[i]);
  }
}

TEST(Adam, follows_the_formula_for_ten_steps) {
  for (const std::size_t count : kCounts) {
    const double lr = 1e-2, beta1 = 0.9, beta2 = 0.98, epsilon = 1e-8, decay = 0.1, scale = 0.5;
    const Numbers start = random_numbers(count, 1);
    for (const bool decays : {true, false}) {
      const Numbers got = same_everywhere([&](const Kernels& kernels) {
        Numbers p = start, m(count), v(count), g;
        for (int t = 1; t <= 10; ++t) {
          g = random_numbers(count, static_cast<std::uint32_t>(100 + t));
          AdamScalars s;
          s.lr = static_cast<float>(lr);
          s.beta2 = static_cast<float>(beta2);
          s.epsilon = static_cast<float>(epsilon);
          s.weight_decay = static_cast<float>(decay);
          s.one_minus_beta1 = static_cast<float>(1 - beta1);
          s.one_minus_beta2 = static_cast<float>(1 - beta2);
          s.step_size = static_cast<float>(lr / (1 - std::pow(beta1, t)));
          s.inverse_sqrt_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, t)));
          s.gradient_scale = static_cast<float>(scale);
          const Numbers before = g;
          kernels.adam({.count = count_of(p),
                        .parameter = p.data(),
                        .exp_avg = m.data(),
                        .exp_avg_sq = v.data(),
                        .gradient = g.data(),
                        .decay = decays,
                        .zero_gradient = t % 2 == 0,
                        .scalars = &s});
          EXPECT_TRUE(same_bits(g, t % 2 == 0 ? Numbers(count) : before));
        }
        p.insert(p.end(), m.begin(), m.end());
        p.insert(p.end(), v.begin(), v.end());
        return p;
      });
      std::vector<double> p(start.begin(), start.end()), m(count), v(count);
      for (int t = 1; t <= 10; ++t) {
        const Numbers gradient = random_numbers(count, static_cast<std::uint32_t>(100 + t));
        for (std::size_t i = 0; i < count; ++i) {
          const double g = static_cast<double>(gradient[i]) * scale;
          if (decays) p[i] -= lr * decay * p[i];
          m[i] += (1 - beta1) * (g - m[i]);
          v[i] = beta2 * v[i] + (1 - beta2) * g * g;
          p[i] -= lr / (1 - std::pow(beta1, t)) * m[i] /
                  (std::sqrt(v[i]) / std::sqrt(1 - std::pow(beta2, t)) + epsilon);
        }
      }
      EXPECT_LT(largest_difference(Numbers(got.begin(), got.begin() + static_cast<long>(count)), p),
                3e-6);
    }
  }
}

TEST(FindNotFinite, names_the_first) {
  for (const std::size_t count : kCounts) {
    Numbers x = random_numbers(count, 1, 1e37F);
    auto find = [&] {
      return same_everywhere([&](const Kernels& kernels) {
        return Numbers{
            static_cast<float>(kernels.find_not_finite(DType::kF32, x.data(), count_of(x)))};
      })[0];
    };
    EXPECT_EQ(find(), -1.0F);
    x[count - 1] = -HUGE_VALF;
    EXPECT_EQ(find(), static_cast<float>(count - 1));
    x[count / 2] = NAN;
    EXPECT_EQ(find(), static_cast<float>(count / 2));
    x[count / 3] = HUGE_VALF;
    EXPECT_EQ(find(), static_cast<float>(count / 3));
  }
}

Dropout dropout_of(float probability, const std::vector<std::int64_t>& samples) {
  Dropout d;
  d.probability = probability;
  d.seed = 1234;
  d.layer = 5;
  d.site = 2;
  d.samples = samples.data();
  return d;
}

TEST(DropoutAdd, drops_what_the_numbers_say_in_any_micro_batch) {
  const std::vector<std::int64_t> samples = {3, 900000000001, 0};
  for (const std::int64_t cols : {1, 17, 67, 5003}) {
    const std::int64_t rows = 7, each = rows * cols;
    const Numbers x = random_numbers(static_cast<std::size_t>(3 * each), 1);
    const Numbers residual = random_numbers(static_cast<std::size_t>(3 * each), 2);
    for (const float probability : {0.0F, 0.1F, 0.5F, 0.999F}) {
      const Dropout dropout = dropout_of(probability, samples);
      const Numbers got = same_everywhere([&](const Kernels& kernels) {
        Numbers out = residual, alone(x.size());
        DropoutAdd d;
        d.batch = 3;
        d.rows = rows;
        d.cols = cols;
        d.x = x.data();
        d.residual = d.out = out.data();
        d.dropout = dropout;
        kernels.dropout_add(DType::kF32, d);
        d.residual = nullptr;
        d.batch = 1;
        for (int b = 0; b < 3; ++b) {
          d.x = x.data() + b * each;
          d.out = alone.data() + b * each;
          d.dropout.samples = samples.data() + b;
          kernels.dropout_add(DType::kF32, d);
        }
        for (std::size_t i = 0; i < out.size(); ++i) {
          EXPECT_EQ(out[i], alone[i] + residual[i]);
        }
        return alone;
      });
      std::size_t kept = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        const std::size_t b = i / static_cast<std::size_t>(each);
        const double factor =
            dropout_factor(dropout, samples[b], i % static_cast<std::size_t>(each));
        kept += factor != 0;
        ASSERT_NEAR(got[i], factor * static_cast<double>(x[i]), 1e-6 * std::fabs(factor * 4));
      }
      const double expected = 1 - static_cast<double>(probability);
      const double n = static_cast<double>(got.size());
      EXPECT_NEAR(static_cast<double>(kept) / n, expected,
                  5 * std::sqrt(expected * (1 - expected) / n));
      if (probability == 0) {
        EXPECT_TRUE(same_bits(got, x));
      }
    }
  }
}

TEST(DropoutAdd, rows_of_a_slice_draw_what_they_draw_in_the_whole) {
  const std::vector<std::int64_t> samples = {77};
  const Dropout dropout = dropout_of(0.3F, samples);
  for (const std::int64_t cols : {1, 2, 17, 64, 5003}) {  // a slice begins at any of 4 numbers
    const std::int64_t rows = 9;
    const Numbers x = random_numbers(static_cast<std::size_t>(rows * cols), 1);
    (void)same_everywhere([&](const Kernels& kernels) {
      Numbers whole(x.size()), slices(x.size());
      kernels.dropout_add(DType::kF32, {.batch = 1,
                                        .rows = rows,
                                        .cols = cols,
                                        .x = x.data(),
                                        .out = whole.data(),
                                        .dropout = dropout});
      for (const auto& [begin, end] :
           {std::pair<std::int64_t, std::int64_t>{0, 1}, {1, 3}, {3, 6}, {6, 9}}) {
        Dropout slice = dropout;
        slice.first_row = begin;
        kernels.dropout_add(DType::kF32, {.batch = 1,
                                          .rows = end - begin,
                                          .cols = cols,
                                          .x = x.data() + begin * cols,
                                          .out = slices.data() + begin * cols,
                                          .dropout = slice});
      }
      EXPECT_TRUE(same_bits(whole, slices)) << cols;
      return slices;
    });
  }
}

Numbers normal_box(const Kernels& kernels, std::int64_t global_cols, std::int64_t row,
                   std::int64_t col, std::int64_t rows, std::int64_t cols) {
  Numbers out(static_cast<std::size_t>(rows * cols), -9.0F);
  kernels.normal_fill({.global_cols = global_cols,
                       .row_offset = row,
                       .col_offset = col,
                       .rows = rows,
                       .cols = cols,
                       .seed = 42,
                       .tensor = 0x123456789ABCULL,
                       .std = 0.02F,
                       .out = out.data()});
  return out;
}

TEST(NormalFill, a_box_is_a_slice_of_the_whole) {
  const std::int64_t rows = 37, cols = 131;
  const Numbers whole = same_everywhere(
      [&](const Kernels& kernels) { return normal_box(kernels, cols, 0, 0, rows, cols); });
  for (const std::int64_t row : {0, 5}) {
    for (const std::int64_t col : {0, 1, 66}) {
      const Numbers box = same_everywhere([&](const Kernels& kernels) {
        return normal_box(kernels, cols, row, col, rows - row - 1, cols - col);
      });
      for (std::int64_t r = 0; r < rows - row - 1; ++r) {
        for (std::int64_t c = 0; c < cols - col; ++c) {
          EXPECT_EQ(box[static_cast<std::size_t>(r * (cols - col) + c)],
                    whole[static_cast<std::size_t>((row + r) * cols + col + c)]);
        }
      }
    }
  }
}

TEST(NormalFill, is_the_pairs_of_box_and_muller) {
  const Numbers got = same_everywhere(
      [&](const Kernels& kernels) { return normal_box(kernels, 1, 3, 0, 1000, 1); });
  for (std::uint64_t i = 0; i < got.size(); ++i) {
    const std::uint64_t g = i + 3;
    const PhiloxBlock block = philox4x32_10(philox_counter(0x123456789ABCULL, 0, 0, g / 4), 42,
                                            static_cast<std::uint32_t>(RandomStream::kInit));
    const std::size_t pair = g % 4 / 2 * 2;
    const double radius = std::sqrt(-2 * std::log((block[pair] + 0.5) / 4294967296.0));
    const double angle = 2 * M_PI * block[pair + 1] / 4294967296.0;
    EXPECT_NEAR(got[i], 0.02 * radius * (g % 2 == 0 ? std::cos(angle) : std::sin(angle)), 2e-7);
  }
}

TEST(NormalFill, has_the_moments_of_a_normal_distribution) {
  const Numbers x = normal_box(*kernel_sets().back(), 1000, 0, 0, 1000, 1000);
  double moments[5] = {};
  for (const float value : x) {
    const double z = static_cast<double>(value) / 0.02;
    for (int k = 1; k <= 4; ++k) moments[k] += std::pow(z, k) / 1e6;
  }
  EXPECT_NEAR(moments[1], 0, 5e-3);  // five standard deviations of each mean
  EXPECT_NEAR(moments[2], 1, 7.1e-3);
  EXPECT_NEAR(moments[3], 0, 2e-2);
  EXPECT_NEAR(moments[4], 3, 5e-2);
}

TEST(Kernels, all_sets_run_here) {
  if (kernel_sets().size() < 3) {
    GTEST_SKIP() << "this processor lacks avx512 or avx2: that set's kernels were not run";
  }
}

TEST(Kernels, refuse_a_type_that_they_do_not_have) {
  Numbers x(16), y(16);
  for (const Kernels* kernels : kernel_sets()) {
    EXPECT_THROW(kernels->add(DType::kI32, x.data(), y.data(), 16), UsageError);
    SquareLimbs sum;
    EXPECT_THROW(kernels->sum_squares(DType::kU8, x.data(), 16, sum), UsageError);
    EXPECT_THROW(kernels->attention_forward(DType::kU16, {}), UsageError);
  }
}

}  // namespace
}  // namespace mt
