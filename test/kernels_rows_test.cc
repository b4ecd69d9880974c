// Operations over rows against float64: layer normalisation, cross entropy, embedding, sums over
// rows, the largest of a row. Gradients against finite differences; gradients that add give the
// same bits in one micro-batch or several.
#include "kernels_testing.h"

namespace mt {
namespace {

const std::int64_t kCols[] = {1, 2, 15, 16, 17, 31, 67, 257};

std::size_t size(std::int64_t a, std::int64_t b) {
  return static_cast<std::size_t>(a * b);
}

double norm_loss(const Numbers& gain, const Numbers& bias, const Numbers& dy, std::int64_t cols,
                 const std::vector<double>& x, std::int64_t row) {
  double mean = 0, variance = 0, loss = 0;
  for (std::int64_t i = 0; i < cols; ++i) mean += x[size(1, i)] / static_cast<double>(cols);
  for (std::int64_t i = 0; i < cols; ++i) {
    variance += (x[size(1, i)] - mean) * (x[size(1, i)] - mean) / static_cast<double>(cols);
  }
  for (std::int64_t i = 0; i < cols; ++i) {
    const double y = (x[size(1, i)] - mean) / std::sqrt(variance + 1e-5) *
                         static_cast<double>(gain[size(1, i)]) +
                     static_cast<double>(bias[size(1, i)]);
    loss += y * static_cast<double>(dy[size(row, cols) + size(1, i)]);
  }
  return loss;
}

TEST(LayerNorm, forward_matches_float64) {
  for (const std::int64_t cols : kCols) {
    for (const std::int64_t rows : {1, 3, 131}) {
      Numbers x = random_numbers(size(rows, cols), 1, 2.0F);
      for (float& value : x) value += 5;  // variance must not cancel
      const Numbers gain = random_numbers(size(1, cols), 2),
                    bias = random_numbers(size(1, cols), 3);
      const Numbers all = same_everywhere([&](const Kernels& kernels) {
        Numbers y(size(rows, cols + 2));
        kernels.layernorm_forward(DType::kF32, {.rows = rows,
                                                .cols = cols,
                                                .epsilon = 1e-5F,
                                                .x = x.data(),
                                                .gain = gain.data(),
                                                .bias = bias.data(),
                                                .y = y.data(),
                                                .mean = y.data() + rows * cols,
                                                .rstd = y.data() + rows * (cols + 1)});
        return y;
      });
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::vector<double> row(x.begin() + r * cols, x.begin() + (r + 1) * cols);
        for (std::int64_t i = 0; i < cols; ++i) {
          Numbers pick(size(1, cols));
          pick[size(1, i)] = 1;
          const double want = norm_loss(gain, bias, pick, cols, row, 0);
          // With one or two columns epsilon is all that the rounding of the mean is divided by.
          EXPECT_NEAR(all[size(r, cols) + size(1, i)], want, cols < 3 ? 3e-4 : 2e-5);
        }
      }
    }
  }
}

TEST(LayerNorm, backward_matches_finite_differences_and_adds) {
  for (const std::int64_t cols : {3, 16, 17, 67}) {
    for (const std::int64_t rows : {1, 5}) {
      const Numbers x = random_numbers(size(rows, cols), 1),
                    dy = random_numbers(size(rows, cols), 4);
      const Numbers gain = random_numbers(size(1, cols), 2),
                    bias = random_numbers(size(1, cols), 3);
      const Numbers residual = random_numbers(size(rows, cols), 5);
      const Numbers all = same_everywhere([&](const Kernels& kernels) {
        Numbers y(x.size()), mean(size(1, rows)), rstd(size(1, rows));
        kernels.layernorm_forward(DType::kF32, {.rows = rows,
                                                .cols = cols,
                                                .epsilon = 1e-5F,
                                                .x = x.data(),
                                                .gain = gain.data(),
                                                .bias = bias.data(),
                                                .y = y.data(),
                                                .mean = mean.data(),
                                                .rstd = rstd.data()});
        Numbers out = residual;  // dx may be the residual; then dgain and dbias, which start at 1
        out.resize(size(rows + 2, cols), 1.0F);
        kernels.layernorm_backward(DType::kF32, {.rows = rows,
                                                 .cols = cols,
                                                 .x = x.data(),
                                                 .gain = gain.data(),
                                                 .dy = dy.data(),
                                                 .residual = out.data(),
                                                 .mean = mean.data(),
                                                 .rstd = rstd.data(),
                                                 .dx = out.data(),
                                                 .dgain = out.data() + rows * cols,
                                                 .dbias = out.data() + (rows + 1) * cols});
        return out;
      });
      std::vector<double> dgain(size(1, cols), 1), dbias(size(1, cols), 1);
      const double h = 1e-5;
      for (std::int64_t r = 0; r < rows; ++r) {
        std::vector<double> row(x.begin() + r * cols, x.begin() + (r + 1) * cols);
        for (std::int64_t i = 0; i < cols; ++i) {
          const double before = row[size(1, i)];
          row[size(1, i)] = before + h;
          const double above = norm_loss(gain, bias, dy, cols, row, r);
          row[size(1, i)] = before - h;
          const double below = norm_loss(gain, bias, dy, cols, row, r);
          row[size(1, i)] = before;
          EXPECT_NEAR(all[size(r, cols) + size(1, i)] - residual[size(r, cols) + size(1, i)],
                      (above - below) / (2 * h), 2e-5);
          Numbers one(size(1, cols)), none(size(1, cols)), pick(size(1, cols));
          one[size(1, i)] = 1;
          pick[size(1, i)] = dy[size(r, cols) + size(1, i)];
          dgain[size(1, i)] += norm_loss(one, none, pick, cols, row, 0);
          dbias[size(1, i)] += static_cast<double>(pick[size(1, i)]);
        }
      }
      const Numbers tail(all.begin() + rows * cols, all.end());
      EXPECT_LT(largest_difference(Numbers(tail.begin(), tail.begin() + cols), dgain), 5e-6);
      EXPECT_LT(largest_difference(Numbers(tail.begin() + cols, tail.end()), dbias), 5e-6);
    }
  }
}

TEST(LayerNorm, several_micro_batches_give_the_gradients_of_one) {
  const std::int64_t rows = 4099, cols = 131, cut = 1000;  // beyond one group of rows
  const Numbers x = random_numbers(size(rows, cols), 1), dy = random_numbers(size(rows, cols), 4);
  const Numbers gain = random_numbers(size(1, cols), 2), mean(size(1, rows), 0.1F);
  const Numbers rstd(size(1, rows), 0.9F);
  const Numbers whole = same_everywhere([&](const Kernels& kernels) {
    auto run = [&](std::int64_t begin, std::int64_t end, Numbers& gradients) {
      Numbers dx(size(end - begin, cols));
      kernels.layernorm_backward(DType::kF32, {.rows = end - begin,
                                               .cols = cols,
                                               .x = x.data() + begin * cols,
                                               .gain = gain.data(),
                                               .dy = dy.data() + begin * cols,
                                               .mean = mean.data() + begin,
                                               .rstd = rstd.data() + begin,
                                               .dx = dx.data(),
                                               .dgain = gradients.data(),
                                               .dbias = gradients.data() + cols});
    };
    Numbers once(size(2, cols)), twice(size(2, cols));
    run(0, rows, once);
    run(0, cut, twice);
    run(cut, rows, twice);
    EXPECT_TRUE(same_bits(once, twice)) << kernels.name;
    return once;
  });
}

TEST(SumRows, is_a_chain_over_rows_that_starts_at_the_present_value) {
  for (const std::int64_t cols : {1, 17, 128, 131, 300}) {
    const std::int64_t rows = 151;
    const Numbers x = random_numbers(size(rows, cols), 1);
    Numbers want = random_numbers(size(1, cols), 2);
    const Numbers start = want;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < cols; ++i) want[size(1, i)] += x[size(r, cols) + size(1, i)];
    }
    const Numbers got = same_everywhere([&](const Kernels& kernels) {
      Numbers out = start;
      kernels.sum_rows(DType::kF32, x.data(), out.data(), rows, cols);
      return out;
    });
    EXPECT_TRUE(same_bits(got, want));
  }
}

