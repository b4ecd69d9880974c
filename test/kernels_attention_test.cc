// Attention against float64 loops, its backward against their finite differences, and the promises
// about bits: cache, documents, micro-batches, sets and threads.
#include "base/threads.h"
#include "kernels_testing.h"

namespace mt {
namespace {

// q, k and v interleaved by position as a fused projection leaves them, and out apart.
struct Case {
  std::int64_t batch = 1, heads = 1, head_size = 16, queries = 1, keys = 1;
  bool causal = true;
  float dropout = 0;
  std::vector<std::int32_t> first_key = {};
  std::vector<std::int64_t> samples = {};
  std::int64_t first_head = 0;

  std::int64_t width() const { return heads * head_size; }
  AttentionShape shape() const {
    AttentionShape s;
    s.batch = batch;
    s.heads = heads;
    s.head_size = head_size;
    s.queries = queries;
    s.keys = keys;
    s.q_row = width() + 3;
    s.q_batch = queries * s.q_row;
    s.kv_row = width() + 5;
    s.kv_batch = keys * s.kv_row;
    s.out_row = width() + 1;
    s.out_batch = queries * s.out_row;
    s.causal = causal;
    s.scale = 1.0F / std::sqrt(static_cast<float>(head_size));
    s.first_key = first_key.empty() ? nullptr : first_key.data();
    s.first_head = first_head;
    s.dropout.probability = dropout;
    s.dropout.seed = 77;
    s.dropout.layer = 3;
    s.dropout.site = 1;
    s.dropout.samples = samples.empty() ? nullptr : samples.data();
    return s;
  }
};

struct Inputs {
  Numbers q, k, v, dout;
  explicit Inputs(const Case& c) {
    const AttentionShape s = c.shape();
    q = random_numbers(static_cast<std::size_t>(s.q_batch * c.batch), 1);
    k = random_numbers(static_cast<std::size_t>(s.kv_batch * c.batch), 2);
    v = random_numbers(static_cast<std::size_t>(s.kv_batch * c.batch), 3);
    dout = random_numbers(static_cast<std::size_t>(s.out_batch * c.batch), 4);
  }
};

struct Outputs {
  Numbers out, log_sum_exp, dq, dk, dv;
  Numbers all() const {
    Numbers joined;
    for (const Numbers* part : {&out, &log_sum_exp, &dq, &dk, &dv}) {
      joined.insert(joined.end(), part->begin(), part->end());
    }
    return joined;
  }
};

enum class Ask { kOutput, kLogSumExp };

Outputs forward(const Kernels& kernels, const Case& c, const Inputs& in,
                Ask ask = Ask::kLogSumExp) {
  const AttentionShape s = c.shape();
  Outputs o;
  o.out.assign(static_cast<std::size_t>(s.out_batch * c.batch), -7.0F);
  o.log_sum_exp.assign(static_cast<std::size_t>(c.batch * c.heads * c.queries), -7.0F);
  kernels.attention_forward(DType::kF32,
                            {.shape = s,
                             .q = in.q.data(),
                             .k = in.k.data(),
                             .v = in.v.data(),
                             .out = o.out.data(),
                             .log_sum_exp = ask == Ask::kOutput ? nullptr : o.log_sum_exp.data()});
  return o;
}

Outputs forward_backward(const Kernels& kernels, const Case& c, const Inputs& in) {
  Outputs o = forward(kernels, c, in);
  o.dq.assign(in.q.size(), -7.0F);
  o.dk.assign(in.k.size(), -7.0F);
  o.dv.assign(in.v.size(), -7.0F);
  kernels.attention_backward(DType::kF32, {.shape = c.shape(),
                                           .q = in.q.data(),
                                           .k = in.k.data(),
                                           .v = in.v.data(),
                                           .out = o.out.data(),
                                           .dout = in.dout.data(),
                                           .log_sum_exp = o.log_sum_exp.data(),
                                           .dq = o.dq.data(),
                                           .dk = o.dk.data(),
                                           .dv = o.dv.data()});
  return o;
}

using Doubles = std::vector<double>;

// One query's output in float64, and the logarithm of its sum.
Doubles reference_row(const Case& c, const Doubles& q, const Doubles& k, const Doubles& v,
                      std::int64_t b, std::int64_t head, std::int64_t query, double* log_sum_exp) {
  const AttentionShape s = c.shape();
  const std::int64_t position = c.keys - c.queries + query;
  const std::int64_t first =
      c.first_key.empty() ? 0 : c.first_key[static_cast<std::size_t>(b * c.queries + query)];
  const std::int64_t end = c.causal ? position + 1 : c.keys;
  Doubles out(static_cast<std::size_t>(c.head_size));
  double total = 0;
  for (std::int64_t key = first; key < end; ++key) {
    double score = 0;
    for (std::int64_t i = 0; i < c.head_size; ++i) {
      score +=
          q[static_cast<std::size_t>(b * s.q_batch + query * s.q_row + head * c.head_size + i)] *
          k[static_cast<std::size_t>(b * s.kv_batch + key * s.kv_row + head * c.head_size + i)];
    }
    const double p = std::exp(score * static_cast<double>(s.scale));
    total += p;
    const std::uint64_t element = static_cast<std::uint64_t>(
        ((s.first_head + head) * c.queries + query) * ((c.keys + 3) / 4 * 4) + key);
    const double factor =
        c.dropout == 0 ? 1
                       : dropout_factor(s.dropout, c.samples[static_cast<std::size_t>(b)], element);
    for (std::int64_t i = 0; i < c.head_size; ++i) {
      out[static_cast<std::size_t>(i)] +=
          p * factor *
          v[static_cast<std::size_t>(b * s.kv_batch + key * s.kv_row + head * c.head_size + i)];
    }
  }
  for (double& x : out) x /= total;
  *log_sum_exp = std::log(total);
  return out;
}

// sum over all outputs of dout * out, in float64.
double reference_loss(const Case& c, const Doubles& q, const Doubles& k, const Doubles& v,
                      const Numbers& dout, std::int64_t b, std::int64_t head) {
  const AttentionShape s = c.shape();
  double loss = 0;
  for (std::int64_t query = 0; query < c.queries; ++query) {
    double unused = 0;
    const Doubles row = reference_row(c, q, k, v, b, head, query, &unused);
    for (std::int64_t i = 0; i < c.head_size; ++i) {
      loss += row[static_cast<std::size_t>(i)] *
              static_cast<double>(dout[static_cast<std::size_t>(
                  b * s.out_batch + query * s.out_row + head * c.head_size + i)]);
    }
  }
  return loss;
}

Doubles widened(const Numbers& x) {
  return Doubles(x.begin(), x.end());
}

void check_forward(const Case& c) {
  const AttentionShape s = c.shape();
  const Inputs in(c);
  Outputs got;
  same_everywhere([&](const Kernels& kernels) {
    got = forward(kernels, c, in);
    return got.all();
  });
  const Doubles q = widened(in.q), k = widened(in.k), v = widened(in.v);
  double worst = 0;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t head = 0; head < c.heads; ++head) {
      for (std::int64_t query = 0; query < c.queries; ++query) {
        double log_sum_exp = 0;
        const Doubles want = reference_row(c, q, k, v, b, head, query, &log_sum_exp);
        for (std::int64_t i = 0; i < c.head_size; ++i) {
          const float x = got.out[static_cast<std::size_t>(b * s.out_batch + query * s.out_row +
                                                           head * c.head_size + i)];
          worst = std::max(worst,
                           std::fabs(static_cast<double>(x) - want[static_cast<std::size_t>(i)]));
        }
        const float l =
            got.log_sum_exp[static_cast<std::size_t>((b * c.heads + head) * c.queries + query)];
        EXPECT_NEAR(l, log_sum_exp, 2e-6 * std::max(1.0, std::fabs(log_sum_exp)));
      }
    }
  }
  EXPECT_LT(worst, 3e-6) << "d " << c.head_size << " queries " << c.queries << " keys " << c.keys;
  // What lies between the rows is not ours.
  for (std::int64_t row = 0; row < c.batch * c.queries; ++row) {
    EXPECT_EQ(got.out[static_cast<std::size_t>(row * s.out_row + c.width())], -7.0F);
  }
}

