// The products of a training step by themselves: the yardstick that a step's time is divided by.
// What a layer computes between its products is not in it, so the ratio shows what that costs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "tensor/tensor.h"

namespace mt {

// c[m, n] = a b, `batch` of them at once (the heads of a micro-batch, one thread each) and `count`
// times in a micro-batch (layers).
struct StepProduct {
  enum class Kind { kForward, kInput, kWeight };  // x W^T, dy W, dW += dy^T x
  std::string name;
  Kind kind = Kind::kForward;
  bool forward = false;  // part of the forward pass
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t batch = 1, count = 1;
  double share = 1;  // of the time and the operations that counts: causal attention needs half

  // In one micro-batch.
  [[nodiscard]] double operations() const;
};

// Of forward and backward for a micro-batch of `batch` sequences. Attention has the six products
// that any implementation needs; the logits are one product, whatever blocks they are made in.
[[nodiscard]] std::vector<StepProduct> step_products(const ModelConfig& config, std::int64_t batch,
                                                     std::int64_t sequence);

// Runs them on operands of their own, which all share three buffers. pool must outlive it.
class ProductRunner {
 public:
  ProductRunner(std::vector<StepProduct> products, Pool& pool);

  [[nodiscard]] const std::vector<StepProduct>& products() const { return products_; }
  // Seconds of product i in one micro-batch: one call's (the best of `rounds`, each of which lasts
  // some milliseconds at least) times count and share.
  [[nodiscard]] double seconds(std::size_t i, int rounds) const;
  // All of a batch, once.
  void run(std::size_t i) const;

  // Element b of product i's batch: a [m, k] (kWeight: [k, m]), b [n, k] (else [k, n]), c [m, n].
  struct Operands {
    Tensor a, b, c;
  };
  [[nodiscard]] Operands operands(std::size_t i, std::int64_t element) const;

 private:
  std::vector<StepProduct> products_;
  Tensor a_, b_, c_;
};

}  // namespace mt