// exp of logits kept, loss parts and gradient, cut at `first`: columns before it belong to a
// neighbour.
TEST(CrossEntropy, matches_float64_and_its_gradient) {
  for (const std::int64_t cols : {1, 2, 17, 263, 50257}) {
    const std::int64_t rows = cols > 1000 ? 3 : 29, ld = cols + 3, first = 40;
    const Numbers logits = random_numbers(size(rows, ld), 1, 3.0F);
    std::vector<std::int32_t> labels;
    Numbers weight;
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t elsewhere = r % 2 == 0 ? first - 1 : first + cols;
      labels.push_back(static_cast<std::int32_t>(r % 5 == 3 ? elsewhere : first + (r * 7) % cols));
      weight.push_back(r % 4 == 1 ? 0.0F : 0.01F * static_cast<float>(r + 1));
    }
    const Numbers all = same_everywhere([&](const Kernels& kernels) {
      Numbers out = logits;
      Numbers max(size(1, rows)), sum(size(1, rows)), target(size(1, rows)), again(size(1, rows));
      kernels.cross_entropy_max(
          DType::kF32,
          {.rows = rows, .cols = cols, .ld = ld, .logits = out.data(), .max = max.data()});
      CrossEntropySum step{.rows = rows,
                           .cols = cols,
                           .ld = ld,
                           .first = first,
                           .logits = out.data(),
                           .keep_exp = false,
                           .labels = labels.data(),
                           .max = max.data(),
                           .sum = again.data(),
                           .target = target.data()};
      kernels.cross_entropy_sum(DType::kF32, step);
      EXPECT_TRUE(same_bits(out, logits)) << "only keep_exp may write";
      step.keep_exp = true;
      step.sum = sum.data();
      kernels.cross_entropy_sum(DType::kF32, step);
      EXPECT_TRUE(same_bits(sum, again));
      kernels.cross_entropy_grad(DType::kF32, {.rows = rows,
                                               .cols = cols,
                                               .ld = ld,
                                               .first = first,
                                               .logits = out.data(),
                                               .labels = labels.data(),
                                               .sum = sum.data(),
                                               .weight = weight.data()});
      for (const Numbers* part : {&max, &sum, &target}) {
        out.insert(out.end(), part->begin(), part->end());
      }
      return out;
    });
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* row = logits.data() + r * ld;
      const double max = *std::max_element(row, row + cols);
      double sum = 0;
      for (std::int64_t i = 0; i < cols; ++i) sum += std::exp(static_cast<double>(row[i]) - max);
      const std::int64_t label = labels[size(1, r)] - first;
      const bool here = label >= 0 && label < cols;
      EXPECT_EQ(all[size(rows, ld) + size(1, r)], max);
      EXPECT_NEAR(all[size(rows, ld + 1) + size(1, r)] / sum, 1.0, 1.5e-7);
      EXPECT_EQ(all[size(rows, ld + 2) + size(1, r)],
                here ? row[label] - static_cast<float>(max) : 0.0F);
      const double scale = weight[size(1, r)];
      for (std::int64_t i = 0; i < ld; ++i) {
        const float got = all[size(r, ld) + size(1, i)];
        if (i >= cols) {
          EXPECT_EQ(got, row[i]) << "padding is not ours";
          continue;
        }
        const double p = std::exp(static_cast<double>(row[i]) - max) / sum;
        // logit - max is rounded once, exp is good to 2 ulp, then three roundings.
        const double relative = 4e-7 + 6e-8 * (max - static_cast<double>(row[i]));
        const bool at_label = here && i == label;
        EXPECT_NEAR(got, (p - (at_label ? 1 : 0)) * scale,
                    scale * (relative * p + (at_label ? 1.3e-7 : 0)));
      }
    }
  }
}