TEST(Attention, forward_matches_float64) {
  for (const std::int64_t d : {1, 7, 16, 17, 20, 32, 64, 67}) {
    for (const std::int64_t n : {1, 2, 13, 63, 64, 65, 131, 193}) {
      if (d > 20 && n > 65) continue;
      check_forward({.batch = 1, .heads = 2, .head_size = d, .queries = n, .keys = n});
    }
  }
  check_forward({.batch = 2, .heads = 3, .head_size = 64, .queries = 131, .keys = 131});
}

TEST(Attention, forward_matches_float64_with_a_cache_or_without_causality) {
  check_forward({.batch = 2, .heads = 2, .head_size = 20, .queries = 1, .keys = 130});
  check_forward({.batch = 1, .heads = 2, .head_size = 16, .queries = 5, .keys = 68});
  check_forward(
      {.batch = 2, .heads = 1, .head_size = 17, .queries = 70, .keys = 70, .causal = false});
}

// The gradient of every 'step'-th element of one input against finite differences.
void check_gradient(const Case& c, const Inputs& in, const Numbers& gradient, int which,
                    std::size_t step) {
  const AttentionShape s = c.shape();
  const std::int64_t rows = which == 0 ? c.queries : c.keys;
  const std::int64_t row_stride = which == 0 ? s.q_row : s.kv_row;
  Doubles inputs[3] = {widened(in.q), widened(in.k), widened(in.v)};
  std::size_t count = 0;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < c.width(); ++i) {
        if (count++ % step != 0) continue;
        const auto at = static_cast<std::size_t>((b * rows + row) * row_stride + i);
        const double before = inputs[which][at];
        const double h = 1e-5;
        double loss[2];
        for (int side = 0; side < 2; ++side) {
          inputs[which][at] = before + (side == 0 ? h : -h);
          loss[side] =
              reference_loss(c, inputs[0], inputs[1], inputs[2], in.dout, b, i / c.head_size);
        }
        inputs[which][at] = before;
        EXPECT_NEAR(gradient[at], (loss[0] - loss[1]) / (2 * h), 3e-5)
            << "input " << which << " sample " << b << " row " << row << " element " << i;
      }
    }
  }
}

