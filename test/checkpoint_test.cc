#include "ckpt/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "base/commit.h"
#include "base/error.h"
#include "ckpt/manifest.h"
#include "test/fault/sample_checkpoint.h"

namespace {

namespace fs = std::filesystem;
using mt::Box;
using mt::CheckpointReader;
using mt::DataError;
using mt::Shape;
using mt::testing_data::check_sample;
using mt::testing_data::sample_checkpoint;

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void put(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class Checkpoint : public testing::Test {
 protected:
  Checkpoint() {
    std::string name = testing::TempDir() + "mt-checkpoint-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    save("a", 1);
  }
  ~Checkpoint() override { fs::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void save(const std::string& name, std::int64_t iteration, bool replace = false) const {
    mt::save_checkpoint(path(name), sample_checkpoint(iteration).content, *world_, replace);
  }
  // The message of the DataError that reading everything gives; "" if everything is right.
  [[nodiscard]] std::string fault(const std::string& name) const {
    try {
      check_sample(path(name), 1);
    } catch (const DataError& error) {
      return error.what();
    } catch (const mt::EnvironmentError& error) {
      return std::string("environment: ") + error.what();
    }
    return "";
  }
  // The names of all files of a checkpoint.
  [[nodiscard]] std::vector<std::string> files(const std::string& name) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(path(name))) {
      if (entry.is_regular_file()) {
        names.push_back(fs::relative(entry.path(), path(name)).string());
      }
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  // What a message about this byte of this file must say.
  [[nodiscard]] static std::string owner(const mt::Manifest& manifest, const std::string& file,
                                         std::uint64_t byte) {
    for (const auto& [name, tensor] : manifest.tensors) {
      for (const mt::StoredBox& box : tensor.boxes) {
        if (box.file == file && byte >= box.byte_offset && byte < box.byte_offset + box.bytes) {
          return file + ": tensor " + name + ":";
        }
      }
    }
    return file + ":";
  }
  [[nodiscard]] mt::Manifest manifest(const std::string& name) const {
    return mt::Manifest::parse(bytes_of(path(name) + "/manifest.json"), "manifest");
  }
  static std::string output(const std::string& command) {
    std::FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
    std::string text;
    char buffer[4096];
    while (std::size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) {
      text.append(buffer, n);
    }
    EXPECT_EQ(::pclose(pipe), 0) << command << "\n" << text;
    return text;
  }

  std::string folder_;
  std::unique_ptr<mt::Communicator> world_ = mt::make_single_communicator();
};

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
    GTEST_SKIP() << "h5py is not installed";
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

TEST_F(Checkpoint, finds_every_flipped_bit_and_names_its_place) {
  const mt::Manifest recorded = manifest("a");
  std::vector<std::string> names = files("a");
  std::erase_if(names, [&](const std::string& f) { return fs::file_size(path("a/" + f)) == 0; });
  std::mt19937_64 random(2026);
  int found = 0;
  int named = 0;
  constexpr int kTrials = 2000;
  for (int trial = 0; trial < kTrials; ++trial) {
    const std::string file = names[random() % names.size()];
    std::fstream stream(path("a/" + file), std::ios::in | std::ios::out | std::ios::binary);
    const std::uint64_t at = random() % fs::file_size(path("a/" + file));
    const char flip = static_cast<char>(1 << random() % 8);
    stream.seekg(static_cast<std::streamoff>(at));
    const char before = static_cast<char>(stream.peek());
    stream.seekp(static_cast<std::streamoff>(at)).put(static_cast<char>(before ^ flip)).flush();
    const std::string message = fault("a");
    found += message.empty() ? 0 : 1;
    const bool right = message.find(owner(recorded, file, at)) != std::string::npos;
    named += right ? 1 : 0;
    EXPECT_TRUE(right) << file << " byte " << at << ": " << message;
    stream.seekp(static_cast<std::streamoff>(at)).put(before).flush();
  }
  std::printf("bit flips: %d/%d found, %d named right\n", found, kTrials, named);
  EXPECT_EQ(found, kTrials);
  EXPECT_EQ(fault("a"), "");
}

TEST_F(Checkpoint, finds_truncation_extension_and_damaged_pages) {
  int trials = 0;
  for (const std::string& file : files("a")) {
    const std::string whole = bytes_of(path("a/" + file));
    const auto expect_found = [&](const std::string& bytes, const std::string& what) {
      if (bytes == whole) {
        return;
      }
      put(path("a/" + file), bytes);
      const std::string message = fault("a");
      EXPECT_NE(message.find(file), std::string::npos) << file << " " << what << ": " << message;
      ++trials;
    };
    for (std::size_t cut = 0; cut < whole.size(); cut += 512) {
      expect_found(whole.substr(0, cut), "truncated");
    }
    if (!whole.empty()) {
      expect_found(whole.substr(0, whole.size() - 1), "truncated by one");
    }
    expect_found(whole + '\0', "extended");
    for (std::size_t page = 0; page < whole.size(); page += 512) {
      const std::size_t length = std::min<std::size_t>(512, whole.size() - page);
      for (const char fill : {'\0', '\xff'}) {
        std::string bytes = whole;
        bytes.replace(page, length, length, fill);
        expect_found(bytes, "filled page");
      }
      if (page >= 512) {
        std::string bytes = whole;
        bytes.replace(page, length, whole.substr(page - 512, length));
        expect_found(bytes, "repeated page");
      }
    }
    put(path("a/" + file), whole);
  }
  std::printf("truncated files and damaged pages: %d/%d found\n", trials, trials);
  EXPECT_EQ(fault("a"), "");
}

TEST_F(Checkpoint, finds_files_of_another_checkpoint_and_missing_ones) {
  save("b", 2);
  for (const std::string& file : files("a")) {
    if (bytes_of(path("a/" + file)) == bytes_of(path("b/" + file))) {
      continue;  // the tokenizer's files and index.h5 but for the iteration
    }
    const std::string whole = bytes_of(path("a/" + file));
    put(path("a/" + file), bytes_of(path("b/" + file)));
    EXPECT_NE(fault("a"), "") << file;
    put(path("a/" + file), whole);
  }
  for (const std::string& file : files("a")) {
    fs::rename(path("a/" + file), path("aside"));
    EXPECT_EQ(fault("a").rfind("environment: cannot read ", 0), 0U) << file << fault("a");
    fs::create_symlink(path("aside"), path("a/" + file));
    EXPECT_NE(fault("a").find(file), std::string::npos) << "link " << fault("a");
    fs::remove(path("a/" + file));
    fs::create_directory(path("a/" + file));
    EXPECT_NE(fault("a").find(file), std::string::npos) << "directory " << fault("a");
    fs::remove(path("a/" + file));
    ASSERT_EQ(::mkfifo(path("a/" + file).c_str(), 0600), 0);
    EXPECT_NE(fault("a").find(file), std::string::npos) << "FIFO " << fault("a");
    fs::remove(path("a/" + file));
    fs::rename(path("aside"), path("a/" + file));
  }
  fs::rename(path("a/tokenizer"), path("tokenizer"));
  fs::create_symlink(path("tokenizer"), path("a/tokenizer"));
  EXPECT_NE(fault("a").find("tokenizer"), std::string::npos);
  fs::remove(path("a/tokenizer"));
  fs::rename(path("tokenizer"), path("a/tokenizer"));
  put(path("a/notes.txt"), "a file of the user's");
  EXPECT_EQ(fault("a"), "");
}

// Legal manifests, hashed anew by hand, that tell lies.
TEST_F(Checkpoint, refuses_manifests_that_were_edited_and_hashed_again) {
  const std::string text = bytes_of(path("a/manifest.json"));
  const std::string body = text.substr(0, text.rfind("\"manifest_xxh3_128\""));
  const auto hashed = [](const std::string& before) {
    return before + "\"manifest_xxh3_128\":\"" +
           mt::to_hex(mt::xxh3_128(before.data(), before.size())) + "\"}\n";
  };
  ASSERT_EQ(hashed(body), text);
  const struct {
    const char *from, *to, *says;
  } edits[] = {
      {"\"mt-checkpoint\"", "\"other\"", "format"},
      {"\"version\":1", "\"version\":2", "version: expected 1, found 2"},
      {"\"version\":1,", "", "version"},
      {"\"iteration\":1,\n", "\"iteration\":-1,\n", "iteration"},
      {"\"model\":{", "\"model\":[{},{", "JSON"},
      {"\"training\":{", "\"training\":3,\"x\":{", "training"},
      {"\"files\":{", "\"other\":{", "files"},
      {"\"tensors\":{", "\"tensors\":1,\"x\":{", "tensors"},
      {"\"shape\":[67,24]", "\"shape\":[67,25]", "embedding.word.weight"},
      {"\"shape\":[67,24]", "\"shape\":[68,24]", "hold 6432 bytes, expected 6528"},
      {"\"shape\":[67,24]", "\"shape\":[66,24]", "does not lie in"},
      {"\"shape\":[67,24]", "\"shape\":[-67,24]", "shape"},
      {"\"shape\":[67,24]", "\"shape\":[67.0,24]", "shape"},
      {"\"shape\":[67,24]", "\"shape\":[4611686018427387904,24]", "too large"},
      {"\"shape\":[67,24]", "\"shape\":[18446744073709551615,24]", "shape"},
      {"\"shape\":[67,24]", "\"shape\":[1,1,1,1,1,1,1,67,24]", "at most 8"},
      {"\"shape\":[67,24]", "\"shape\":\"67\"", "shape"},
      {"\"dtype\":\"bf16\"", "\"dtype\":\"f32\"", "bytes: expected 1536, found 768"},
      {"\"dtype\":\"bf16\"", "\"dtype\":\"f64\"", "unknown type"},
      {"\"dtype\":\"bf16\"", "\"dtype\":\"f16\"", "bf16"},
      {"\"kind\":\"model\"", "\"kind\":\"other\"", "kind"},
      {"\"kind\":\"model\"", "\"kind\":\"optimizer\"", "other content"},
      {"\"offset\":[0,0],\"extent\":[67,24]", "\"offset\":[1,0],\"extent\":[67,24]",
       "does not lie in"},
      {"\"offset\":[0,0],\"extent\":[67,24]", "\"offset\":[0],\"extent\":[67,24]",
       "does not lie in"},
      {"\"offset\":[0,0],\"extent\":[67,24]", "\"offset\":[0,0],\"extent\":[66,24]",
       "bytes: expected 6336"},
      {"\"offset\":[0,0],\"extent\":[67,24]",
       "\"offset\":[9223372036854775807,0],\"extent\":[67,24]", "does not lie in"},
      {"\"bytes\":6432", "\"bytes\":6431", "bytes: expected 6432"},
      {"\"bytes\":6432", "\"bytes\":-1", "bytes"},
      {"\"byte_offset\":4096", "\"byte_offset\":4097", "damaged outside its tensors"},
      {"\"byte_offset\":4096", "\"byte_offset\":18446744073709551615", "byte_offset"},
      {"\"byte_offset\":4096", "\"byte_offset\":9223372036854775807", "do not lie in"},
      {"\"byte_offset\":4096", "\"byte_offset\":20000", "do not lie in"},
      {"\"byte_offset\":4096", "\"byte_offset\":10500", "overlap"},
      {"\"file\":\"model-pp00-tp00.h5\"", "\"file\":\"../model-pp00-tp00.h5\"", "not among"},
      {"\"file\":\"model-pp00-tp00.h5\"", "\"file\":\"/etc/hostname\"", "not among"},
      {"\"file\":\"model-pp00-tp00.h5\"", "\"file\":\"index.h5\"", "index.h5"},
      {"\"index.h5\":{", "\"../index.h5\":{", "no name for a file"},
      {"\"index.h5\":{", "\"/index.h5\":{", "no name for a file"},
      {"\"index.h5\":{", "\"a/b/index.h5\":{", "no name for a file"},
      {"\"index.h5\":{", "\"a/../index.h5\":{", "no name for a file"},
      {"\"index.h5\":{", "\".lock\":{", "no name for a file"},
      {"\"index.h5\":{", "\"\":{", "no name for a file"},
      {"\"index.h5\":{", "\"tokenizer/\":{", "no name for a file"},
      {"\"index.h5\":{", "\"manifest.json\":{", "no name for a file"},
      {"\"index.h5\":{", "\"in\\u0000dex.h5\":{", "no name for a file"},
      {"\"index.h5\":{", "\"in\\u001bdex.h5\":{", "no name for a file"},
      {"\"index.h5\":{", "\"none.h5\":{", "none.h5"},
      {"\"counts\":{", "\"../counts\":{", "no name for a tensor"},
      {"\"counts\":{", "\"a\\u001bb\":{", "no name for a tensor"},
      {"\"counts\":{", "\"scale\":{", "repeated"},
      {"\"digest\":\"", "\"digest\":\"x", "hexadecimal"},
      {"\"files\":{\n\"index.h5\":{\"bytes\":", "\"files\":{\n\"index.h5\":{\"bytes\":9",
       "truncated"},
  };
  int refused = 0;
  for (const auto& edit : edits) {
    std::string changed = body;
    const std::size_t at = changed.find(edit.from);
    ASSERT_NE(at, std::string::npos) << edit.from;
    changed.replace(at, std::string(edit.from).size(), edit.to);
    put(path("a/manifest.json"), hashed(changed));
    const std::string message = fault("a");
    EXPECT_NE(message.find(edit.says), std::string::npos) << edit.to << ": " << message;
    EXPECT_EQ(message.find_first_of("\n\x1b"), std::string::npos) << edit.to;
    ++refused;
  }
  std::printf("edited manifests refused: %d/%d\n", refused, refused);
}

TEST_F(Checkpoint, refuses_boxes_that_overlap_or_leave_a_gap) {
  mt::Manifest lies = manifest("a");
  mt::StoredTensor& tensor = lies.tensors.at("embedding.word.weight");
  mt::StoredBox half = tensor.boxes[0];
  half.extent = {30, 24};
  half.bytes = 30 * 24 * 4;
  mt::StoredBox rest = half;
  rest.extent = {37, 24};
  rest.bytes = 37 * 24 * 4;
  rest.byte_offset += half.bytes;
  const auto says = [&](Shape offset) -> std::string {
    rest.offset = std::move(offset);
    tensor.boxes = {half, rest};
    try {
      static_cast<void>(mt::Manifest::parse(lies.text(), "m"));
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(says({30, 0}), "");
  EXPECT_NE(says({29, 0}).find("overlap"), std::string::npos);
  EXPECT_NE(says({0, 0}).find("overlap"), std::string::npos);
  tensor.boxes.pop_back();
  EXPECT_THROW(static_cast<void>(mt::Manifest::parse(lies.text(), "m")), DataError);
  tensor.boxes.clear();
  EXPECT_THROW(static_cast<void>(mt::Manifest::parse(lies.text(), "m")), DataError);
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
  for (const int iteration : {9, 10, 12345678}) {
    save("run/" + fs::path(mt::iteration_directory("x", iteration)).filename().string(), iteration);
  }
  EXPECT_EQ(mt::find_checkpoint(path("run")).directory, path("run/iter_12345678"));
  put(path("run/latest"), "garbage");
  fs::resize_file(path("run/iter_12345678/index.h5"), 100);
  EXPECT_EQ(mt::find_checkpoint(path("run")).directory, path("run/iter_0000010"));
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
