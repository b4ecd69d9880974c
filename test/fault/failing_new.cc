// A library for LD_PRELOAD that makes allocations fail: the N-th that the program asks for since
// main began, or all from the N-th on. Counted are operator new in all its forms, and
// aligned_alloc, from which the pool of tensors takes its blocks; malloc, which the C libraries
// use, is left alone.
//   MT_FAIL_AT=N      the N-th fails (0 or absent: none)
//   MT_FAIL_FROM=1    all after it fail too
//   MT_FAIL_COUNT=F   at the end F gets how many were asked for since main began, and before
//   MT_FAIL_SITES=F   F gets a line with N for each N whose chain of callers is a new one
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>

namespace {

std::atomic<long> counted{0}, before_main{0};
std::atomic<bool> in_main{false};
long fail_at = 0;
bool fail_from = false;
const char* count_file = nullptr;
int sites_file = -1;

// Chains of callers already seen, by hash; zero is a free place.
std::mutex sites_lock;
std::size_t sites[std::size_t{1} << 18];

void note_site(long n) {
  constexpr int kDepth = 24;
  void* frames[kDepth];
  const int depth = ::backtrace(frames, kDepth);
  std::size_t hash = 1469598103934665603U;
  for (int i = 0; i < depth; ++i) {
    hash = (hash ^ reinterpret_cast<std::size_t>(frames[i])) * 1099511628211U;
  }
  const std::lock_guard<std::mutex> guard(sites_lock);
  constexpr std::size_t kMask = sizeof sites / sizeof sites[0] - 1;
  for (std::size_t at = hash & kMask, steps = 0; steps <= kMask; at = (at + 1) & kMask, ++steps) {
    if (sites[at] == hash) return;
    if (sites[at] != 0) continue;
    sites[at] = hash;
    static_cast<void>(::dprintf(sites_file, "%ld\n", n));
    return;
  }
}

bool fails() {
  if (!in_main.load()) {
    ++before_main;
    return false;
  }
  const long n = ++counted;
  const bool now = fail_at > 0 && (fail_from ? n >= fail_at : n == fail_at);
  if (sites_file >= 0) note_site(n);
  return now;
}

void* take(std::size_t bytes, std::size_t alignment) {
  if (fails()) return nullptr;
  if (bytes == 0) bytes = 1;
  void* block = nullptr;
  if (alignment <= alignof(std::max_align_t)) return std::malloc(bytes);
  return posix_memalign(&block, alignment, bytes) == 0 ? block : nullptr;
}

void* take_or_throw(std::size_t bytes, std::size_t alignment) {
  void* const block = take(bytes, alignment);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

void write_count() {
  if (count_file == nullptr) return;
  const int fd = ::open(count_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return;
  static_cast<void>(::dprintf(fd, "%ld %ld\n", counted.load(), before_main.load()));
  ::close(fd);
}

int (*real_main)(int, char**, char**) = nullptr;

int counting_main(int argc, char** argv, char** environment) {
  if (const char* text = std::getenv("MT_FAIL_AT")) fail_at = std::atol(text);
  fail_from = std::getenv("MT_FAIL_FROM") != nullptr;
  count_file = std::getenv("MT_FAIL_COUNT");
  if (const char* name = std::getenv("MT_FAIL_SITES")) {
    // Far from the descriptors that the program gets.
    const int fd = ::open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    sites_file = ::fcntl(fd, F_DUPFD_CLOEXEC, 500);
    ::close(fd);
  }
  std::atexit(write_count);
  in_main = true;
  return real_main(argc, argv, environment);
}

}  // namespace

void* operator new(std::size_t bytes) {
  return take_or_throw(bytes, 0);
}
void* operator new[](std::size_t bytes) {
  return take_or_throw(bytes, 0);
}
void* operator new(std::size_t bytes, std::align_val_t a) {
  return take_or_throw(bytes, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t bytes, std::align_val_t a) {
  return take_or_throw(bytes, static_cast<std::size_t>(a));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return take(bytes, 0);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return take(bytes, 0);
}
void* operator new(std::size_t bytes, std::align_val_t a, const std::nothrow_t&) noexcept {
  return take(bytes, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t bytes, std::align_val_t a, const std::nothrow_t&) noexcept {
  return take(bytes, static_cast<std::size_t>(a));
}
void operator delete(void* block) noexcept {
  std::free(block);
}
void operator delete[](void* block) noexcept {
  std::free(block);
}
void operator delete(void* block, std::size_t) noexcept {
  std::free(block);
}
void operator delete[](void* block, std::size_t) noexcept {
  std::free(block);
}
void operator delete(void* block, std::align_val_t) noexcept {
  std::free(block);
}
void operator delete[](void* block, std::align_val_t) noexcept {
  std::free(block);
}
void operator delete(void* block, std::size_t, std::align_val_t) noexcept {
  std::free(block);
}
void operator delete[](void* block, std::size_t, std::align_val_t) noexcept {
  std::free(block);
}
void operator delete(void* block, const std::nothrow_t&) noexcept {
  std::free(block);
}
void operator delete[](void* block, const std::nothrow_t&) noexcept {
  std::free(block);
}

#pragma GCC visibility push(default)
extern "C" {

void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  if (fails()) return nullptr;
  void* block = nullptr;
  return posix_memalign(&block, alignment, bytes) == 0 ? block : nullptr;
}

// glibc's start of a program: main is taken over, to know when it begins.
int __libc_start_main(int (*main)(int, char**, char**), int argc, char** argv, void (*init)(),
                      void (*fini)(), void (*rtld_fini)(), void* stack_end) {
  real_main = main;
  using Start =
      int (*)(int (*)(int, char**, char**), int, char**, void (*)(), void (*)(), void (*)(), void*);
  const auto start = reinterpret_cast<Start>(::dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(counting_main, argc, argv, init, fini, rtld_fini, stack_end);
}

}  // extern "C"
#pragma GCC visibility pop