TEST(Embedding, forward_gathers_and_backward_adds_in_order) {
  for (const std::int64_t cols : {1, 17, 64, 131}) {
    const std::int64_t count = 211, first = 10, rows = 7;
    const Numbers words = random_numbers(size(rows, cols), 1),
                  places = random_numbers(size(5, cols), 2);
    const Numbers dy = random_numbers(size(count, cols), 3);
    std::vector<std::int32_t> tokens, positions;
    for (std::int64_t t = 0; t < count; ++t) {
      tokens.push_back(static_cast<std::int32_t>(8 + (t * t) % 11));  // 8, 9 and 17, 18: elsewhere
      positions.push_back(static_cast<std::int32_t>(t % 5));
    }
    Numbers out(size(count, cols)), plain(size(count, cols));
    Numbers dwords = random_numbers(size(rows, cols), 4),
            dplaces = random_numbers(size(5, cols), 5);
    Numbers want;
    const Numbers dwords_before = dwords, dplaces_before = dplaces;
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t row = tokens[size(1, t)] - first;
      const bool here = row >= 0 && row < rows;
      for (std::int64_t i = 0; i < cols; ++i) {
        const float w = here ? words[size(row, cols) + size(1, i)] : 0.0F;
        plain[size(t, cols) + size(1, i)] = w;
        out[size(t, cols) + size(1, i)] =
            w + places[size(positions[size(1, t)], cols) + size(1, i)];
        const float d = dy[size(t, cols) + size(1, i)];
        if (here) dwords[size(row, cols) + size(1, i)] += d;
        dplaces[size(positions[size(1, t)], cols) + size(1, i)] += d;
      }
    }
    for (const Numbers* part : {&out, &plain, &dwords, &dplaces}) {
      want.insert(want.end(), part->begin(), part->end());
    }
    const Numbers got = same_everywhere([&](const Kernels& kernels) {
      Numbers all(2 * out.size(), 9.0F), dw = dwords_before, dp = dplaces_before;
      EmbeddingForward f{.count = count,
                         .cols = cols,
                         .first = first,
                         .rows = rows,
                         .tokens = tokens.data(),
                         .position_ids = positions.data(),
                         .words = words.data(),
                         .positions = places.data(),
                         .out = all.data()};
      kernels.embedding_forward(DType::kF32, f);
      f.positions = nullptr;
      f.out = all.data() + out.size();
      kernels.embedding_forward(DType::kF32, f);
      EmbeddingBackward b{.count = count,
                          .cols = cols,
                          .first = first,
                          .rows = rows,
                          .tokens = tokens.data(),
                          .position_ids = positions.data(),
                          .dy = dy.data(),
                          .dwords = dw.data(),
                          .dpositions = nullptr};
      kernels.embedding_backward(DType::kF32, b);
      b.dwords = nullptr;
      b.dpositions = dp.data();
      kernels.embedding_backward(DType::kF32, b);
      all.insert(all.end(), dw.begin(), dw.end());
      all.insert(all.end(), dp.begin(), dp.end());
      return all;
    });
    EXPECT_TRUE(same_bits(got, want));
  }
}

