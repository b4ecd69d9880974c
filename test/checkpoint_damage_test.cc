// Damaged, mixed and edited checkpoints: found, and named rightly.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <random>

#include "base/error.h"
#include "ckpt/checkpoint.h"
#include "ckpt/manifest.h"
#include "test/checkpoint_fixture.h"

namespace {

namespace fs = std::filesystem;
using mt::DataError;
using mt::Shape;
using mt::testing_data::bytes_of;
using mt::testing_data::put;

class DamagedCheckpoint : public mt::testing_data::CheckpointTest {};

TEST_F(DamagedCheckpoint, finds_every_flipped_bit_and_names_its_place) {
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

TEST_F(DamagedCheckpoint, finds_truncation_extension_and_damaged_pages) {
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

TEST_F(DamagedCheckpoint, finds_files_of_another_checkpoint_and_missing_ones) {
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
    EXPECT_NE(fault("a").find(file + ": it is missing"), std::string::npos) << file << fault("a");
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

TEST_F(DamagedCheckpoint, refuses_manifests_that_were_edited_and_hashed_again) {
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
      {"\"byte_offset\":4096", "\"byte_offset\":200000", "do not lie in"},
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

TEST_F(DamagedCheckpoint, refuses_boxes_that_overlap_or_leave_a_gap) {
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

// Columns, each of which has all rows: every box meets the rows of every other.
TEST_F(DamagedCheckpoint, many_hostile_boxes_are_checked_in_little_time) {
  mt::Manifest lies;
  lies.model = mt::Json::object();
  mt::StoredTensor& tensor = lies.tensors["t"];
  constexpr std::int64_t kColumns = 65536;
  tensor.shape = {3, kColumns};
  lies.files["f"] = {12 * kColumns, {}};
  for (std::int64_t i = 0; i < kColumns; ++i) {
    tensor.boxes.push_back({"f", {0, i}, {3, 1}, static_cast<std::uint64_t>(12 * i), 12, {}});
  }
  EXPECT_NO_THROW(static_cast<void>(mt::Manifest::parse(lies.text(), "m")));
  tensor.boxes.back().offset[1] = 0;  // a hole, and an overlap
  EXPECT_THROW(static_cast<void>(mt::Manifest::parse(lies.text(), "m")), DataError);
}

TEST_F(DamagedCheckpoint, a_tokenizer_digest_is_hexadecimal) {
  mt::Manifest lies = manifest("a");
  EXPECT_NO_THROW(static_cast<void>(mt::Manifest::parse(lies.text(), "m")));
  for (const char* digest : {"abc", "../../../../../../../../../../x/", "\x1b[31m"}) {
    lies.tokenizer_digest = digest;
    EXPECT_THROW(static_cast<void>(mt::Manifest::parse(lies.text(), "m")), DataError) << digest;
  }
}

}  // namespace
