#include "ckpt/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <random>

#include "base/error.h"
#include "ckpt/checkpoint.h"
#include "ckpt/manifest.h"
#include "ckpt/parameters.h"
#include "test/checkpoint_fixture.h"

namespace {

namespace fs = std::filesystem;
using mt::CheckpointReader;
using mt::DataError;
using mt::Shape;
using mt::testing_data::bytes_of;
using mt::testing_data::check_sample;
using mt::testing_data::put;
using mt::testing_data::sample_checkpoint;

class Checkpoint : public mt::testing_data::CheckpointTest {};

TEST_F(Checkpoint, reads_back_what_it_saved) {
  EXPECT_EQ(fault("a"), "");
  EXPECT_EQ(files("a"), (std::vector<std::string>{"index.h5", "manifest.json", "model-pp00-tp00.h5",
                                                  "optim-pp00-tp00-dp00.h5", "tokenizer/merges.txt",
                                                  "tokenizer/vocab.json"}));
  const CheckpointReader reader(path("a"));
  EXPECT_EQ(reader.file("tokenizer/none"), "");
  for (const auto& [name, info] : reader.tensors()) {
    std::vector<char> values(4096 * 4);
    reader.read(name, info.shape, Shape(info.shape.size(), 0), info.shape, info.dtype,
                values.data());
    EXPECT_EQ(mt::tensor_digest(values.data(), info.dtype, info.shape, Shape(info.shape.size(), 0),
                                info.shape),
              info.digest)
        << name;
  }
}

TEST_F(Checkpoint, hands_out_any_box_of_tensors_cut_in_any_way) {
  // A tensor of 3 dimensions stored as boxes cut along each of them.
  const Shape shape = {7, 9, 5};
  std::vector<float> whole(7 * 9 * 5);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    whole[i] = static_cast<float>(i);
  }
  const auto take = [&](const Shape& at, const Shape& extent) {
    std::vector<float> part;
    for (std::int64_t i = 0; i < extent[0]; ++i) {
      for (std::int64_t j = 0; j < extent[1]; ++j) {
        for (std::int64_t k = 0; k < extent[2]; ++k) {
          part.push_back(
              whole[static_cast<std::size_t>(((at[0] + i) * 9 + at[1] + j) * 5 + at[2] + k)]);
        }
      }
    }
    return part;
  };
  const std::pair<Shape, Shape> cuts[] = {{{0, 0, 0}, {3, 9, 5}},
                                          {{3, 0, 0}, {4, 4, 5}},
                                          {{3, 4, 0}, {4, 5, 2}},
                                          {{3, 4, 2}, {4, 5, 3}}};
  mt::CheckpointContent content;
  content.model = mt::Json::object();
  std::vector<std::vector<float>> parts;
  for (const auto& [at, extent] : cuts) {
    parts.push_back(take(at, extent));
    content.weights.push_back({"t", shape, at, extent, mt::DType::kF32, nullptr});
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    content.weights[i].data = parts[i].data();
  }
  mt::save_checkpoint(path("cut"), content, *world_, false);
  const CheckpointReader reader(path("cut"));
  EXPECT_TRUE(reader.training().is_null());
  EXPECT_EQ(reader.tensors().at("t").digest,
            mt::tensor_digest(whole.data(), mt::DType::kF32, shape, Shape{0, 0, 0}, shape));
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    Shape at;
    Shape extent;
    for (const std::int64_t size : shape) {
      at.push_back(static_cast<std::int64_t>(random()) % size);
      extent.push_back(1 + static_cast<std::int64_t>(random()) % (size - at.back()));
    }
    const std::vector<float> expected = take(at, extent);
    std::vector<float> found(expected.size(), -1);
    reader.read("t", shape, at, extent, mt::DType::kF32, found.data());
    ASSERT_EQ(found, expected) << mt::shape_text(at) << mt::shape_text(extent);
  }
  EXPECT_NE(output("cd / && h5dump -d /model/t " + path("cut/index.h5")).find("310, 311, 312"),
            std::string::npos);
}

TEST_F(Checkpoint, refuses_other_names_shapes_and_types) {
  const CheckpointReader reader(path("a"));
  float out[4096];
  EXPECT_THROW(reader.read("none", {1}, {0}, {1}, mt::DType::kF32, out), DataError);
  EXPECT_THROW(reader.read("layers.0.cube", {5, 3, 7}, {0, 0, 0}, {1, 1, 1}, mt::DType::kF32, out),
               DataError);
  EXPECT_THROW(reader.read("layers.0.cube", {3, 5, 7}, {0, 0, 0}, {1, 1, 1}, mt::DType::kI32, out),
               DataError);
}

TEST_F(Checkpoint, equal_content_is_equal_bytes) {
  ::sleep(1);
  save("b", 1);
  for (const std::string& file : files("a")) {
    EXPECT_EQ(bytes_of(path("a/" + file)), bytes_of(path("b/" + file))) << file;
  }
  EXPECT_EQ(files("a"), files("b"));
}

