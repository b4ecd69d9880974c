#include "tensor/tensor.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "base/error.h"

namespace mt {

namespace {

// Sizes are rounded up to a sixteenth of their power of two, so that a released block fits again
// and at most 6 % is lost.
std::int64_t rounded(std::int64_t bytes) {
  const auto size = static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 64));
  const std::uint64_t step = std::max<std::uint64_t>(64, std::bit_floor(size) / 16);
  return static_cast<std::int64_t>((size + step - 1) / step * step);
}

}  // namespace

std::int64_t element_count(const Shape& shape) {
  std::int64_t count = 1;
  bool fits = true;
  for (const std::int64_t extent : shape) {
    MT_ASSERT(extent >= 0);
    fits = fits && !__builtin_mul_overflow(count, std::max<std::int64_t>(extent, 1), &count);
  }
  if (!fits) {
    throw UsageError(cat("a tensor of shape ", shape_text(shape), " has more than 2^63 elements"));
  }
  return std::find(shape.begin(), shape.end(), 0) == shape.end() ? count : 0;
}

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    text += cat(text.size() > 1 ? ", " : "", extent);
  }
  return text + "]";
}

Device cpu_device(const std::string& set, int threads) {
  return make_cpu_device(set.c_str(), threads);
}

std::string cpu_kernel_set(const std::string& set) {
  return cpu_kernels(set.c_str()).name;
}

struct Pool::State {
  // Blocks of one rounded size.
  struct Blocks {
    std::int64_t taken = 0;    // from the system, in use or not
    std::vector<void*> spare;  // has room for all that were taken, so that a release cannot fail
  };
  Device device;
  std::map<std::int64_t, Blocks> blocks;
  MemoryUse use;
  std::int64_t current_total = 0;

  explicit State(const Device& of) : device(of) {}
  ~State() { release_spare(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Null if there is no spare block of just this size. A larger one is not taken: another tensor of
  // the step may be its owner, and a repeated step would then need more than it released.
  void* take_spare(std::int64_t size) {
    const auto at = blocks.find(size);
    if (at == blocks.end() || at->second.spare.empty()) {
      return nullptr;
    }
    void* const block = at->second.spare.back();
    at->second.spare.pop_back();
    return block;
  }

  void* take_from_system(std::int64_t size) {
    Blocks& same = blocks[size];
    same.spare.reserve(static_cast<std::size_t>(same.taken) + 1);
    void* block = device.runtime->allocate(static_cast<std::size_t>(size));
    if (block == nullptr) {
      release_spare();
      block = device.runtime->allocate(static_cast<std::size_t>(size));
    }
    if (block != nullptr) {
      ++same.taken;
      ++use.system_allocations;
      use.system_bytes += size;
    }
    return block;
  }

  void release_spare() {
    for (auto& [size, same] : blocks) {
      for (void* const block : same.spare) {
        device.runtime->release(block, static_cast<std::size_t>(size));
        use.system_bytes -= size;
        --same.taken;
      }
      same.spare.clear();
    }
  }

  void count(std::int64_t bytes, MemoryKind kind) {
    const auto k = static_cast<std::size_t>(kind);
    use.current[k] += bytes;
    use.peak[k] = std::max(use.peak[k], use.current[k]);
    current_total += bytes;
    use.peak_total = std::max(use.peak_total, current_total);
  }
};

Pool::Pool(const Device& device) : state_(std::make_shared<State>(device)) {}

std::shared_ptr<void> Pool::allocate(std::int64_t bytes, MemoryKind kind) {
  MT_ASSERT(bytes >= 0);
  const auto refuse = [&] {
    throw EnvironmentError(cat("out of memory: no ", bytes, " bytes for a tensor beside the ",
                               state_->current_total, " in use"));
  };
  if (bytes > std::int64_t{1} << 62) {
    refuse();
  }
  const std::int64_t size = rounded(bytes);
  void* block = state_->take_spare(size);
  if (block == nullptr) {
    block = state_->take_from_system(size);
  }
  if (block == nullptr) {
    refuse();
  }
  state_->count(bytes, kind);
  // The state lives as long as its last block. If this throws, the block has been given back.
  return {block, [state = state_, size, bytes, kind](void* released) {
            state->count(-bytes, kind);
            state->blocks.find(size)->second.spare.push_back(released);
          }};
}

void Pool::release_spare() {
  state_->release_spare();
}

const Device& Pool::device() const {
  return state_->device;
}

MemoryUse Pool::use() const {
  return state_->use;
}

Tensor::Tensor(Pool& pool, Shape shape, DType dtype, MemoryKind kind)
    : shape_(std::move(shape)), size_(element_count(shape_)), dtype_(dtype), pool_(&pool) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(size_, static_cast<std::int64_t>(dtype_size(dtype)), &bytes)) {
    throw UsageError(cat("a tensor of shape ", shape_text(shape_), " has more than 2^63 bytes"));
  }
  buffer_ = pool.allocate(bytes, kind);
  data_ = buffer_.get();
}

Tensor Tensor::zero(Pool& pool, Shape shape, DType dtype, MemoryKind kind) {
  Tensor tensor(pool, std::move(shape), dtype, kind);
  tensor.fill_zero();
  return tensor;
}

std::int64_t Tensor::dim(int i) const {
  const int dims = static_cast<int>(shape_.size());
  MT_ASSERT(i >= -dims && i < dims);
  return shape_[static_cast<std::size_t>(i < 0 ? i + dims : i)];
}

std::int64_t Tensor::bytes() const {
  return size_ * static_cast<std::int64_t>(dtype_size(dtype_));
}

Tensor Tensor::view(Shape shape) const {
  MT_ASSERT(element_count(shape) == size_);
  Tensor other = *this;
  other.shape_ = std::move(shape);
  return other;
}

Tensor Tensor::rows(std::int64_t begin, std::int64_t end) const {
  MT_ASSERT(!shape_.empty() && begin >= 0 && begin <= end && end <= shape_[0]);
  const std::int64_t row = shape_[0] == 0 ? 0 : size_ / shape_[0];
  Tensor part = *this;
  part.shape_[0] = end - begin;
  part.size_ = row * (end - begin);
  part.data_ =
      static_cast<std::byte*>(data_) + begin * row * static_cast<std::int64_t>(dtype_size(dtype_));
  return part;
}

void Tensor::fill_zero() const {
  if (size_ > 0) {
    device().runtime->fill_zero(data_, static_cast<std::size_t>(bytes()));
  }
}

}  // namespace mt
