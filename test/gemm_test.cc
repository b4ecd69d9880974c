// The product: against loops in float64, against its own definition bit for bit, and the same bits
// however it is cut, threaded and compiled.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/device.h"

// With the address sanitizer an allocation that cannot be is to return null, as it does without.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}

namespace mt {
namespace {

std::vector<float> random_floats(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(static_cast<std::size_t>(count));
  for (float& x : v) {
    x = normal(random);
  }
  return v;
}

// One product with its memory: leading dimensions are `gap` longer than the rows, and the matrices
// end where their vectors end, so that a sanitizer sees any access beyond.
struct Case {
  std::int64_t m, n, k;
  bool a_transposed = false, b_transposed = false;
  std::int64_t gap = 0;
  bool add = false, bias = false, residual = false, gelu = false;

  [[nodiscard]] std::string text() const {
    return cat(m, " x ", n, " x ", k, a_transposed ? " T" : " N", b_transposed ? "T" : "N", " gap ",
               gap, add ? " add" : "", bias ? " bias" : "", residual ? " residual" : "",
               gelu ? " gelu" : "");
  }
};

constexpr float kUntouched = -123.25F;

class Product {
 public:
  explicit Product(const Case& c)
      : case_(c),
        lda_((c.a_transposed ? c.m : c.k) + c.gap),
        ldb_((c.b_transposed ? c.k : c.n) + c.gap),
        ldc_(c.n + c.gap),
        a_(random_floats(size(c.a_transposed ? c.k : c.m, lda_, c.gap), 1)),
        b_(random_floats(size(c.b_transposed ? c.n : c.k, ldb_, c.gap), 2)),
        start_(random_floats(size(c.m, ldc_, c.gap), 3)),
        bias_(random_floats(c.n, 4)),
        residual_(random_floats(size(c.m, ldc_, c.gap), 5)),
        c_(start_),
        gelu_(start_.size(), kUntouched) {
    for (std::int64_t i = 0; i < c.m - 1; ++i) {
      for (std::int64_t j = c.n; j < ldc_; ++j) {
        start_[index(i * ldc_ + j)] = kUntouched;
      }
    }
    c_ = start_;
  }

  [[nodiscard]] Gemm gemm() {
    return {.m = case_.m,
            .n = case_.n,
            .k = case_.k,
            .a = a_.data(),
            .lda = lda_,
            .a_transposed = case_.a_transposed,
            .b = b_.data(),
            .ldb = ldb_,
            .b_transposed = case_.b_transposed,
            .c = c_.data(),
            .ldc = ldc_,
            .output = case_.add ? Output::kAdd : Output::kOverwrite,
            .bias = case_.bias ? bias_.data() : nullptr,
            .residual = case_.residual ? residual_.data() : nullptr,
            .gelu = case_.gelu ? gelu_.data() : nullptr};
  }
  // The part of the product for rows [i, i + m), columns [j, j + n), steps [p, p + k).
  [[nodiscard]] Gemm part(std::int64_t i, std::int64_t m, std::int64_t j, std::int64_t n,
                          std::int64_t p, std::int64_t k) {
    Gemm g = gemm();
    g.a = a_.data() + (case_.a_transposed ? p * lda_ + i : i * lda_ + p);
    g.b = b_.data() + (case_.b_transposed ? j * ldb_ + p : p * ldb_ + j);
    g.c = c_.data() + i * ldc_ + j;
    g.m = m;
    g.n = n;
    g.k = k;
    if (g.bias != nullptr) g.bias = bias_.data() + j;
    if (g.residual != nullptr) g.residual = residual_.data() + i * ldc_ + j;
    if (g.gelu != nullptr) g.gelu = gelu_.data() + i * ldc_ + j;
    return g;
  }
  const Product& run(const Kernels& kernels) {
    c_ = start_;
    kernels.gemm(DType::kF32, gemm());
    return *this;
  }
  void reset() { c_ = start_; }