void check_backward(const Case& c, std::size_t step) {
  const Inputs in(c);
  Outputs got;
  same_everywhere([&](const Kernels& kernels) {
    got = forward_backward(kernels, c, in);
    return got.all();
  });
  check_gradient(c, in, got.dq, 0, step);
  check_gradient(c, in, got.dk, 1, step);
  check_gradient(c, in, got.dv, 2, step);
}

TEST(Attention, backward_matches_finite_differences) {
  check_backward({.batch = 2, .heads = 2, .head_size = 5, .queries = 7, .keys = 7}, 1);
  check_backward({.batch = 1, .heads = 1, .head_size = 1, .queries = 1, .keys = 1}, 1);
  check_backward({.batch = 1, .heads = 1, .head_size = 17, .queries = 65, .keys = 65}, 11);
  check_backward({.batch = 1, .heads = 2, .head_size = 20, .queries = 131, .keys = 131}, 211);
  check_backward(
      {.batch = 1, .heads = 1, .head_size = 16, .queries = 67, .keys = 67, .causal = false}, 17);
}

TEST(Attention, backward_matches_finite_differences_with_dropout_and_documents) {
  Case c{.batch = 2, .heads = 2, .head_size = 6, .queries = 67, .keys = 67, .dropout = 0.3F};
  c.samples = {5, 1000000007};
  c.first_head = 2;
  check_forward(c);
  check_backward(c, 41);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t i = 0; i < 67; ++i) {
      c.first_key.push_back(static_cast<std::int32_t>(i < 20 ? 0 : i < 66 ? 20 : 66));
    }
  }
  check_forward(c);
  check_backward(c, 41);
}

