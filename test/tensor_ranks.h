// Threads as the ranks of a tensor-parallel group that hold the parts of one model, and its
// gradients put together.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tensor/ops.h"
#include "testing.h"

namespace mt {

// Tensors by name, whole.
using Gradients = std::map<std::string, std::vector<float>>;

// Makes biases and gains differ from 0 and 1, as functions of the place in the whole.
inline void randomise_vectors(const std::vector<Parameter*>& parameters) {
  for (const Parameter* parameter : parameters) {
    for (const Segment& segment : parameter->segments) {
      if (segment.extent.size() != 1) continue;
      const Tensor part = segment_rows(parameter->value, segment);
      std::vector<float> values = values_of(part);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double place = static_cast<double>(segment.offset[0]) + static_cast<double>(i);
        values[i] += static_cast<float>(
            0.3 * std::sin(1.7 * place + static_cast<double>(segment.name.size())));
      }
      copy_from_host(values.data(), part);
    }
  }
}

// Adds a rank's parts, which it completes over tp where a parameter says so. What several ranks
// hold must have the same bits on all of them. Collective over tp.
inline void put_gradients(const std::vector<Parameter*>& parameters, const Communicator& tp,
                          std::mutex& mutex, Gradients& whole) {
  for (const Parameter* parameter : parameters) {
    if (parameter->sum_over_tensor) tp.all_reduce(parameter->grad, ReduceOp::kSum);
    const std::lock_guard<std::mutex> lock(mutex);
    for (const Segment& segment : parameter->segments) {
      const std::vector<float> part = values_of(segment_rows(parameter->grad, segment));
      auto& all = whole[segment.name];
      if (all.empty()) {
        all.assign(static_cast<std::size_t>(element_count(segment.global_shape)), NAN);
      }
      const bool matrix = segment.extent.size() == 2;
      const std::int64_t cols = matrix ? segment.extent[1] : 1;
      const std::int64_t global_cols = matrix ? segment.global_shape[1] : 1;
      const std::int64_t first = segment.offset[0] * global_cols + (matrix ? segment.offset[1] : 0);
      for (std::size_t i = 0; i < part.size(); ++i) {
        const auto row = static_cast<std::int64_t>(i) / cols;
        float& place = all[static_cast<std::size_t>(first + row * global_cols +
                                                    static_cast<std::int64_t>(i) % cols)];
        EXPECT_TRUE(std::isnan(place) || place == part[i]) << segment.name << ": replicas differ";
        place = part[i];
      }
    }
  }
}

// Expects that no element of any tensor differs by more than `limit` of the tensor's largest. The
// gradient of the keys' bias is 0 but for rounding (a softmax does not see a shift of all scores):
// it is held against that of the queries'.
inline void expect_near_gradients(const Gradients& found, const Gradients& expected, double limit,
                                  const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (const auto& [name, values] : expected) {
    const std::vector<float>& others = found.at(name);
    ASSERT_EQ(others.size(), values.size()) << what << ", " << name;
    double largest = 0, difference = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double apart = std::fabs(static_cast<double>(others[i]) - values[i]);
      difference = std::isnan(apart) ? HUGE_VAL : std::max(difference, apart);
    }
    std::string scale = name;
    if (const auto at = name.find("key.bias"); at != std::string::npos) {
      scale.replace(at, 3, "query");
    }
    for (const float value : expected.at(scale)) {
      largest = std::max(largest, std::fabs(static_cast<double>(value)));
    }
    EXPECT_GT(largest, 0) << what << ", " << name;
    EXPECT_LE(difference, limit * largest) << what << ", " << name;
  }
}

inline void expect_same_gradients(const Gradients& found, const Gradients& expected,
                                  const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (const auto& [name, values] : expected) {
    expect_same_bits(found.at(name), values, what + ", " + name);
  }
}

}  // namespace mt