  [[nodiscard]] float a(std::int64_t i, std::int64_t p) const {
    return a_[index(case_.a_transposed ? p * lda_ + i : i * lda_ + p)];
  }
  [[nodiscard]] float b(std::int64_t p, std::int64_t j) const {
    return b_[index(case_.b_transposed ? j * ldb_ + p : p * ldb_ + j)];
  }
  // The definition: one chain, then bias, then residual.
  [[nodiscard]] float chain(std::int64_t i, std::int64_t j) const {
    float sum = case_.add ? start_[index(i * ldc_ + j)] : 0.0F;
    for (std::int64_t p = 0; p < case_.k; ++p) {
      sum = std::fma(a(i, p), b(p, j), sum);
    }
    if (case_.bias) sum += bias_[index(j)];
    if (case_.residual) sum += residual_[index(i * ldc_ + j)];
    return sum;
  }
  // In float64, and the sum of the magnitudes for the tolerance.
  [[nodiscard]] std::pair<double, double> exact(std::int64_t i, std::int64_t j) const {
    double sum = case_.add ? double{start_[index(i * ldc_ + j)]} : 0.0;
    double magnitude = std::abs(sum);
    for (std::int64_t p = 0; p < case_.k; ++p) {
      const double term = double{a(i, p)} * double{b(p, j)};
      sum += term;
      magnitude += std::abs(term);
    }
    for (const auto& [given, x] : {std::pair{case_.bias, bias_[index(j)]},
                                   std::pair{case_.residual, residual_[index(i * ldc_ + j)]}}) {
      sum += given ? double{x} : 0.0;
      magnitude += given ? std::abs(double{x}) : 0.0;
    }
    return {sum, magnitude};
  }
  [[nodiscard]] float c(std::int64_t i, std::int64_t j) const { return c_[index(i * ldc_ + j)]; }
  [[nodiscard]] float gelu(std::int64_t i, std::int64_t j) const {
    return gelu_[index(i * ldc_ + j)];
  }
  // Everything that was written, the gaps included.
  [[nodiscard]] bool same_bits(const Product& other) const {
    return same(c_, other.c_) && same(gelu_, other.gelu_);
  }
  [[nodiscard]] bool gaps_untouched() const {
    for (std::int64_t i = 0; i < case_.m - 1; ++i) {
      for (std::int64_t j = case_.n; j < ldc_; ++j) {
        if (c(i, j) != kUntouched || gelu(i, j) != kUntouched) return false;
      }
    }
    return true;
  }

 private:
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
  static std::int64_t size(std::int64_t rows, std::int64_t ld, std::int64_t gap) {
    return rows * ld - (rows > 0 ? gap : 0);
  }
  static bool same(const std::vector<float>& x, const std::vector<float>& y) {
    return std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
  }

  Case case_;
  std::int64_t lda_, ldb_, ldc_;
  std::vector<float> a_, b_, start_, bias_, residual_, c_, gelu_;
};

// 1, primes, one past a vector, a tile and a block of the contraction.
std::vector<Case> odd_cases() {
  constexpr std::int64_t kSizes[][3] = {
      {1, 1, 1},     {1, 17, 13},  {2, 33, 9},    {3, 64, 40},   {4, 131, 385},
      {5, 7, 3},     {6, 16, 8},   {7, 17, 9},    {13, 31, 33},  {14, 32, 384},
      {15, 33, 385}, {29, 1, 17},  {61, 67, 1},   {97, 50, 71},  {5, 129, 769},
      {203, 40, 30}, {8, 9, 1153}, {2, 50, 1155}, {9, 35, 1030}, {16, 21, 1282}};
  std::vector<Case> cases;
  int number = 0;
  for (const auto& [m, n, k] : kSizes) {
    for (int form = 0; form < 4; ++form) {
      for (int finish = 0; finish < 3; ++finish) {
        Case c{.m = m, .n = n, .k = k};
        c.a_transposed = (form & 1) != 0;
        c.b_transposed = (form & 2) != 0;
        c.gap = number++ % 3 * 5;
        c.add = finish == 1;
        c.bias = finish == 2 || (finish == 0 && number % 2 == 0);
        c.residual = finish == 2;
        c.gelu = finish == 2 || (finish == 0 && number % 4 == 0);
        cases.push_back(c);
      }
    }
  }
  return cases;
}

class GemmTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    try {
      kernels_ = &cpu_kernels(GetParam());
    } catch (const UsageError& error) {
      GTEST_SKIP() << error.what();
    }
    set_threads(2);
  }
  const Kernels* kernels_ = nullptr;
};

TEST_P(GemmTest, every_element_is_the_chain) {
  for (const Case& c : odd_cases()) {
    Product product(c);
    product.run(*kernels_);
    for (std::int64_t i = 0; i < c.m; ++i) {
      for (std::int64_t j = 0; j < c.n; ++j) {
        ASSERT_EQ(product.c(i, j), product.chain(i, j)) << c.text() << " at " << i << ", " << j;
      }
    }
    ASSERT_TRUE(product.gaps_untouched()) << c.text();
  }
}

// A chain of k roundings, of at most half a unit each, in the worst case.
TEST_P(GemmTest, agrees_with_float64) {
  for (const Case& c : odd_cases()) {
    Product product(c);
    product.run(*kernels_);
    for (std::int64_t i = 0; i < c.m; ++i) {
      for (std::int64_t j = 0; j < c.n; ++j) {
        const auto [sum, magnitude] = product.exact(i, j);
        const double tolerance = static_cast<double>(c.k + 2) * 0x1p-24 * magnitude;
        ASSERT_NEAR(product.c(i, j), sum, tolerance) << c.text() << " at " << i << ", " << j;
      }
    }
  }
}