TEST(Attention, decoding_with_a_cache_gives_the_bits_of_the_whole) {
  const Case whole{.batch = 1, .heads = 3, .head_size = 20, .queries = 150, .keys = 150};
  const Inputs in(whole);
  for (const Kernels* kernels : kernel_sets()) {
    const Outputs want = forward(*kernels, whole, in);
    const AttentionShape s = whole.shape();
    for (const std::int64_t queries : {1, 2, 7, 65}) {
      for (std::int64_t keys = queries; keys <= 150; keys += queries == 1 ? 3 : 31) {
        Case part = whole;
        part.queries = queries;
        part.keys = keys;
        Inputs cut = in;
        cut.q.erase(cut.q.begin(), cut.q.begin() + (keys - queries) * s.q_row);
        const Outputs got = forward(*kernels, part, cut);
        ASSERT_EQ(std::memcmp(got.out.data(), want.out.data() + (keys - queries) * s.out_row,
                              got.out.size() * sizeof(float)),
                  0)
            << kernels->name << " " << queries << " queries, " << keys << " keys";
      }
    }
  }
}

// Without log_sum_exp a query alone, as in decoding, takes a way of its own.
TEST(Attention, one_query_has_the_same_bits_whatever_is_asked_for) {
  set_threads(3);
  for (const std::int64_t head_size : {7, 20, 64}) {
    for (const std::int64_t batch : {1, 3}) {
      for (const std::int64_t keys : {1, 15, 16, 33, 64, 65, 150, 400}) {
        Case c{.batch = batch, .heads = 5, .head_size = head_size, .queries = 1, .keys = keys};
        for (const std::int64_t first : {std::int64_t{0}, keys / 2, keys}) {
          c.first_key.assign(static_cast<std::size_t>(batch), static_cast<std::int32_t>(first));
          const Inputs in(c);
          const Numbers want = forward(*kernel_sets().front(), c, in).out;
          for (const Kernels* kernels : kernel_sets()) {
            SCOPED_TRACE(cat(kernels->name, ": ", batch, " samples, heads of ", head_size, ", ",
                             keys, " keys from ", first, " on"));
            EXPECT_TRUE(same_bits(forward(*kernels, c, in, Ask::kOutput).out, want));
          }
        }
      }
    }
  }
  set_threads(1);
}

// Documents that start at multiples of 64 see the same blocks as if they were alone.
TEST(Attention, a_document_behind_its_first_key_is_as_if_alone) {
  Case joined{.batch = 1, .heads = 2, .head_size = 17, .queries = 200, .keys = 200};
  const std::int64_t begin = 128, length = 72;
  for (std::int64_t i = 0; i < 200; ++i) {
    joined.first_key.push_back(static_cast<std::int32_t>(i < begin ? 0 : begin));
  }
  const Case alone{.batch = 1, .heads = 2, .head_size = 17, .queries = length, .keys = length};
  const AttentionShape s = joined.shape();
  Inputs in(joined);
  Inputs cut = in;
  cut.q.erase(cut.q.begin(), cut.q.begin() + begin * s.q_row);
  cut.k.erase(cut.k.begin(), cut.k.begin() + begin * s.kv_row);
  cut.v.erase(cut.v.begin(), cut.v.begin() + begin * s.kv_row);
  cut.dout.erase(cut.dout.begin(), cut.dout.begin() + begin * s.out_row);
  for (const Kernels* kernels : kernel_sets()) {
    const Outputs whole = forward_backward(*kernels, joined, in);
    const Outputs part = forward_backward(*kernels, alone, cut);
    EXPECT_TRUE(
        same_bits(part.out, Numbers(whole.out.begin() + begin * s.out_row, whole.out.end())));
    EXPECT_TRUE(same_bits(part.dq, Numbers(whole.dq.begin() + begin * s.q_row, whole.dq.end())));
    EXPECT_TRUE(same_bits(part.dk, Numbers(whole.dk.begin() + begin * s.kv_row, whole.dk.end())));
    EXPECT_TRUE(same_bits(part.dv, Numbers(whole.dv.begin() + begin * s.kv_row, whole.dv.end())));
  }
}

