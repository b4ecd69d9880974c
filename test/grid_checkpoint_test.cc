// Checkpoints of grids: written by any, read by any, equal to that of one rank; a rank that fails
// leaves nothing, and all say so.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "ckpt/async_save.h"
#include "test/checkpoint_fixture.h"
#include "test/grid_rank.h"

namespace {

namespace fs = std::filesystem;
using Rank = mt::testing_data::GridRank;
using mt::CheckpointContent;
using mt::Communicator;
using mt::Parameter;
using mt::Tensor;
using mt::testing_data::bytes_of;
using mt::testing_data::kLayouts;
using mt::testing_data::Layout;

class GridCheckpoint : public testing::Test {
 protected:
  GridCheckpoint() {
    std::string name = testing::TempDir() + "mt-grid-checkpoint-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~GridCheckpoint() override { fs::remove_all(folder_); }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void save(const Layout& layout, const std::string& directory) const {
    mt::run_local_ranks(layout.ranks(), [&](const Communicator& world) {
      Rank rank(world, layout);
      mt::save_checkpoint(directory, rank.content(), world, false);
    });
  }
  static std::vector<std::string> names(const std::string& directory) {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(directory)) {
      found.push_back(entry.path().filename());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  std::string folder_;
};

TEST_F(GridCheckpoint, every_grid_reads_what_every_grid_wrote) {
  for (const Layout& layout : kLayouts) save(layout, path(layout.name()));
  const mt::CheckpointReader one(path(kLayouts[0].name()));
  for (const Layout& layout : kLayouts) {
    const mt::CheckpointReader reader(path(layout.name()));
    EXPECT_EQ(reader.layout().tensor, layout.tensor);
    EXPECT_EQ(reader.layout().pipeline, layout.pipeline);
    EXPECT_EQ(reader.layout().data, layout.zero ? layout.data : 1);
    EXPECT_EQ(reader.layout().distributed_optimizer, layout.zero);
    ASSERT_EQ(reader.tensors().size(), one.tensors().size()) << layout.name();
    for (const auto& [name, info] : one.tensors()) {
      const auto& found = reader.tensors().at(name);
      EXPECT_EQ(found.shape, info.shape) << layout.name() << " " << name;
      EXPECT_EQ(mt::to_hex(found.digest), mt::to_hex(info.digest)) << layout.name() << " " << name;
    }
    mt::run_local_ranks(layout.ranks(), [&](const Communicator& world) {
      Rank rank(world, layout);
      for (const Layout& from : kLayouts) {
        EXPECT_EQ(rank.difference(path(from.name())), "")
            << from.name() << " read by rank " << world.rank() << " of " << layout.name();
      }
    });
  }
}

TEST_F(GridCheckpoint, replicas_without_a_distributed_optimizer_change_no_byte) {
  save({2, 1, 1, false}, path("a"));
  save({2, 1, 2, false}, path("b"));
  ASSERT_EQ(names(path("a")), names(path("b")));
  for (const std::string& name : names(path("a"))) {
    if (name == "tokenizer") continue;
    EXPECT_EQ(bytes_of(path("a/" + name)), bytes_of(path("b/" + name))) << name;
  }
  EXPECT_EQ(names(path("a")),
            (std::vector<std::string>{"index.h5", "manifest.json", "model-pp00-tp00.h5",
                                      "model-pp00-tp01.h5", "optim-pp00-tp00-dp00.h5",
                                      "optim-pp00-tp01-dp00.h5", "tokenizer"}));
}

// What each rank was told.
class Reports {
 public:
  explicit Reports(int ranks) : texts_(static_cast<std::size_t>(ranks)) {}
  template <typename Body>
  void note(const Communicator& world, const Body& body) {
    std::string text = "nothing";
    try {
      body();
    } catch (const mt::EnvironmentError& error) {
      text = mt::cat("environment: ", error.what());
    } catch (const mt::Error& error) {
      text = mt::cat("status ", static_cast<int>(error.status()), ": ", error.what());
    }
    texts_[static_cast<std::size_t>(world.rank())] = text;
  }
  void all_say(const std::string& begin, const std::string& part) const {
    for (const std::string& text : texts_) {
      EXPECT_EQ(text.substr(0, begin.size()), begin);
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }

 private:
  std::vector<std::string> texts_;
};

// No file of this process may grow beyond so many bytes.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

// Rank 2 of 4 has a tensor of its own that is large.
void add_large(const Communicator& world, const std::vector<float>& numbers,
               CheckpointContent& content) {
  if (world.rank() != 2) return;
  const auto count = static_cast<std::int64_t>(numbers.size());
  content.weights.push_back({"large", {count}, {0}, {count}, mt::DType::kF32, numbers.data()});
}

TEST_F(GridCheckpoint, a_disk_that_fails_one_rank_leaves_nothing_and_all_ranks_report_it) {
  const Layout layout{2, 2, 1, false};
  save(layout, path("run/iter_0000007"));
  const std::vector<float> numbers(1 << 20);
  for (const bool async : {false, true}) {
    const auto before = names(path("run"));
    Reports reports(layout.ranks());
    std::vector<mt::RunSaver::Outcome> outcomes(4), next(4);
    mt::run_local_ranks(layout.ranks(), [&](const Communicator& world) {
      Rank rank(world, layout);
      CheckpointContent content = rank.content();
      const CheckpointContent small = content;
      add_large(world, numbers, content);
      content.iteration = 8;
      mt::Pool pool(mt::cpu_device("baseline", 1));
      mt::RunSaver saver({.run = path("run"), .keep = 0, .before = {}}, world);
      const auto at = static_cast<std::size_t>(world.rank());
      std::unique_ptr<FileLimit> limit;
      if (world.rank() == 0) limit = std::make_unique<FileLimit>(1 << 20);
      world.barrier();
      if (async) {
        saver.start(content, false, pool);
        while (!saver.finished()) std::this_thread::yield();
        outcomes[at] = saver.wait();
      } else {
        outcomes[at] = saver.save(content, false);
        reports.note(world,
                     [&] { mt::save_checkpoint(path("run/iter_0000008"), content, world, false); });
      }
      world.barrier();
      limit.reset();
      world.barrier();
      if (world.rank() == 0) {
        EXPECT_EQ(names(path("run")), before);
      }
      world.barrier();
      next[at] = saver.save(small, true);
    });
    if (!async) reports.all_say("environment: rank 2: ", "model-pp01-tp00.h5");
    for (const mt::RunSaver::Outcome& outcome : outcomes) {
      EXPECT_FALSE(outcome.committed);
      EXPECT_EQ(outcome.failure.substr(0, 8), "rank 2: ");
      EXPECT_NE(outcome.failure.find("File too large"), std::string::npos) << outcome.failure;
    }
    for (const mt::RunSaver::Outcome& outcome : next) {
      EXPECT_TRUE(outcome.committed);
      EXPECT_EQ(outcome.failure, "");
    }
  }
}

TEST_F(GridCheckpoint, all_ranks_are_told_what_one_of_them_refuses) {
  const Layout layout{2, 2, 1, false};
  Reports exists(4), name(4), twice(4), missing(4);
  fs::create_directory(path("there"));
  mt::run_local_ranks(layout.ranks(), [&](const Communicator& world) {
    Rank rank(world, layout);
    const auto save = [&](const std::string& to, CheckpointContent content) {
      mt::save_checkpoint(path(to), content, world, false);
    };
    exists.note(world, [&] { save("there", rank.content()); });
    name.note(world, [&] {
      CheckpointContent content = rank.content();
      if (world.rank() == 1) content.weights.front().name = "../up";
      save("name", content);
    });
    twice.note(world, [&] {
      CheckpointContent content = rank.content();
      if (world.rank() == 3) content.place.tensor = 0;
      save("twice", content);
    });
    missing.note(world, [&] {
      CheckpointContent content = rank.content();
      if (world.rank() == 3) content.weights.pop_back();
      save("missing", content);
    });
  });
  exists.all_say("status 2: rank 0: ", "there: it exists already");
  name.all_say("status 3: rank 1: ", "../up");
  twice.all_say("environment: rank ", "model-pp01-tp00.h5: File exists");
  missing.all_say("status 3: rank 0: ", "its boxes hold");
  EXPECT_EQ(names(folder_), std::vector<std::string>{"there"});
}

TEST_F(GridCheckpoint, a_save_in_the_background_gives_the_bytes_of_one_at_once) {
  const Layout layout{2, 1, 2, true};
  save(layout, path("plain"));
  mt::run_local_ranks(layout.ranks(), [&](const Communicator& world) {
    Rank rank(world, layout);
    mt::Pool pool(mt::cpu_device("baseline", 1));
    mt::RunSaver saver({.run = path("run"), .keep = 1, .before = {}}, world);
    for (const std::int64_t iteration : {3, 7}) {
      CheckpointContent content = rank.content();
      content.iteration = iteration;
      std::vector<Tensor> former;
      saver.start(content, false, pool);
      EXPECT_TRUE(saver.in_flight());
      for (Parameter* const parameter : rank.parameters()) {  // training goes on
        former.emplace_back(pool, parameter->value.shape(), mt::DType::kF32,
                            mt::MemoryKind::kWorkspace);
        std::memcpy(former.back().data(), parameter->value.data(),
                    static_cast<std::size_t>(parameter->value.bytes()));
        parameter->value.fill_zero();
      }
      while (!saver.finished()) std::this_thread::yield();
      const mt::RunSaver::Outcome outcome = saver.wait();
      EXPECT_TRUE(outcome.committed);
      EXPECT_EQ(outcome.failure, "");
      EXPECT_FALSE(saver.in_flight());
      for (std::size_t i = 0; i < former.size(); ++i) {
        std::memcpy(rank.parameters()[i]->value.data(), former[i].data(),
                    static_cast<std::size_t>(former[i].bytes()));
      }
    }
  });
  EXPECT_EQ(names(path("run")), (std::vector<std::string>{"iter_0000007", "latest"}));
  for (const std::string& name : names(path("plain"))) {
    if (name == "tokenizer") continue;
    EXPECT_EQ(bytes_of(path("plain/" + name)), bytes_of(path("run/iter_0000007/" + name))) << name;
  }
}

TEST_F(GridCheckpoint, what_one_rank_refuses_before_its_files_are_written_reaches_all) {
  Reports reports(4);
  mt::run_local_ranks(4, [&](const Communicator& world) {
    Rank rank(world, {4, 1, 1, false});
    const auto before = [&](const CheckpointContent&) {
      if (world.rank() == 3) throw mt::NumericError("not finite");
    };
    mt::RunSaver saver({.run = path("run"), .keep = 0, .before = before}, world);
    reports.note(world, [&] { static_cast<void>(saver.save(rank.content(), false)); });
  });
  reports.all_say("status 5: rank 3: not finite", "");
  EXPECT_TRUE(names(path("run")).empty());
}

}  // namespace
