// What the tests of layers and models share: a device of their own, tensors of random or given
// numbers, and gradients by finite differences.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "nn/linear.h"
#include "tensor/tensor.h"

namespace mt {

// A CPU device with its pool and a group of one. One thread: small tensors gain nothing from more.
struct TestRig {
  explicit TestRig(const char* kernel_set = "", int threads = 1);
  [[nodiscard]] LayerSetup setup(double init_std = 0.2);

  Pool pool;
  std::unique_ptr<Communicator> tp;
};

// Rank `rank` of `size` without the others: reductions leave this rank's part, so that a test can
// put parts together itself and compare with the whole.
class LonelyRank : public Communicator {
 public:
  LonelyRank(int rank, int size) : Communicator(rank, size, "lonely") {}

 private:
  void reduce_all(const Elements&, ReduceOp) const override {}
  void scatter_sum(const Elements&, const Elements&) const override {}
  void gather_all(const Elements&, const Elements&) const override {}
  void broadcast_from(const Elements&, int) const override {}
  void wait_for_all() const override {}
  void send_to(const Tensor&, int) const override {}
  void receive_from(const Elements&, int) const override {}
  void wait_for_sends() const override {}
  [[nodiscard]] std::unique_ptr<Communicator> split_group(int, int,
                                                          const std::string&) const override {
    return nullptr;
  }
};

// Numbers uniform in [-scale, scale), the same for the same seed.
[[nodiscard]] Tensor random_tensor(Pool& pool, const Shape& shape, std::uint32_t seed,
                                   float scale = 1.0F);
[[nodiscard]] std::vector<std::int32_t> random_ids(std::int64_t count, std::int32_t below,
                                                   std::uint32_t seed);
[[nodiscard]] std::vector<float> values_of(const Tensor& x);
[[nodiscard]] Tensor copy_of(const Tensor& x);
// Sets every parameter to random numbers, gains around 1, so that a forgotten one shows.
void randomise(const std::vector<Parameter*>& parameters, std::uint32_t seed);
void zero_gradients(const std::vector<Parameter*>& parameters);

// sum(weights * y) in double.
[[nodiscard]] double weighted_sum(const Tensor& y, const Tensor& weights);

// Compares `gradient` with central differences of `loss` in the elements of x (at most `most`,
// evenly spread), two step sizes extrapolated. Returns the largest difference over the largest
// magnitude of a difference quotient. Forward runs in f32, whose rounding leaves about 1e-4 here:
// see kGradientTolerance.
[[nodiscard]] double gradient_error(const Tensor& x, const Tensor& gradient,
                                    const std::function<double()>& loss, std::int64_t most = 60);
constexpr double kGradientTolerance = 2e-3;

// Expects the gradients of all parameters to match central differences of `loss`.
void expect_parameter_gradients(const std::vector<Parameter*>& parameters,
                                const std::function<double()>& loss);

// Copies from parameters of the whole to those of a part, as their segments say.
void copy_boxes(const std::vector<Parameter*>& whole, const std::vector<Parameter*>& part);

// Expects |found - expected| <= limit everywhere.
void expect_near(const std::vector<float>& found, const std::vector<double>& expected, double limit,
                 const std::string& what);

// Expects equal bits; the message names `what` and the first difference.
void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b,
                      const std::string& what);

}  // namespace mt