TEST(Argmax, takes_the_first_of_equals_and_never_not_a_number) {
  for (const std::int64_t cols : {1, 5, 16, 17, 70}) {
    Numbers x = random_numbers(size(6, cols), 9);
    float* row = x.data() + cols;
    std::fill(row, row + cols, 2.0F);            // all equal
    std::fill(row + cols, row + 2 * cols, NAN);  // nothing to win
    std::fill(row + 2 * cols, row + 3 * cols, -HUGE_VALF);
    row[3 * cols] = NAN;  // a NaN before and after the largest
    row[4 * cols - 1] = cols > 1 ? 99.0F : NAN;
    if (cols > 4) row[4 * cols + 1] = row[4 * cols + 4] = 50.0F;
    const Numbers got = same_everywhere([&](const Kernels& kernels) {
      std::vector<std::int64_t> out(6, -1);
      kernels.argmax(DType::kF32, x.data(), out.data(), 6, cols);
      return Numbers(out.begin(), out.end());
    });
    EXPECT_EQ(got[0],
              static_cast<float>(std::max_element(x.begin(), x.begin() + cols) - x.begin()));
    EXPECT_EQ(Numbers(got.begin() + 1, got.begin() + 4), Numbers(3, 0.0F));
    EXPECT_EQ(got[4], static_cast<float>(cols - 1));
    if (cols > 4) {
      EXPECT_EQ(got[5], 1.0F);
    }
  }
}

}  // namespace
}  // namespace mt