TEST_F(Checkpoint, other_tools_read_every_file_after_a_move) {
  fs::create_directory(path("elsewhere"));
  fs::rename(path("a"), path("elsewhere/moved"));
  const std::string moved = path("elsewhere/moved");
  for (const char* file : {"model-pp00-tp00.h5", "optim-pp00-tp00-dp00.h5", "index.h5"}) {
    const std::string dump = output("cd / && h5dump " + moved + "/" + file);
    EXPECT_NE(dump.find("layers.0.cube"), std::string::npos) << file;
  }
  if (output("/usr/bin/python3 -c 'import h5py' && echo yes || true").substr(0, 3) != "yes") {
    FAIL() << "h5py is not installed";
  }
  // Values through the index against the bytes at the manifest's offsets.
  put(path("check.py"), R"(
import h5py, json, numpy, sys
d = sys.argv[1]
m = json.load(open(d + '/manifest.json'))
index = h5py.File(d + '/index.h5', 'r')
n = 0
for name, t in m['tensors'].items():
    shown = index[t['kind'] + '/' + name]
    assert shown.shape == tuple(t['shape']), name
    for b in t['boxes']:
        raw = open(d + '/' + b['file'], 'rb').read()[b['byte_offset']:b['byte_offset'] + b['bytes']]
        if t['dtype'] == 'bf16':
            v = (numpy.frombuffer(raw, '<u2').astype('<u4') << 16).view('<f4')
        else:
            v = numpy.frombuffer(raw, {'f32': '<f4', 'f16': '<f2', 'i32': '<i4'}[t['dtype']])
        part = h5py.File(d + '/' + b['file'], 'r')[t['kind'] + '/' + name]
        v = v.reshape(b['extent'])
        assert (part[()] == v).all(), name
        where = tuple(slice(o, o + e) for o, e in zip(b['offset'], b['extent']))
        assert (shown[where] == v).all(), name
        n += 1
assert index.attrs['format'] == b'mt-checkpoint' and index.attrs['iteration'] == 1
print(n, 'boxes right')
)");
  EXPECT_EQ(output("cd / && /usr/bin/python3 " + path("check.py") + " " + moved),
            "15 boxes right\n");
}

// Legal manifests, hashed anew by hand, that tell lies.
// A fused weight of two segments, of which this rank holds other rows than the rank that saved.
TEST_F(Checkpoint, parameters_are_stored_by_segment_and_loaded_in_another_cut) {
  mt::Pool pool(mt::make_cpu_device("baseline", 1));
  const auto segment = [](const std::string& name, std::int64_t first, std::int64_t rows) {
    return mt::Segment{name, {6, 3}, {first, 0}, {rows, 3}, 0};
  };
  const auto make = [&](std::int64_t first, std::int64_t rows) {
    return mt::make_parameter(pool, {segment("q", first, rows), segment("k", first, rows)},
                              mt::Gradient::kNone, mt::Init::kZero);
  };
  mt::Parameter whole = make(0, 6);
  const mt::Tensor moment(pool, {12, 3}, mt::DType::kF32, mt::MemoryKind::kOptimizer);
  for (int i = 0; i < 36; ++i) {
    whole.value.as<float>()[i] = static_cast<float>(i);
    moment.as<float>()[i] = static_cast<float>(100 + i);
  }
  mt::CheckpointContent content;
  content.model = mt::Json::object();
  content.weights = mt::parameter_boxes({&whole});
  mt::append_boxes(whole, moment, "exp_avg", content.optimizer);
  mt::save_checkpoint(path("p"), content, *world_, false);
  const CheckpointReader reader(path("p"));
  EXPECT_EQ(reader.tensors().size(), 4U);

  mt::Parameter part = make(2, 3);  // rows 2, 3, 4 of each
  mt::load_parameters(reader, {&part}, true);
  const mt::Tensor part_moment(pool, {6, 3}, mt::DType::kF32, mt::MemoryKind::kOptimizer);
  mt::load_segments(reader, part, "exp_avg", part_moment);
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(part.value.as<float>()[i], 6 + i);
    EXPECT_EQ(part.value.as<float>()[9 + i], 18 + 6 + i);
    EXPECT_EQ(part_moment.as<float>()[i], 106 + i);
    EXPECT_EQ(part_moment.as<float>()[9 + i], 118 + 6 + i);
  }
  part.segments.pop_back();
  EXPECT_THROW(mt::load_parameters(reader, {&part}, true), DataError);  // nobody takes k
  EXPECT_NO_THROW(mt::load_parameters(reader, {&part}, false));
  part.segments[0].name = "v";
  EXPECT_THROW(mt::load_parameters(reader, {&part}, false), DataError);
  EXPECT_THROW(mt::load_segments(reader, whole, "exp_avg_sq", moment), DataError);
}

TEST_F(Checkpoint, an_existing_target_is_refused_or_replaced_whole) {
  EXPECT_THROW(save("a", 2), mt::UsageError);
  EXPECT_EQ(fault("a"), "");
  save("a", 2, true);
  EXPECT_NO_THROW(check_sample(path("a"), 2));
  put(path("file"), "");
  EXPECT_THROW(save("file", 1, true), mt::UsageError);
  save("new/folder/c/", 1);  // parents are created
  EXPECT_EQ(fault("new/folder/c"), "");
  int entries = 0;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    entries += entry.path().filename() != "." ? 1 : 0;
  }
  EXPECT_EQ(entries, 3);  // a, file, new: nothing temporary
}

