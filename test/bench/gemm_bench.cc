// The rate of the product at the shapes of a transformer, beside the OpenBLAS that is found as a
// yardstick: runs in alternating pairs, and the median of the pairs' ratios counts, because the
// speed of a shared machine changes from minute to minute.
//
//   gemm_bench [THREADS [KERNEL_SET [PAIRS [FILTER]]]]
//
// Prints a table of shape, GFLOP/s (best) of both, median ratio and its range. OpenBLAS chooses its
// kernels itself unless OPENBLAS_CORETYPE says otherwise.
#include <dlfcn.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/device.h"

namespace {

struct Shape {
  const char* name;
  std::int64_t m, n, k;
  bool a_transposed, b_transposed;
};

// GPT-2 124M at 1,024 and 256 tokens, a small model, attention; NT forward, NN dX, TN dW.
constexpr Shape kShapes[] = {
    {"proj NT", 1024, 768, 768, false, true},
    {"proj NT", 256, 768, 768, false, true},
    {"qkv NT", 1024, 2304, 768, false, true},
    {"fc1 NT", 1024, 3072, 768, false, true},
    {"fc2 NT", 1024, 768, 3072, false, true},
    {"logits NT", 1024, 50304, 768, false, true},
    {"logits NT", 256, 50304, 768, false, true},
    {"fc1 dX NN", 1024, 768, 3072, false, false},
    {"fc1 dW TN", 3072, 768, 1024, true, false},
    {"logits dX NN", 1024, 768, 50304, false, false},
    {"logits dW TN", 50304, 768, 1024, true, false},
    {"small fc1 NT", 2048, 1024, 256, false, true},
    {"small logits NT", 1024, 8192, 256, false, true},
    {"tiny fc1 NT", 2048, 512, 128, false, true},
    {"attention QK NT", 256, 256, 64, false, true},
    {"attention PV NN", 1024, 64, 1024, false, false},
    {"square NN", 2048, 2048, 2048, false, false},
    {"decode NT", 1, 3072, 768, false, true},
    {"decode logits NT", 1, 50304, 768, false, true},
    {"decode 4 NT", 4, 3072, 768, false, true},
    {"decode 8 NT", 8, 3072, 768, false, true},
};

using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int,
                       float, float*, int);
using SetThreads = void (*)(int);

struct Blas {
  Sgemm sgemm = nullptr;
  SetThreads set_threads = nullptr;
};

Blas find_blas() {
  Blas blas;
  void* const library = dlopen("libopenblas.so.0", RTLD_NOW);
  if (library != nullptr) {
    blas.sgemm = reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
    blas.set_threads = reinterpret_cast<SetThreads>(dlsym(library, "openblas_set_num_threads"));
    const auto core = reinterpret_cast<char* (*)()>(dlsym(library, "openblas_get_corename"));
    std::printf("# OpenBLAS kernels: %s\n", core == nullptr ? "?" : core());
  }
  return blas;
}

// Of the processor for one thread, which other programs on the machine change least; of the wall
// for more.
double now(int threads) {
  timespec t{};
  clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.size() % 2 == 1 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

struct Matrix {
  const mt::DeviceRuntime& runtime;
  std::size_t bytes;
  float* data;
  Matrix(const mt::DeviceRuntime& r, std::int64_t count, std::uint32_t seed)
      : runtime(r),
        bytes(static_cast<std::size_t>(count) * sizeof(float)),
        data(static_cast<float*>(r.allocate(bytes))) {
    if (data == nullptr) {
      std::fprintf(stderr, "gemm_bench: no memory\n");
      std::exit(4);
    }
    std::minstd_rand random(seed);
    for (std::int64_t i = 0; i < count; ++i) {
      data[i] = static_cast<float>(random()) / 2147483648.0F - 0.5F;
    }
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  ~Matrix() { runtime.release(data, bytes); }
};

void measure(const Shape& s, const mt::Device& device, const Blas& blas, int threads, int pairs) {
  const Matrix a(*device.runtime, s.m * s.k, 1);
  const Matrix b(*device.runtime, s.n * s.k, 2);
  const Matrix c(*device.runtime, s.m * s.n, 3);
  const mt::Gemm gemm{.m = s.m,
                      .n = s.n,
                      .k = s.k,
                      .a = a.data,
                      .lda = s.a_transposed ? s.m : s.k,
                      .a_transposed = s.a_transposed,
                      .b = b.data,
                      .ldb = s.b_transposed ? s.k : s.n,
                      .b_transposed = s.b_transposed,
                      .c = c.data,
                      .ldc = s.n};
  const double flop =
      2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
  const int repeat = std::max(1, static_cast<int>(3e9 / flop));
  const auto ours = [&] {
    for (int i = 0; i < repeat; ++i) {
      device.kernels->gemm(mt::DType::kF32, gemm);
    }
  };
  const auto theirs = [&] {
    constexpr int kRowMajor = 101;
    constexpr int kNo = 111;
    constexpr int kYes = 112;
    for (int i = 0; i < repeat && blas.sgemm != nullptr; ++i) {
      blas.sgemm(kRowMajor, s.a_transposed ? kYes : kNo, s.b_transposed ? kYes : kNo,
                 static_cast<int>(s.m), static_cast<int>(s.n), static_cast<int>(s.k), 1.0F, a.data,
                 static_cast<int>(gemm.lda), b.data, static_cast<int>(gemm.ldb), 0.0F, c.data,
                 static_cast<int>(s.n));
    }
  };
  // Idle threads of either library spin for a while, and would take the other's core.
  const auto settle = [&] {
    if (threads > 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(40));
    }
  };
  ours();
  theirs();
  double best_ours = 1e30;
  double best_theirs = 1e30;
  std::vector<double> ratios;
  for (int i = 0; i < pairs; ++i) {
    settle();
    double start = now(threads);
    ours();
    const double t0 = now(threads) - start;
    settle();
    start = now(threads);
    theirs();
    const double t1 = now(threads) - start;
    best_ours = std::min(best_ours, t0);
    best_theirs = std::min(best_theirs, t1);
    ratios.push_back(t1 / t0);
  }
  const auto range = std::minmax_element(ratios.begin(), ratios.end());
  const double work = flop * repeat * 1e-9;
  std::printf("%-18s %5lld x %5lld x %5lld  %7.1f  %7.1f   %.3f  (%.3f .. %.3f)\n", s.name,
              static_cast<long long>(s.m), static_cast<long long>(s.n), static_cast<long long>(s.k),
              work / best_ours, blas.sgemm == nullptr ? 0.0 : work / best_theirs, median(ratios),
              *range.first, *range.second);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1;
  const mt::Device device = mt::make_cpu_device(argc > 2 ? argv[2] : "", threads);
  const int pairs = argc > 3 ? std::max(1, std::atoi(argv[3])) : 9;
  const std::string filter = argc > 4 ? argv[4] : "";
  const Blas blas = find_blas();
  if (blas.set_threads != nullptr) {
    blas.set_threads(threads);
  }
  std::printf("# kernel set %s, %d thread(s), %d pairs\n", device.kernels->name, threads, pairs);
  std::printf("# %-16s %21s  %7s  %8s  %s\n", "shape", "m x n x k", "GFLOP/s", "OpenBLAS",
              "ratio of the median pair (range)");
  for (const Shape& shape : kShapes) {
    if (filter.empty() || std::string(shape.name).find(filter) != std::string::npos) {
      measure(shape, device, blas, threads, pairs);
    }
  }
  return 0;
}