// GELU of the c that was stored; a few units in the last place of its largest term.
TEST_P(GemmTest, gelu_is_that_of_the_result) {
  for (const Case& c : odd_cases()) {
    if (!c.gelu) continue;
    Product product(c);
    product.run(*kernels_);
    for (std::int64_t i = 0; i < c.m; ++i) {
      for (std::int64_t j = 0; j < c.n; ++j) {
        const double x = product.c(i, j);
        const double u = std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
        const double want = 0.5 * x * (1.0 + std::tanh(u));
        ASSERT_NEAR(product.gelu(i, j), want, 1e-6 * std::max(1.0, std::abs(x)))
            << c.text() << " at " << i << ", " << j << " x " << x;
      }
    }
  }
}

// Cuts of rows, columns and both, at places that are no multiple of anything.
TEST_P(GemmTest, rows_and_columns_may_be_cut_anywhere) {
  for (const Case& base : {Case{.m = 83, .n = 150, .k = 401, .bias = true, .gelu = true},
                           Case{.m = 230, .n = 37, .k = 129, .gap = 3, .residual = true},
                           Case{.m = 9, .n = 600, .k = 70, .add = true}}) {
    for (int form = 0; form < 4; ++form) {
      Case c = base;
      c.a_transposed = (form & 1) != 0;
      c.b_transposed = (form & 2) != 0;
      Product whole(c);
      whole.run(*kernels_);
      for (const auto& [row, column] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                                        {3, 16},
                                        {c.m / 2, c.n / 3},
                                        {c.m - 1, c.n - 1},
                                        {5, c.n}}) {
        Product cut(c);
        for (const auto& [i, m] : {std::pair{std::int64_t{0}, row}, std::pair{row, c.m - row}}) {
          for (const auto& [j, n] :
               {std::pair{std::int64_t{0}, column}, std::pair{column, c.n - column}}) {
            kernels_->gemm(DType::kF32, cut.part(i, m, j, n, 0, c.k));
          }
        }
        ASSERT_TRUE(cut.same_bits(whole)) << c.text() << " cut at " << row << ", " << column;
      }
    }
  }
}

TEST_P(GemmTest, the_contraction_may_be_cut_into_consecutive_parts) {
  for (const std::int64_t m : {1, 3, 50}) {
    for (int form = 0; form < 4; ++form) {
      for (const bool add : {false, true}) {
        const Case c{.m = m,
                     .n = 90,
                     .k = 900,
                     .a_transposed = (form & 1) != 0,
                     .b_transposed = (form & 2) != 0,
                     .add = add};
        Product whole(c);
        whole.run(*kernels_);
        Product cut(c);
        std::int64_t p = 0;
        for (const std::int64_t steps : {1, 0, 7, 376, 16, 385, 115}) {
          Gemm part = cut.part(0, m, 0, c.n, p, steps);
          part.output = p == 0 && !add ? Output::kOverwrite : Output::kAdd;
          kernels_->gemm(DType::kF32, part);
          p += steps;
        }
        ASSERT_EQ(p, c.k);
        ASSERT_TRUE(cut.same_bits(whole)) << c.text();
      }
    }
  }
}

// Large enough for several parts, blocks and tasks.
const std::vector<Case>& large_cases() {
  static const std::vector<Case> cases = {
      {.m = 300, .n = 530, .k = 800, .b_transposed = true, .bias = true, .gelu = true},
      {.m = 2100, .n = 40, .k = 50, .a_transposed = true},
      {.m = 40, .n = 3000, .k = 100, .residual = true},
      {.m = 2, .n = 1000, .k = 300, .b_transposed = true, .add = true},
      {.m = 4, .n = 1000, .k = 300, .bias = true}};
  return cases;
}

TEST_P(GemmTest, threads_change_no_bit) {
  for (const Case& c : large_cases()) {
    set_threads(1);
    Product one(c);
    one.run(*kernels_);
    for (const int count : {2, 3, 7}) {
      set_threads(count);
      Product many(c);
      many.run(*kernels_);
      ASSERT_TRUE(many.same_bits(one)) << c.text() << " threads " << count;
    }
  }
}