TEST_F(Checkpoint, what_is_not_finite_or_incomplete_is_not_saved) {
  auto sample = sample_checkpoint(1);
  sample.content.training["loss"] = std::numeric_limits<double>::infinity();
  EXPECT_THROW(mt::save_checkpoint(path("b"), sample.content, *world_, false), mt::NumericError);
  sample = sample_checkpoint(1);
  sample.content.weights[0].extent = {66, 24};
  EXPECT_THROW(mt::save_checkpoint(path("b"), sample.content, *world_, false), mt::Error);
  sample = sample_checkpoint(1);
  sample.content.files["../x"] = "";
  EXPECT_THROW(mt::save_checkpoint(path("b"), sample.content, *world_, false), mt::Error);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(Checkpoint, finds_the_newest_sound_one) {
  EXPECT_TRUE(mt::find_checkpoint(path("none")).absent);
  EXPECT_EQ(mt::find_checkpoint(path("a")).directory, path("a"));
  fs::create_directory(path("run"));
  EXPECT_TRUE(mt::find_checkpoint(path("run")).absent);
  fs::create_directories(path("run/.iter_0000009.tmp.1-0"));
  put(path("run/metrics.jsonl"), "");
  EXPECT_TRUE(mt::find_checkpoint(path("run")).absent);
  EXPECT_EQ(mt::newest_iteration(path("run")), -1);
  for (const int iteration : {9, 10, 12345678}) {
    save("run/" + fs::path(mt::iteration_directory("x", iteration)).filename().string(), iteration);
  }
  EXPECT_EQ(mt::find_checkpoint(path("run")).directory, path("run/iter_12345678"));
  EXPECT_EQ(mt::newest_iteration(path("run")), 12345678);
  put(path("run/latest"), "garbage");
  // What is no directory at all, too.
  put(path("run/iter_20000001"), "");
  fs::create_symlink("nowhere", path("run/iter_20000002"));
  fs::create_symlink("iter_20000003", path("run/iter_20000003"));
  EXPECT_EQ(mt::find_checkpoint(path("run")).directory, path("run/iter_12345678"));
  for (const char* name : {"run/iter_20000001", "run/iter_20000002", "run/iter_20000003"}) {
    fs::remove(path(name));
  }
  fs::resize_file(path("run/iter_12345678/index.h5"), 100);
  EXPECT_EQ(mt::find_checkpoint(path("run")).directory, path("run/iter_0000010"));
  EXPECT_EQ(mt::newest_iteration(path("run")), 12345678);
  fs::remove(path("run/iter_0000010/manifest.json"));
  EXPECT_EQ(mt::find_checkpoint(path("run")).directory, path("run/iter_0000009"));
  fs::resize_file(path("run/iter_0000009/manifest.json"), 0);
  EXPECT_THROW(static_cast<void>(mt::find_checkpoint(path("run"))), DataError);
  EXPECT_THROW(static_cast<void>(mt::find_checkpoint(path("run/metrics.jsonl"))), mt::Error);
}

TEST_F(Checkpoint, keeps_the_newest_sound_ones_and_sweeps_leftovers) {
  const auto run_names = [&] {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path("run"))) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  using Names = std::vector<std::string>;
  for (const int iteration : {1, 2, 3, 4}) {
    save("run/iter_000000" + std::to_string(iteration), iteration);
  }
  fs::create_directories(path("run/.iter_0000009.tmp.77-0/tokenizer"));
  fs::create_directories(path("run/.iter_0000004.old.77-0"));
  fs::rename(path("run/iter_0000003"), path("run/.iter_0000003.old.77-0"));  // moved aside
  fs::create_directories(path("run/.git"));
  mt::retain_checkpoints(path("run"), 0);
  EXPECT_EQ(run_names(), (Names{".git", "iter_0000001", "iter_0000002", "iter_0000003",
                                "iter_0000004", "latest"}));
  EXPECT_EQ(fs::read_symlink(path("run/latest")), "iter_0000004");
  EXPECT_NO_THROW(check_sample(path("run/latest"), 4));
  fs::resize_file(path("run/iter_0000004/model-pp00-tp00.h5"), 10);
  mt::retain_checkpoints(path("run"), 2);  // the damaged one does not count
  EXPECT_EQ(run_names(), (Names{".git", "iter_0000002", "iter_0000003", "iter_0000004", "latest"}));
  EXPECT_EQ(fs::read_symlink(path("run/latest")), "iter_0000003");
  mt::retain_checkpoints(path("run"), 1);
  EXPECT_EQ(run_names(), (Names{".git", "iter_0000003", "iter_0000004", "latest"}));
  EXPECT_NO_THROW(check_sample(path("run/iter_0000003"), 3));
}

}  // namespace
