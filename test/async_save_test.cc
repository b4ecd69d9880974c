// Saves in the background: the bytes of one in the foreground, whatever happens to the content.
#include "ckpt/async_save.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "base/error.h"
#include "io/hdf5.h"
#include "test/checkpoint_fixture.h"

namespace {

namespace fs = std::filesystem;
using mt::RunSaver;
using mt::testing_data::bytes_of;
using mt::testing_data::put;
using mt::testing_data::sample_checkpoint;

class AsyncSave : public mt::testing_data::CheckpointTest {
 protected:
  AsyncSave() { fs::create_directory(path("run")); }
  [[nodiscard]] RunSaver::Settings settings(std::int64_t keep = 0) const {
    return {.run = path("run"), .keep = keep, .before = {}};
  }
  mt::Pool pool_{mt::cpu_device("baseline", 1)};
};

TEST_F(AsyncSave, writes_what_the_content_was_when_it_was_started) {
  RunSaver saver(settings(2), *world_);
  for (const int iteration : {1, 2, 3}) {
    auto sample = sample_checkpoint(iteration);
    saver.start(sample.content, false, pool_);
    for (const auto& values : sample.values) std::fill(values->begin(), values->end(), 0xEE);
    EXPECT_TRUE(saver.in_flight());
    const RunSaver::Outcome outcome = saver.wait();
    EXPECT_FALSE(saver.in_flight());
    EXPECT_TRUE(outcome.committed);
    EXPECT_EQ(outcome.failure, "");
    EXPECT_EQ(outcome.iteration, iteration);
  }
  EXPECT_FALSE(fs::exists(path("run/iter_0000001")));
  save("plain", 3);
  EXPECT_EQ(files("plain"), files("run/iter_0000003"));
  for (const std::string& file : files("plain")) {
    EXPECT_EQ(bytes_of(path("plain/" + file)), bytes_of(path("run/iter_0000003/" + file))) << file;
  }
}

TEST_F(AsyncSave, takes_its_memory_once) {
  RunSaver saver(settings(), *world_);
  const auto sample = sample_checkpoint(1);
  saver.reserve(sample.content, pool_);
  const std::int64_t before = pool_.use().system_allocations;
  EXPECT_GE(pool_.use().peak_total, RunSaver::bytes_of_copy(sample.content));
  for (const int iteration : {1, 2}) {
    saver.start(sample_checkpoint(iteration).content, false, pool_);
    EXPECT_EQ(saver.wait().failure, "");
  }
  EXPECT_EQ(pool_.use().system_allocations, before);
}

TEST_F(AsyncSave, a_failing_system_is_an_outcome_and_the_next_save_works) {
  RunSaver saver(settings(), *world_);
  const auto sample = sample_checkpoint(1);
  fs::remove(path("run"));
  put(path("run"), "in the way");
  saver.start(sample.content, false, pool_);
  const RunSaver::Outcome failed = saver.wait();
  EXPECT_FALSE(failed.committed);
  EXPECT_NE(failed.failure.find("iter_0000001"), std::string::npos) << failed.failure;
  fs::remove(path("run"));
  saver.start(sample.content, false, pool_);
  EXPECT_EQ(saver.wait().failure, "");
  saver.start(sample.content, false, pool_);  // exists, and was not to be replaced
  EXPECT_THROW(static_cast<void>(saver.wait()), mt::UsageError);
  saver.start(sample.content, true, pool_);
  EXPECT_EQ(saver.wait().failure, "");
}

TEST_F(AsyncSave, what_is_refused_before_writing_reaches_the_caller) {
  auto refusing = settings();
  refusing.before = [](const mt::CheckpointContent&) { throw mt::NumericError("not finite"); };
  RunSaver saver(refusing, *world_);
  const auto sample = sample_checkpoint(1);
  saver.start(sample.content, false, pool_);
  EXPECT_THROW(static_cast<void>(saver.wait()), mt::NumericError);
  EXPECT_THROW(static_cast<void>(saver.save(sample.content, false)), mt::NumericError);
  EXPECT_TRUE(fs::is_empty(path("run")));
}

TEST_F(AsyncSave, ends_what_it_began_when_it_is_destroyed) {
  {
    RunSaver saver(settings(), *world_);
    saver.start(sample_checkpoint(1).content, false, pool_);
  }
  EXPECT_EQ(fault("run/iter_0000001"), "");
}

// HDF5 knows no threads; its users here take turns.
TEST_F(AsyncSave, other_hdf5_files_may_be_read_meanwhile) {
  RunSaver saver(settings(), *world_);
  for (int iteration = 1; iteration <= 20; ++iteration) {
    saver.start(sample_checkpoint(iteration).content, false, pool_);
    while (!saver.finished()) {
      const mt::Hdf5Reader reader(path("a/model-pp00-tp00.h5"));
      ASSERT_EQ(reader.read<float>("/model/layers.0.cube").size(), 105U);
    }
    ASSERT_EQ(saver.wait().failure, "");
  }
  EXPECT_NO_THROW(mt::testing_data::check_sample(path("run/iter_0000020"), 20));
}

TEST(BoxDigest, is_the_digest_of_the_whole_however_it_is_cut) {
  std::mt19937 random(3);
  std::vector<unsigned char> data(7 * 9 * 5 * 4);
  for (unsigned char& byte : data) byte = static_cast<unsigned char>(random());
  const mt::Shape shape = {20, 9, 8};
  for (const auto& [offset, extent] : {std::pair<mt::Shape, mt::Shape>{{3, 0, 0}, {7, 9, 5}},
                                       {{3, 2, 1}, {7, 5, 7}},
                                       {{0, 0, 0}, {2, 9, 8}},
                                       {{0, 0, 0}, {0, 9, 8}}}) {
    for (const mt::DType dtype : {mt::DType::kF32, mt::DType::kBf16, mt::DType::kU8}) {
      const std::size_t element = mt::dtype_size(dtype);
      const std::size_t bytes = static_cast<std::size_t>(mt::element_count(extent)) * element;
      mt::BoxDigest digest(dtype, shape, offset, extent);
      for (std::size_t at = 0; at < bytes;) {
        const std::size_t piece = std::min(bytes - at, (1 + random() % 50) * element);
        digest.update(data.data() + at, piece);
        at += piece;
      }
      EXPECT_EQ(digest.digest(), mt::tensor_digest(data.data(), dtype, shape, offset, extent));
    }
  }
}

}  // namespace