TEST_P(GemmTest, has_the_bits_of_the_baseline) {
  const Kernels& baseline = cpu_kernels("baseline");
  std::vector<Case> cases = odd_cases();
  cases.insert(cases.end(), large_cases().begin(), large_cases().end());
  for (const Case& c : cases) {
    Product expected(c);
    expected.run(baseline);
    Product product(c);
    product.run(*kernels_);
    ASSERT_TRUE(product.same_bits(expected)) << c.text();
  }
}

// More than one part of the contraction and of the rows (gemm.cc, Cut).
TEST_P(GemmTest, many_parts_make_the_chain) {
  for (const Case& c : {Case{.m = 2060, .n = 19, .k = 1100, .b_transposed = true},
                        Case{.m = 33, .n = 20, .k = 70000, .add = true}}) {
    Product product(c);
    product.run(*kernels_);
    for (std::int64_t i = 0; i < c.m; i += 29) {
      for (std::int64_t j = 0; j < c.n; j += 3) {
        ASSERT_EQ(product.c(i, j), product.chain(i, j)) << c.text() << " at " << i << ", " << j;
      }
    }
  }
}

TEST_P(GemmTest, an_empty_contraction_gives_what_follows_the_chain) {
  for (const std::int64_t m : {1, 9}) {
    Product product({.m = m, .n = 21, .k = 0, .gap = 2, .bias = true, .gelu = true});
    product.run(*kernels_);
    Product kept({.m = m, .n = 21, .k = 0, .add = true});
    kept.run(*kernels_);
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < 21; ++j) {
        ASSERT_EQ(product.c(i, j), product.chain(i, j));
        ASSERT_EQ(kept.c(i, j), kept.chain(i, j));
      }
    }
  }
}

TEST_P(GemmTest, an_empty_output_is_left_alone) {
  kernels_->gemm(DType::kF32, Gemm{.m = 0, .n = 5, .k = 3});
  kernels_->gemm(DType::kF32, Gemm{.m = 5, .n = 0, .k = 3});
}

// Neighbours of an infinite or undefined element, the padding of panels among them, stay finite.
TEST_P(GemmTest, what_is_not_finite_stays_in_its_row_or_column) {
  Product product({.m = 7, .n = 18, .k = 20, .b_transposed = true});
  Gemm g = product.gemm();
  const_cast<float*>(static_cast<const float*>(g.a))[6 * g.lda + 3] = INFINITY;
  const_cast<float*>(static_cast<const float*>(g.b))[17 * g.ldb + 19] = NAN;
  kernels_->gemm(DType::kF32, g);
  for (std::int64_t i = 0; i < 7; ++i) {
    for (std::int64_t j = 0; j < 18; ++j) {
      ASSERT_EQ(std::isfinite(product.c(i, j)), i != 6 && j != 17) << i << ", " << j;
    }
  }
}

TEST_P(GemmTest, other_types_are_refused) {
  try {
    kernels_->gemm(DType::kBf16, Gemm{.m = 1, .n = 1, .k = 1});
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("bf16"), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(sets, GemmTest, testing::Values("baseline", "avx2", "avx512"),
                         [](const auto& info) { return std::string(info.param); });

TEST(CpuKernels, names_its_sets_when_asked_for_another) {
  try {
    static_cast<void>(cpu_kernels("sse9"));
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("sse9"), std::string::npos) << message;
    EXPECT_NE(message.find("baseline"), std::string::npos) << message;
  }
}

TEST(CpuKernels, chooses_the_best_that_runs) {
  const std::string chosen = cpu_kernels("").name;
  EXPECT_EQ(chosen, cpu_kernels(nullptr).name);
  for (const char* better : {"avx512", "avx2", "baseline"}) {
    try {
      EXPECT_EQ(chosen, cpu_kernels(better).name);
      return;
    } catch (const UsageError&) {  // not on this processor
    }
  }
}

TEST(CpuDevice, allocates_aligned_blocks_and_sets_the_threads) {
  const Device device = make_cpu_device("", 3);
  EXPECT_EQ(threads(), 3);
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{100}, std::size_t{3} << 20}) {
    void* const block = device.runtime->allocate(bytes);
    ASSERT_NE(block, nullptr);
    const std::size_t alignment = bytes >= (std::size_t{2} << 20) ? std::size_t{2} << 20 : 64;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % alignment, 0U);
    device.runtime->fill_zero(block, bytes);
    device.runtime->release(block, bytes);
  }
  EXPECT_EQ(device.runtime->allocate(SIZE_MAX), nullptr);
  EXPECT_EQ(device.runtime->allocate(std::size_t{1} << 60), nullptr);
  static_cast<void>(make_cpu_device("baseline", 0));
  EXPECT_GE(threads(), 1);
  EXPECT_THROW(static_cast<void>(make_cpu_device("", -1)), UsageError);
}

}  // namespace
}  // namespace mt
