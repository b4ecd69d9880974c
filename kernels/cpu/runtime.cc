// The CPU's memory and threads. Compiled once, without instruction set flags.
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/error.h"
#include "base/threads.h"
#include "kernels/cpu/kernel_set.h"
#include "kernels/device.h"

namespace mt::cpu {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

constexpr std::size_t alignment_of_block(std::size_t bytes) {
  return bytes >= kHugePage ? kHugePage : kCacheLine;
}

void* allocate(std::size_t bytes) {
  const std::size_t alignment = alignment_of_block(bytes);
  if (bytes > SIZE_MAX - alignment) {
    return nullptr;
  }
  const std::size_t rounded =
      bytes == 0 ? alignment : (bytes + alignment - 1) / alignment * alignment;
  void* block = std::aligned_alloc(alignment, rounded);
  if (block != nullptr && alignment == kHugePage) {
    // Advice only: without huge pages everything works, with less bandwidth.
    static_cast<void>(madvise(block, rounded, MADV_HUGEPAGE));
  }
  return block;
}

void release(void* block, std::size_t /*bytes*/) {
  std::free(block);
}

void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) {
    std::memmove(to, from, bytes);
  }
}

void fill_zero(void* block, std::size_t bytes) {
  if (bytes > 0) {
    std::memset(block, 0, bytes);
  }
}

// A kernel returns when it is done.
void synchronize() {}

// More than the 1,024 processors of a cpu_set_t may be there: the set grows until the kernel takes
// it.
int cores_of_process() {
  for (int processors = 1024; processors <= 1 << 20; processors *= 2) {
    cpu_set_t* const set = CPU_ALLOC(processors);
    if (set == nullptr) {
      break;
    }
    const std::size_t size = CPU_ALLOC_SIZE(processors);
    const bool known = sched_getaffinity(0, size, set) == 0;
    const int count = known ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (known) {
      return count > 0 ? count : 1;
    }
  }
  return 1;
}

struct Block {
  void* start = nullptr;
  std::size_t bytes = 0;

  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { release(start, bytes); }
};

}  // namespace

void* scratch(std::size_t bytes) {
  // One a thread and for its life: kernels are plain functions, and have no other place to keep
  // memory between two calls.
  thread_local Block block;
  if (bytes > block.bytes || block.start == nullptr) {
    release(block.start, block.bytes);
    block.bytes = 0;
    block.start = allocate(bytes);
    if (block.start == nullptr) {
      throw EnvironmentError(cat("no memory for ", bytes, " bytes of a kernel's scratch"));
    }
    block.bytes = bytes;
  }
  return block.start;
}

}  // namespace mt::cpu

namespace mt {

void copy_past_cache(void* to, const void* from, std::size_t bytes) {
  auto* target = static_cast<unsigned char*>(to);
  const auto* source = static_cast<const unsigned char*>(from);
#if defined(__SSE2__)
  constexpr std::size_t kLine = 64;
  const std::size_t skew = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  const std::size_t head = std::min(bytes, skew);
  std::memcpy(target, source, head);
  std::size_t i = head;
  for (; i + kLine <= bytes; i += kLine) {
    for (std::size_t j = i; j < i + kLine; j += sizeof(__m128i)) {
      const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + j));
      _mm_stream_si128(reinterpret_cast<__m128i*>(target + j), x);
    }
  }
  _mm_sfence();
  target += i, source += i, bytes -= i;
#endif
  if (bytes > 0) std::memcpy(target, source, bytes);
}

Device make_cpu_device(const char* set, int threads) {
  constexpr int kMostThreads = 4096;
  if (threads < 0 || threads > kMostThreads) {
    throw UsageError(cat("number of threads ", threads,
                         ": expected 0 (the cores of this process) to ", kMostThreads));
  }
  static constexpr DeviceRuntime kRuntime{.name = "cpu",
                                          .allocate = cpu::allocate,
                                          .release = cpu::release,
                                          .copy = cpu::copy,
                                          .fill_zero = cpu::fill_zero,
                                          .synchronize = cpu::synchronize};
  const Kernels& kernels = cpu_kernels(set);
  set_threads(threads == 0 ? cpu::cores_of_process() : threads);
  return {.runtime = &kRuntime, .kernels = &kernels};
}

}  // namespace mt
