#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "base/error.h"

namespace mt {
namespace {

// A device that knows what it has given out, and can run out.
struct Ledger {
  std::map<void*, std::size_t> blocks;
  std::size_t bytes = 0, limit = ~std::size_t{0};
  int allocations = 0;
};
Ledger& ledger() {
  static Ledger one;
  return one;
}

void* counted_allocate(std::size_t bytes) {
  if (ledger().bytes + bytes > ledger().limit) {
    return nullptr;
  }
  void* const block = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (block == nullptr) {
    return nullptr;
  }
  ledger().blocks[block] = bytes;
  ledger().bytes += bytes;
  ++ledger().allocations;
  return block;
}
void counted_release(void* block, std::size_t bytes) {
  ASSERT_EQ(ledger().blocks.at(block), bytes);
  ledger().blocks.erase(block);
  ledger().bytes -= bytes;
  std::free(block);
}
void copy(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
void fill_zero(void* block, std::size_t bytes) {
  std::memset(block, 0, bytes);
}
void nothing() {}

constexpr DeviceRuntime kRuntime{"counted", counted_allocate, counted_release,
                                 copy,      fill_zero,        nothing};

class PoolTest : public testing::Test {
 protected:
  PoolTest() { ledger() = Ledger{}; }
  ~PoolTest() override { EXPECT_TRUE(ledger().blocks.empty()) << "blocks were not given back"; }
  PoolTest(const PoolTest&) = delete;
  PoolTest& operator=(const PoolTest&) = delete;
  static Device device() { return {&kRuntime, nullptr}; }
};
constexpr auto kWork = MemoryKind::kWorkspace;
constexpr auto kWeights = MemoryKind::kWeights;

TEST_F(PoolTest, a_repeated_step_takes_nothing_from_the_system) {
  Pool pool(device());
  std::mt19937 random(9);
  const auto step = [&](std::uint32_t seed) {
    std::mt19937 sizes(seed);
    std::vector<Tensor> live;
    for (int i = 0; i < 200; ++i) {
      live.emplace_back(pool, Shape{static_cast<std::int64_t>(sizes() % 100000)}, DType::kF32,
                        kWork);
      if (sizes() % 2 == 0) {
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(sizes() % live.size()));
      }
    }
  };
  step(1);
  const std::int64_t before = pool.use().system_allocations;
  EXPECT_EQ(before, ledger().allocations);
  for (int i = 0; i < 5; ++i) {
    step(1);
  }
  EXPECT_EQ(pool.use().system_allocations, before);
  EXPECT_EQ(pool.use().system_bytes, static_cast<std::int64_t>(ledger().bytes));
}

TEST_F(PoolTest, blocks_that_live_do_not_overlap) {
  Pool pool(device());
  std::mt19937 random(10);
  std::vector<std::pair<Tensor, unsigned char>> live;
  for (int i = 0; i < 3000; ++i) {
    if (live.size() < 20 || random() % 2 == 0) {
      Tensor tensor(pool, {static_cast<std::int64_t>(random() % 5000)}, DType::kU8, kWork);
      const auto mark = static_cast<unsigned char>(random());
      if (tensor.size() > 0) {
        std::memset(tensor.data(), mark, static_cast<std::size_t>(tensor.size()));
      }
      live.emplace_back(std::move(tensor), mark);
    } else {
      const std::size_t at = random() % live.size();
      for (std::int64_t k = 0; k < live[at].first.size(); ++k) {
        ASSERT_EQ(live[at].first.as<unsigned char>()[k], live[at].second);
      }
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
}

TEST_F(PoolTest, counts_bytes_by_kind_with_peaks) {
  Pool pool(device());
  const auto at = [](MemoryKind kind) { return static_cast<std::size_t>(kind); };
  {
    const Tensor weights(pool, {10, 10}, DType::kF32, kWeights);
    EXPECT_EQ(pool.use().current[at(kWeights)], 400);
    { const Tensor a(pool, {100}, DType::kU8, kWork); }
    const Tensor b(pool, {50}, DType::kU16, kWork);
    const Tensor shared = b;
    EXPECT_EQ(pool.use().current[at(kWork)], 100);
  }
  const MemoryUse use = pool.use();
  EXPECT_EQ(use.current[at(kWeights)], 0);
  EXPECT_EQ(use.current[at(kWork)], 0);
  EXPECT_EQ(use.peak[at(kWeights)], 400);
  EXPECT_EQ(use.peak[at(kWork)], 100);
  EXPECT_EQ(use.peak_total, 500);
  EXPECT_EQ(use.peak[at(MemoryKind::kActivations)], 0);
}

TEST_F(PoolTest, little_is_lost_by_rounding) {
  Pool pool(device());
  std::vector<Tensor> live;
  for (std::int64_t bytes = 1; bytes < (std::int64_t{1} << 28); bytes = bytes * 3 + 1) {
    const std::int64_t before = pool.use().system_bytes;
    live.emplace_back(pool, Shape{bytes}, DType::kU8, kWork);
    const std::int64_t taken = pool.use().system_bytes - before;
    EXPECT_GE(taken, bytes);
    EXPECT_LE(taken, bytes + std::max<std::int64_t>(64, bytes / 16));
  }
}

TEST_F(PoolTest, gives_back_spare_blocks_before_it_refuses) {
  Pool pool(device());
  ledger().limit = 10000;
  { const Tensor a(pool, {6000}, DType::kU8, kWork); }
  EXPECT_NO_THROW(Tensor(pool, {9000}, DType::kU8, kWork));
  const Tensor kept(pool, {5000}, DType::kU8, kWork);
  try {
    const Tensor b(pool, {8000}, DType::kU8, kWork);
    ADD_FAILURE();
  } catch (const EnvironmentError& error) {
    EXPECT_STREQ(error.what(), "out of memory: no 8000 bytes for a tensor beside the 5000 in use");
  }
  EXPECT_EQ(pool.use().current[static_cast<std::size_t>(kWork)], 5000);
}

TEST_F(PoolTest, a_block_may_outlive_its_pool) {
  std::shared_ptr<void> block;
  {
    Pool pool(device());
    block = pool.allocate(100, kWork);
  }
  std::memset(block.get(), 1, 100);
  EXPECT_EQ(ledger().blocks.size(), 1U);
  block.reset();
  EXPECT_TRUE(ledger().blocks.empty());
}

TEST_F(PoolTest, absurd_shapes_are_refused_before_anything_is_taken) {
  Pool pool(device());
  const std::int64_t big = std::int64_t{1} << 32;
  EXPECT_THROW(Tensor(pool, {big, big}, DType::kU8, kWork), UsageError);
  EXPECT_THROW(Tensor(pool, {big, big, 0}, DType::kU8, kWork), UsageError);
  EXPECT_THROW(Tensor(pool, {big, big / 4}, DType::kF32, kWork), UsageError);
  EXPECT_THROW(Tensor(pool, {big, big / 4}, DType::kU8, kWork), EnvironmentError);
  EXPECT_THROW(Tensor(pool, {-1}, DType::kU8, kWork), Error);
  EXPECT_EQ(ledger().allocations, 0);
}

TEST_F(PoolTest, views_and_rows_share_the_buffer) {
  Pool pool(device());
  const Tensor x = Tensor::zero(pool, {4, 3, 2}, DType::kI32, kWork);
  for (int i = 0; i < 24; ++i) {
    ASSERT_EQ(x.as<std::int32_t>()[i], 0);
    x.as<std::int32_t>()[i] = i;
  }
  EXPECT_EQ(x.dim(0), 4);
  EXPECT_EQ(x.dim(-1), 2);
  EXPECT_EQ(x.bytes(), 96);
  const Tensor rows = x.rows(1, 3);
  EXPECT_EQ(rows.shape(), (Shape{2, 3, 2}));
  EXPECT_EQ(rows.as<std::int32_t>()[0], 6);
  EXPECT_EQ(rows.size(), 12);
  const Tensor flat = rows.view({12});
  EXPECT_EQ(flat.as<std::int32_t>()[11], 17);
  flat.fill_zero();
  EXPECT_EQ(x.as<std::int32_t>()[5], 5);
  EXPECT_EQ(x.as<std::int32_t>()[6], 0);
  EXPECT_EQ(x.as<std::int32_t>()[17], 0);
  EXPECT_EQ(x.as<std::int32_t>()[18], 18);
  EXPECT_EQ(x.rows(2, 2).size(), 0);
  EXPECT_THROW(static_cast<void>(x.view({5, 5})), Error);
  EXPECT_THROW(static_cast<void>(x.rows(3, 5)), Error);
  EXPECT_THROW(static_cast<void>(x.dim(3)), Error);
  EXPECT_EQ(Tensor::zero(pool, {}, DType::kF32, kWork).size(), 1);
  EXPECT_EQ(Tensor::zero(pool, {0, 5}, DType::kF32, kWork).rows(0, 0).size(), 0);
  EXPECT_FALSE(Tensor().defined());
  EXPECT_EQ(shape_text({8, 128, 512}), "[8, 128, 512]");
  EXPECT_EQ(shape_text({}), "[]");
}

}  // namespace
TEST(Copy, past_the_cache_moves_every_byte_and_no_other) {
  std::vector<unsigned char> from(1000), to(1000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i % 251 + 1);
  for (const std::size_t skew : {0, 1, 16, 63, 64}) {
    for (const std::size_t bytes : {0, 1, 15, 63, 64, 65, 200, 640}) {
      std::fill(to.begin(), to.end(), 0);
      copy_past_cache(to.data() + skew, from.data() + 7, bytes);
      for (std::size_t i = 0; i < to.size(); ++i) {
        const bool inside = i >= skew && i < skew + bytes;
        ASSERT_EQ(to[i], inside ? from[i - skew + 7] : 0) << skew << " " << bytes << " " << i;
      }
    }
  }
}

}  // namespace mt