TEST(Attention, keys_outside_the_mask_change_no_bit) {
  Case c{.batch = 1, .heads = 1, .head_size = 16, .queries = 140, .keys = 140};
  for (std::int64_t i = 0; i < 140; ++i) c.first_key.push_back(i < 37 ? 0 : 37);
  Inputs in(c);
  const AttentionShape s = c.shape();
  for (const Kernels* kernels : kernel_sets()) {
    const Outputs before = forward_backward(*kernels, c, in);
    Inputs other = in;
    for (std::int64_t i = 0; i < 37 * s.kv_row; ++i) {
      other.k[static_cast<std::size_t>(i)] *= -3;
      other.v[static_cast<std::size_t>(i)] += 2;
    }
    const Outputs after = forward_backward(*kernels, c, other);
    EXPECT_TRUE(same_bits(Numbers(before.out.begin() + 37 * s.out_row, before.out.end()),
                          Numbers(after.out.begin() + 37 * s.out_row, after.out.end())));
    EXPECT_TRUE(same_bits(Numbers(before.dq.begin() + 37 * s.q_row, before.dq.end()),
                          Numbers(after.dq.begin() + 37 * s.q_row, after.dq.end())));
  }
}

TEST(Attention, a_sample_is_the_same_in_any_micro_batch) {
  Case both{.batch = 2, .heads = 2, .head_size = 16, .queries = 70, .keys = 70, .dropout = 0.1F};
  both.samples = {11, 4};
  Case second = both;
  second.batch = 1;
  second.samples = {4};
  const Inputs in(both);
  const AttentionShape s = both.shape();
  Inputs cut = in;
  cut.q.erase(cut.q.begin(), cut.q.begin() + s.q_batch);
  cut.k.erase(cut.k.begin(), cut.k.begin() + s.kv_batch);
  cut.v.erase(cut.v.begin(), cut.v.begin() + s.kv_batch);
  cut.dout.erase(cut.dout.begin(), cut.dout.begin() + s.out_batch);
  for (const Kernels* kernels : kernel_sets()) {
    const Outputs whole = forward_backward(*kernels, both, in);
    const Outputs part = forward_backward(*kernels, second, cut);
    EXPECT_TRUE(same_bits(part.out, Numbers(whole.out.begin() + s.out_batch, whole.out.end())));
    EXPECT_TRUE(same_bits(part.dq, Numbers(whole.dq.begin() + s.q_batch, whole.dq.end())));
    EXPECT_TRUE(same_bits(part.dv, Numbers(whole.dv.begin() + s.kv_batch, whole.dv.end())));
  }
}

TEST(Attention, large_scores_neither_overflow_nor_vanish) {
  const Case c{.batch = 1, .heads = 1, .head_size = 16, .queries = 100, .keys = 100};
  Inputs in(c);
  for (float& x : in.q) x *= 100;
  for (const Kernels* kernels : kernel_sets()) {
    const Outputs got = forward_backward(*kernels, c, in);
    for (const float x : got.all()) EXPECT_TRUE(std::isfinite(x));
  }
}

TEST(Attention, not_a_number_reaches_the_output) {
  const Case c{.batch = 1, .heads = 1, .head_size = 16, .queries = 3, .keys = 3};
  Inputs in(c);
  in.k[0] = NAN;
  for (const Kernels* kernels : kernel_sets()) {
    const Outputs got = forward(*kernels, c, in);
    EXPECT_TRUE(std::isnan(got.out[0])) << kernels->name;
    EXPECT_TRUE(std::isnan(got.log_sum_exp[2])) << kernels->name;
  }
}

}  // namespace
}  // namespace mt
