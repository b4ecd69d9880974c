// Checkpoints written anew in other layouts: what the grid itself would have written, byte for
// byte.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/threads.h"
#include "ckpt/compare.h"
#include "ckpt/tensor_stream.h"
#include "comm/communicator.h"
#include "convert/copy_checkpoint.h"
#include "convert/inspect.h"
#include "test/checkpoint_fixture.h"
#include "test/grid_rank.h"

namespace {

namespace fs = std::filesystem;
using mt::CheckpointReader;
using mt::CopySettings;
using mt::DType;
using mt::testing_data::bytes_of;
using mt::testing_data::kLayouts;
using mt::testing_data::Layout;
using mt::testing_data::put;

mt::CheckpointLayout stored(const Layout& layout) {
  return {.tensor = layout.tensor,
          .pipeline = layout.pipeline,
          .data = layout.zero ? layout.data : 1,
          .distributed_optimizer = layout.zero};
}

class Reshard : public mt::testing_data::CheckpointTest {
 protected:
  Reshard() { mt::set_threads(2); }
  void train(const Layout& layout, const std::string& name) const {
    mt::run_local_ranks(layout.ranks(), [&](const mt::Communicator& world) {
      mt::testing_data::GridRank rank(world, layout);
      mt::save_checkpoint(path(name), rank.content(), world, false);
    });
  }
  void convert(const std::string& from, const std::string& to, const Layout& layout,
               CopySettings settings = {}) const {
    settings.layout = stored(layout);
    settings.most_memory = mt::kLeastMemory;
    mt::copy_checkpoint(path(from), path(to), settings);
  }
  void same_bytes(const std::string& a, const std::string& b) const {
    ASSERT_EQ(files(a), files(b)) << b;
    for (const std::string& file : files(a)) {
      EXPECT_EQ(bytes_of(path(a + "/" + file)), bytes_of(path(b + "/" + file))) << b << "/" << file;
    }
  }
};

TEST_F(Reshard, gives_the_files_that_the_grid_would_have_saved) {
  train(kLayouts[0], "one");
  train({2, 2, 2, true}, "cut");
  for (const Layout& layout : kLayouts) {
    train(layout, layout.name());
    convert("one", "from-one", layout);
    same_bytes(layout.name(), "from-one");
    convert("cut", "from-cut", layout);
    same_bytes(layout.name(), "from-cut");
    fs::remove_all(path("from-one"));
    fs::remove_all(path("from-cut"));
  }
}

TEST_F(Reshard, chains_come_back_byte_for_byte) {
  const std::size_t count = kLayouts.size();
  for (std::size_t i = 0; i < count; ++i) {
    const Layout &a = kLayouts[i], &b = kLayouts[(i + 5) % count], &c = kLayouts[(i + 8) % count];
    const std::string name = mt::cat("a", i);
    train(a, name);
    convert(name, "b", b);
    convert("b", "c", c);
    convert("c", "back", a);
    same_bytes(name, "back");
    const CheckpointReader first(path(name));
    for (const char* each : {"b", "c", "back"}) {
      const CheckpointReader next(path(each));
      ASSERT_EQ(first.tensors().size(), next.tensors().size());
      for (const auto& [tensor, info] : first.tensors()) {
        EXPECT_EQ(info.digest, next.tensors().at(tensor).digest) << each << " " << tensor;
      }
      fs::remove_all(path(each));
    }
  }
}

TEST_F(Reshard, a_replicated_run_without_a_cut_optimizer_is_that_of_one_replica) {
  train({1, 2, 2, false}, "replicas");
  train({1, 2, 1, false}, "single");
  same_bytes("replicas", "single");
}

// Odd shapes, types and scalars go through; so does the smallest band.
TEST_F(Reshard, any_tensors_may_be_copied_to_one_rank) {
  mt::copy_checkpoint(path("a"), path("copy"), {});
  same_bytes("a", "copy");
}

TEST_F(Reshard, bands_of_a_row_give_the_same_tensor) {
  train({2, 2, 2, true}, "cut");
  for (const char* const from : {"a", "cut"}) {
    const CheckpointReader reader(path(from));
    for (const auto& [name, info] : reader.tensors()) {
      std::vector<std::byte> whole(static_cast<std::size_t>(mt::element_count(info.shape)) *
                                   mt::dtype_size(info.dtype));
      reader.read(name, info.shape, mt::Shape(info.shape.size(), 0), info.shape, info.dtype,
                  whole.data());
      for (const std::uint64_t most : {1, 100, 1000, 1 << 20}) {
        mt::TensorStream stream(reader, name, most);
        mt::TensorStream::Band band;
        std::vector<std::byte> found;
        while (stream.next(band)) {
          EXPECT_TRUE(band.bytes <= most || band.rows == 1);
          found.insert(found.end(), band.data, band.data + band.bytes);
        }
        EXPECT_EQ(found, whole) << name << " in bands of " << most;
      }
    }
  }
}

TEST_F(Reshard, weights_of_16_bits_and_back) {
  train({2, 1, 2, true}, "cut");
  convert("cut", "half", {1, 2, 1, false}, {.weights = DType::kF16});
  convert("half", "wide", {2, 1, 1, false}, {.weights = DType::kF32});
  convert("wide", "again", {4, 1, 1, false}, {.weights = DType::kF16});
  convert("cut", "model", {2, 1, 1, false}, {.model_only = true});
  std::ostringstream out;
  EXPECT_EQ(mt::verify_two(path("half"), path("again"), out), 0) << out.str();
  EXPECT_EQ(mt::verify_two(path("model"), path("wide"), out), 1);
  EXPECT_NE(out.str().find("element ["), std::string::npos) << out.str();
  const CheckpointReader half(path("half")), model(path("model"));
  EXPECT_TRUE(half.training().is_null() && model.training().is_null());
  for (const auto& [name, info] : half.tensors()) EXPECT_EQ(info.dtype, DType::kF16) << name;
  for (const auto& [name, info] : model.tensors()) EXPECT_FALSE(info.optimizer) << name;
  const mt::Differences found = mt::differences(model, CheckpointReader(path("wide")), {});
  ASSERT_EQ(found.tensors.size(), model.tensors().size());
  EXPECT_TRUE(found.any());
  for (std::size_t i = 0; i < found.tensors.size(); ++i) {
    // Half of the last of 11 bits.
    EXPECT_LE(found.tensors[i].norm, std::ldexp(found.tensors[i].norm_a, -11));
    if (i > 0) {
      EXPECT_LE(found.tensors[i].norm, found.tensors[i - 1].norm);
    }
  }
}

TEST_F(Reshard, differences_are_named_with_their_place) {
  train({2, 2, 1, false}, "cut");
  const auto changed = [&](const std::string& name, const std::function<void(mt::Box&)>& change) {
    mt::run_local_ranks(1, [&](const mt::Communicator& world) {
      mt::testing_data::GridRank rank(world, kLayouts[0]);
      auto content = rank.content();
      for (mt::Box& box : content.weights) {
        if (box.name == "layers.2.mlp.dense_h_to_4h.weight") change(box);
      }
      mt::save_checkpoint(path(name), content, world, false);
    });
  };
  changed("equal", [](const mt::Box&) {});
  changed("other", [](const mt::Box& box) {
    const_cast<float*>(static_cast<const float*>(box.data))[3 * 16 + 5] += 0.25F;
  });
  changed("renamed", [](mt::Box& box) { box.name = "else"; });
  std::ostringstream equal, other, renamed;
  EXPECT_EQ(mt::verify_two(path("cut"), path("equal"), equal), 0);
  EXPECT_EQ(equal.str(), "");
  EXPECT_EQ(mt::verify_two(path("cut"), path("other"), other), 1);
  EXPECT_EQ(other.str().find("tensor layers.2.mlp.dense_h_to_4h.weight: element [3, 5]: "), 0U)
      << other.str();
  EXPECT_EQ(mt::verify_two(path("cut"), path("renamed"), renamed), 1);
  EXPECT_EQ(renamed.str(), "tensor else: only in " + path("renamed") + "\n");
  const mt::Differences found =
      mt::differences(CheckpointReader(path("cut")), CheckpointReader(path("other")), {});
  EXPECT_EQ(found.tensors.front().name, "layers.2.mlp.dense_h_to_4h.weight");
  EXPECT_NEAR(found.tensors.front().norm, 0.25, 1e-6);  // the sum was rounded to f32
  EXPECT_EQ(found.tensors.front().count, 1);
  EXPECT_EQ(found.tensors[1].count, 0);
}

TEST_F(Reshard, a_damaged_box_is_found_and_nothing_is_written) {
  train({2, 1, 1, false}, "cut");
  const std::string file = path("cut/model-pp00-tp01.h5");
  std::string bytes = bytes_of(file);
  const mt::Manifest manifest = this->manifest("cut");
  const mt::StoredBox* const box = manifest.boxes_by_file().at("model-pp00-tp01.h5").back();
  bytes[box->byte_offset + box->bytes - 1] ^= 1;
  put(file, bytes);
  std::string message;
  try {
    convert("cut", "out", {1, 2, 1, false});
  } catch (const mt::DataError& error) {
    message = error.what();
  }
  EXPECT_NE(message.find("model-pp00-tp01.h5: tensor "), std::string::npos) << message;
  EXPECT_FALSE(fs::exists(path("out")));
  for (const auto& entry : fs::directory_iterator(folder_)) {
    EXPECT_NE(entry.path().filename().string().front(), '.') << entry.path();
  }
  EXPECT_THROW(mt::verify_one(path("cut")), mt::DataError);
}

TEST_F(Reshard, layouts_that_the_model_does_not_allow_are_refused_with_the_arithmetic) {
  train(kLayouts[0], "one");
  const auto refusal = [&](const Layout& layout) -> std::string {
    try {
      convert("one", "out", layout);
    } catch (const mt::UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal({3, 1, 1, false}),
            "--tensor-model-parallel-size 3: the number of attention heads 4 is not a multiple of "
            "it");
  EXPECT_EQ(refusal({1, 3, 1, false}),
            "--pipeline-model-parallel-size 3: the number of layers 4 is not a multiple of it");
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(Reshard, a_stop_leaves_nothing) {
  train(kLayouts[0], "one");
  int asked = 0;
  CopySettings settings;
  settings.stop = [&] { return ++asked > 3 ? 15 : 0; };
  try {
    convert("one", "out", {2, 1, 1, false}, settings);
    FAIL();
  } catch (const mt::Error& error) {
    EXPECT_EQ(static_cast<int>(error.status()), 143);
  }
  EXPECT_FALSE(fs::exists(path("out")));
  convert("one", "out", {2, 1, 1, false});
}

}  // namespace
