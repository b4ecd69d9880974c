#include "testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "tensor/ops.h"

namespace mt {

TestRig::TestRig(const char* kernel_set, int threads)
    : pool(make_cpu_device(kernel_set, threads)), tp(make_single_communicator()) {}

LayerSetup TestRig::setup(double init_std) {
  return {.tp = *tp, .pool = pool, .gradient = Gradient::kZeroed, .init_std = init_std};
}

Tensor random_tensor(Pool& pool, const Shape& shape, std::uint32_t seed, float scale) {
  std::mt19937 engine(seed);
  std::vector<float> values(static_cast<std::size_t>(element_count(shape)));
  // 24 bits of the engine: the same numbers with every standard library.
  for (float& value : values) {
    value = scale * (static_cast<float>(engine() >> 8) * 0x1p-23F - 1.0F);
  }
  return upload(pool, values.data(), shape, DType::kF32, MemoryKind::kWorkspace);
}

std::vector<std::int32_t> random_ids(std::int64_t count, std::int32_t below, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (auto& id : ids) {
    id = static_cast<std::int32_t>(engine() % static_cast<std::uint32_t>(below));
  }
  return ids;
}

std::vector<float> values_of(const Tensor& x) {
  std::vector<float> values(static_cast<std::size_t>(x.size()));
  copy_to_host(x, values.data());
  return values;
}

Tensor copy_of(const Tensor& x) {
  Tensor y(x.pool(), x.shape(), x.dtype(), MemoryKind::kWorkspace);
  copy(x, y);
  return y;
}

void randomise(const std::vector<Parameter*>& parameters, std::uint32_t seed) {
  for (const Parameter* parameter : parameters) {
    const Tensor noise =
        random_tensor(parameter->value.pool(), parameter->value.shape(), ++seed, 0.3F);
    std::vector<float> values = values_of(noise);
    if (parameter->init == Init::kOne) {
      for (float& value : values) value += 1.0F;
    }
    copy_from_host(values.data(), parameter->value);
  }
}

void zero_gradients(const std::vector<Parameter*>& parameters) {
  for (const Parameter* parameter : parameters) {
    parameter->grad.fill_zero();
    if (parameter->grad_apart.defined()) parameter->grad_apart.fill_zero();
    if (parameter->grad_shards.defined()) parameter->grad_shards.fill_zero();
  }
}

double weighted_sum(const Tensor& y, const Tensor& weights) {
  const std::vector<float> a = values_of(y), b = values_of(weights);
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

double gradient_error(const Tensor& x, const Tensor& gradient, const std::function<double()>& loss,
                      std::int64_t most) {
  std::vector<float> values = values_of(x);
  const std::vector<float> expected = values_of(gradient);
  EXPECT_EQ(values.size(), expected.size());
  const auto quotient = [&](std::size_t i, float step) {
    const float middle = values[i];
    const auto loss_at = [&](float value) {
      values[i] = value;
      copy_from_host(values.data(), x);
      return loss();
    };
    const float above = middle + step, below = middle - step;
    const double slope = (loss_at(above) - loss_at(below)) / (static_cast<double>(above) - below);
    values[i] = middle;
    copy_from_host(values.data(), x);
    return slope;
  };
  double largest = 0, error = 0;
  const std::int64_t count = x.size(), checked = std::min(most, count);
  for (std::int64_t n = 0; n < checked; ++n) {
    const auto i = static_cast<std::size_t>(checked == 1 ? 0 : n * (count - 1) / (checked - 1));
    constexpr float kStep = 0.02F;
    const double slope = (4 * quotient(i, kStep) - quotient(i, 2 * kStep)) / 3;
    largest = std::max(largest, std::fabs(slope));
    error = std::max(error, std::fabs(slope - expected[i]));
  }
  return error / std::max(largest, 1e-3);
}

void expect_parameter_gradients(const std::vector<Parameter*>& parameters,
                                const std::function<double()>& loss) {
  for (const Parameter* parameter : parameters) {
    EXPECT_LT(gradient_error(parameter->value, parameter->grad, loss), kGradientTolerance)
        << parameter->segments.front().name;
  }
}

void copy_boxes(const std::vector<Parameter*>& whole, const std::vector<Parameter*>& part) {
  ASSERT_EQ(whole.size(), part.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    ASSERT_EQ(whole[i]->segments.size(), part[i]->segments.size());
    for (std::size_t k = 0; k < whole[i]->segments.size(); ++k) {
      const Segment& to = part[i]->segments[k];
      ASSERT_EQ(whole[i]->segments[k].name, to.name);
      const auto all = values_of(segment_rows(whole[i]->value, whole[i]->segments[k]));
      const bool matrix = to.extent.size() == 2;
      const std::int64_t columns = matrix ? to.extent[1] : 1;
      const std::int64_t all_columns = matrix ? to.global_shape[1] : 1;
      const std::int64_t first_column = matrix ? to.offset[1] : 0;
      std::vector<float> box;
      for (std::int64_t row = to.offset[0]; row < to.offset[0] + to.extent[0]; ++row) {
        const auto begin = all.begin() + row * all_columns + first_column;
        box.insert(box.end(), begin, begin + columns);
      }
      copy_from_host(box.data(), segment_rows(part[i]->value, to));
    }
  }
}

void expect_near(const std::vector<float>& found, const std::vector<double>& expected, double limit,
                 const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], limit) << what << ", element " << i;
  }
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b,
                      const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) return;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) == 0) continue;
    FAIL() << what << ": element " << i << " of " << a.size() << " is " << a[i] << " and " << b[i];
  }
}

}  // namespace mt
