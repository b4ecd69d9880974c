// A device's memory and number of threads; with struct Kernels the whole of a backend.
#pragma once

#include <cstddef>

#include "kernels/kernels.h"

namespace mt {

struct DeviceRuntime {
  const char* name;  // "cpu"
  // At least 64-byte aligned; blocks of 2 MiB and more are aligned to and advised as huge pages.
  // Null when there is no memory. Contents are not defined.
  void* (*allocate)(std::size_t bytes);
  void (*release)(void* block, std::size_t bytes);
  void (*copy)(void* to, const void* from, std::size_t bytes);
  void (*fill_zero)(void* block, std::size_t bytes);
  // Blocks until what was started has ended.
  void (*synchronize)();
};

// Between two places of the host's memory, which do not overlap. The target is not kept in the
// caches, nor read before it is written: two thirds of the traffic of a common copy.
void copy_past_cache(void* to, const void* from, std::size_t bytes);

struct Device {
  const DeviceRuntime* runtime;
  const Kernels* kernels;
};

// set: see cpu_kernels(). threads: 0 takes the cores that this process may run on
// (sched_getaffinity).
[[nodiscard]] Device make_cpu_device(const char* set, int threads);

}  // namespace mt
