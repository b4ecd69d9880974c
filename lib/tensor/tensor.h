// A Tensor is a shape, a type and a reference-counted buffer on a device; no arithmetic
// (tensor/ops.h), no graph. Copying a Tensor shares the buffer. Buffers come from a caching pool
// per device: in the steady state a step allocates nothing from the system.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/device.h"

namespace mt {

using Shape = std::vector<std::int64_t>;

[[nodiscard]] std::int64_t element_count(const Shape& shape);
[[nodiscard]] std::string shape_text(const Shape& shape);  // "[8, 128, 512]"

// What bytes are counted as.
enum class MemoryKind : int { kWeights, kGradients, kOptimizer, kActivations, kWorkspace };
constexpr int kMemoryKinds = 5;

struct MemoryUse {
  std::array<std::int64_t, kMemoryKinds> current{}, peak{};  // bytes in tensors that live
  std::int64_t peak_total = 0;                               // bytes, of the sum
  std::int64_t system_bytes = 0;        // taken from the system, cached ones included
  std::int64_t system_allocations = 0;  // how often, since the start
};

// The CPU as a device, for programs: set is RunContext::cpu_set, threads 0 takes all allowed cores.
// Throws UsageError for an unknown set or one that this processor lacks.
[[nodiscard]] Device cpu_device(const std::string& set, int threads);
// The name of the kernel set that `set` leads to: "avx2", ...
[[nodiscard]] std::string cpu_kernel_set(const std::string& set);

// Caches released blocks by size. Not shared between threads. Tensors may outlive the pool's owner
// but not the process.
class Pool {
 public:
  explicit Pool(const Device& device);
  // Uninitialised memory. Throws EnvironmentError with the size when the system has none.
  [[nodiscard]] std::shared_ptr<void> allocate(std::int64_t bytes, MemoryKind kind);
  // Gives what is cached and not in use back to the system: blocks serve their own size again only,
  // so that sizes which differ from call to call would pile up.
  void release_spare();
  [[nodiscard]] const Device& device() const;
  [[nodiscard]] MemoryUse use() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

class Tensor {
 public:
  Tensor() = default;
  // Uninitialised.
  Tensor(Pool& pool, Shape shape, DType dtype, MemoryKind kind);
  // zero() is an uninitialised tensor filled with zero bits.
  [[nodiscard]] static Tensor zero(Pool& pool, Shape shape, DType dtype, MemoryKind kind);

  [[nodiscard]] bool defined() const { return pool_ != nullptr; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] std::int64_t dim(int i) const;               // negative counts from the end
  [[nodiscard]] std::int64_t size() const { return size_; }  // elements
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] std::int64_t bytes() const;
  [[nodiscard]] void* data() const { return data_; }
  template <typename T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_);
  }
  [[nodiscard]] Pool& pool() const { return *pool_; }
  [[nodiscard]] const Device& device() const { return pool_->device(); }

  // The same elements under another shape of equal size.
  [[nodiscard]] Tensor view(Shape shape) const;
  // Rows [begin, end) of the first dimension, sharing the buffer.
  [[nodiscard]] Tensor rows(std::int64_t begin, std::int64_t end) const;
  void fill_zero() const;

 private:
  std::shared_ptr<void> buffer_;
  void* data_ = nullptr;
  Shape shape_;
  std::int64_t size_ = 0;
  DType dtype_ = DType::kF32;
  Pool* pool_ = nullptr;
};

}  // namespace mt
