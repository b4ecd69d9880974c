// AdamW against its formulas in double, the norm, clipping, and gradients that are not finite.
#include "optim/adam.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>

#include "optim/gradient_norm.h"
#include "optim/zero1.h"
#include "tensor/ops.h"
#include "testing.h"

namespace mt {
namespace {

// A matrix of two segments and a vector, of odd sizes.
class Weights {
 public:
  explicit Weights(TestRig& rig) {
    store.push_back(
        make_parameter(rig.pool,
                       {{.name = "a", .global_shape = {3, 7}, .offset = {0, 0}, .extent = {3, 7}},
                        {.name = "b", .global_shape = {2, 7}, .offset = {0, 0}, .extent = {2, 7}}},
                       Gradient::kZeroed, Init::kNormal, 1.0));
    store.push_back(make_parameter(
        rig.pool, {{.name = "c", .global_shape = {19}, .offset = {0}, .extent = {19}}},
        Gradient::kZeroed, Init::kZero));
    for (Parameter& parameter : store) parameters.push_back(&parameter);
    randomise(parameters, 1);
  }
  std::deque<Parameter> store;
  std::vector<Parameter*> parameters;
};

// Loshchilov and Hutter's algorithm 2 on doubles.
struct Reference {
  std::vector<double> p, m, v;
  void step(const std::vector<float>& gradient, const AdamOptions& o, double lr, double scale,
            double decay, int t) {
    m.resize(p.size());
    v.resize(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = gradient[i] * scale;
      p[i] -= lr * decay * p[i];
      m[i] = o.adam_beta1 * m[i] + (1 - o.adam_beta1) * g;
      v[i] = o.adam_beta2 * v[i] + (1 - o.adam_beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(o.adam_beta1, t));
      const double v_hat = v[i] / (1 - std::pow(o.adam_beta2, t));
      p[i] -= lr * m_hat / (std::sqrt(v_hat) + o.adam_eps);
    }
  }
};

TEST(adam, thirty_steps_match_double_with_decay_and_clipping) {
  TestRig rig;
  for (const double clip : {0.0, 0.5, 1e9}) {
    SCOPED_TRACE(clip);
    Weights weights(rig);
    AdamOptions options;
    options.adam_beta1 = 0.85;
    options.adam_beta2 = 0.97;
    options.adam_eps = 1e-6;
    options.weight_decay = 0.1;
    options.clip_grad = clip;
    Adam adam(options, weights.parameters, all_rows(weights.parameters), rig.pool);
    std::vector<Reference> reference(2);
    for (std::size_t i = 0; i < 2; ++i) {
      const auto values = values_of(weights.parameters[i]->value);
      reference[i].p.assign(values.begin(), values.end());
    }
    for (int t = 1; t <= 30; ++t) {
      double squares = 0;
      std::vector<std::vector<float>> gradients;
      for (std::size_t i = 0; i < 2; ++i) {
        const Parameter& parameter = *weights.parameters[i];
        const auto seed = static_cast<std::uint32_t>(100 * t) + static_cast<std::uint32_t>(i);
        copy(random_tensor(rig.pool, parameter.value.shape(), seed), parameter.grad);
        gradients.push_back(values_of(parameter.grad));
        for (const float g : gradients.back()) squares += static_cast<double>(g) * g;
      }
      const double norm = gradient_norm(weights.parameters), lr = 0.01 / t;
      EXPECT_NEAR(norm, std::sqrt(squares), 1e-12 * norm);
      adam.step(lr, norm);
      const double scale = clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1.0;
      for (std::size_t i = 0; i < 2; ++i) {
        reference[i].step(gradients[i], options, lr, scale, i == 0 ? 0.1 : 0.0, t);
        for (const float g : values_of(weights.parameters[i]->grad)) EXPECT_EQ(g, 0.0F);
      }
    }
    EXPECT_EQ(adam.steps(), 30);
    for (std::size_t i = 0; i < 2; ++i) {
      expect_near(values_of(weights.parameters[i]->value), reference[i].p, 1e-6, "parameter");
      expect_near(values_of(adam.exp_avg(i)), reference[i].m, 1e-6, "exp_avg");
      expect_near(values_of(adam.exp_avg_sq(i)), reference[i].v, 1e-6, "exp_avg_sq");
    }
  }
}

TEST(adam, a_rate_of_zero_moves_no_bit_but_fills_the_moments) {
  TestRig rig;
  Weights weights(rig);
  Adam adam({}, weights.parameters, all_rows(weights.parameters), rig.pool);
  copy(random_tensor(rig.pool, {5, 7}, 2), weights.parameters[0]->grad);
  const auto before = values_of(weights.parameters[0]->value);
  adam.step(0.0, gradient_norm(weights.parameters));
  expect_same_bits(values_of(weights.parameters[0]->value), before, "parameter");
  EXPECT_NE(values_of(adam.exp_avg(0)), std::vector<float>(35, 0.0F));
}

TEST(adam, continues_from_moments_and_a_step_count) {
  TestRig rig;
  Weights whole(rig), resumed(rig);
  Adam first({}, whole.parameters, all_rows(whole.parameters), rig.pool);
  const auto train = [&](Adam& adam, Weights& weights, std::uint32_t step) {
    for (const Parameter* parameter : weights.parameters) {
      copy(random_tensor(rig.pool, parameter->value.shape(), step), parameter->grad);
    }
    adam.step(1e-2, gradient_norm(weights.parameters));
  };
  for (const std::uint32_t step : {1U, 2U, 3U}) train(first, whole, step);
  Adam second({}, resumed.parameters, all_rows(resumed.parameters), rig.pool);
  second.set_steps(first.steps());
  for (std::size_t i = 0; i < 2; ++i) {
    copy(whole.parameters[i]->value, resumed.parameters[i]->value);
    copy(first.exp_avg(i), second.exp_avg(i));
    copy(first.exp_avg_sq(i), second.exp_avg_sq(i));
  }
  train(first, whole, 4);
  train(second, resumed, 4);
  for (std::size_t i = 0; i < 2; ++i) {
    expect_same_bits(values_of(resumed.parameters[i]->value), values_of(whole.parameters[i]->value),
                     "parameter");
  }
}

TEST(adam, names_the_first_tensor_whose_gradient_is_not_finite) {
  TestRig rig;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    Weights weights(rig);
    weights.parameters[0]->grad.as<float>()[3 * 7 + 4] = bad;
    weights.parameters[1]->grad.as<float>()[1] = bad;
    try {
      (void)gradient_norm(weights.parameters);
      FAIL() << "accepted " << bad;
    } catch (const NumericError& error) {
      EXPECT_STREQ(error.what(), "the gradient of b is not finite (element 4 of [2, 7])");
    }
  }
}

TEST(adam, a_norm_of_huge_gradients_does_not_overflow) {
  TestRig rig;
  Weights weights(rig);
  weights.parameters[1]->grad.as<float>()[0] = 3e38F;
  EXPECT_NEAR(gradient_norm(weights.parameters) / 3e38, 1.0, 1e-6);
}

TEST(adam, refuses_constants_outside_their_ranges) {
  const auto refused = [](auto change, const char* named) {
    AdamOptions options;
    change(options);
    try {
      options.check();
      ADD_FAILURE() << "accepted: " << named;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
    }
  };
  refused([](auto& o) { o.adam_beta1 = 1; }, "--adam-beta1");
  refused([](auto& o) { o.adam_beta2 = -0.1; }, "--adam-beta2");
  refused([](auto& o) { o.adam_beta2 = NAN; }, "--adam-beta2");
  refused([](auto& o) { o.adam_eps = 0; }, "--adam-eps");
  refused([](auto& o) { o.adam_eps = 1e-50; }, "--adam-eps");
  refused([](auto& o) { o.adam_eps = 1e308; }, "--adam-eps");
  refused([](auto& o) { o.weight_decay = 1e39; }, "--weight-decay");
  refused([](auto& o) { o.weight_decay = -1; }, "--weight-decay");
  refused([](auto& o) { o.clip_grad = NAN; }, "--clip-grad");
}

}  // namespace
}  // namespace mt
