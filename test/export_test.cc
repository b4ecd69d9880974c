// Checkpoints of any grid in other libraries' formats: every element where it belongs, the same
// bytes from every layout and in any memory, and back again.
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "base/threads.h"
#include "ckpt/compare.h"
#include "comm/communicator.h"
#include "convert/copy_checkpoint.h"
#include "convert/export_hugging_face.h"
#include "convert/gguf.h"
#include "convert/import_foreign.h"
#include "convert/inspect.h"
#include "convert/llmc.h"
#include "io/safetensors.h"
#include "test/checkpoint_fixture.h"
#include "test/foreign_model.h"
#include "test/grid_rank.h"

namespace {

namespace fs = std::filesystem;
using mt::CheckpointReader;
using mt::DType;
using mt::ExportSettings;
using mt::testing_data::bytes_of;
using mt::testing_data::kLayouts;
using mt::testing_data::Layout;
using mt::testing_data::put;

class Export : public mt::testing_data::CheckpointTest {
 protected:
  Export() { mt::set_threads(2); }
  void train(const Layout& layout, const std::string& name) const {
    mt::run_local_ranks(layout.ranks(), [&](const mt::Communicator& world) {
      mt::testing_data::GridRank rank(world, layout);
      mt::CheckpointContent content = rank.content();
      content.files.clear();  // there, no tokenizer of this vocabulary
      content.tokenizer_digest.clear();
      mt::save_checkpoint(path(name), content, world, false);
    });
  }
  void to_theirs(const std::string& from, const std::string& to,
                 const ExportSettings& settings = {}) const {
    mt::export_hugging_face(path(from), path(to), settings);
  }
  void to_ours(const std::string& from, const std::string& to) const {
    mt::import_foreign(path(from), path(to), {}, {});
  }
  void weights_only(const std::string& from, const std::string& to) const {
    mt::copy_checkpoint(path(from), path(to), {.model_only = true});
  }
  void same_bytes(const std::string& a, const std::string& b) const {
    ASSERT_EQ(files(a), files(b)) << b;
    for (const std::string& file : files(a)) {
      EXPECT_EQ(bytes_of(path(a + "/" + file)), bytes_of(path(b + "/" + file))) << b << "/" << file;
    }
  }
  void equal_tensors(const std::string& a, const std::string& b) const {
    EXPECT_EQ(mt::first_difference(CheckpointReader(path(a)), CheckpointReader(path(b)), {}),
              std::nullopt);
  }
  [[nodiscard]] std::vector<float> ours(const std::string& from, const std::string& name) const {
    const CheckpointReader reader(path(from));
    const auto& info = reader.tensors().at(name);
    std::vector<float> out(static_cast<std::size_t>(mt::element_count(info.shape)));
    reader.read(name, info.shape, mt::Shape(info.shape.size(), 0), info.shape, DType::kF32,
                out.data());
    return out;
  }
  template <typename Error>
  [[nodiscard]] static std::string refused(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }
};

TEST_F(Export, puts_every_element_where_it_belongs) {
  train({2, 2, 1, false}, "cut");
  to_theirs("cut", "theirs");
  const mt::SafetensorsReader reader(path("theirs"));
  EXPECT_EQ(reader.tensors().size(), 4U + 4U * 12U);
  const auto at = [](const std::vector<float>& values, std::int64_t index) {
    return values.at(static_cast<std::size_t>(index));
  };
  constexpr std::int64_t kWidth = 16, kInner = 28;
  const auto fused = reader.read_f32("transformer.h.3.attn.c_attn.weight");
  const auto fused_bias = reader.read_f32("transformer.h.3.attn.c_attn.bias");
  std::int64_t part = 0;
  for (const char* const name : {"query", "key", "value"}) {
    const auto weight = ours("cut", mt::cat("layers.3.self_attention.", name, ".weight"));
    const auto bias = ours("cut", mt::cat("layers.3.self_attention.", name, ".bias"));
    for (std::int64_t out = 0; out < kWidth; ++out) {
      EXPECT_EQ(at(bias, out), at(fused_bias, part * kWidth + out));
      for (std::int64_t in = 0; in < kWidth; ++in) {
        ASSERT_EQ(at(weight, out * kWidth + in), at(fused, in * 3 * kWidth + part * kWidth + out));
      }
    }
    ++part;
  }
  const auto up = ours("cut", "layers.0.mlp.dense_h_to_4h.weight");
  const auto their_up = reader.read_f32("transformer.h.0.mlp.c_fc.weight");
  for (std::int64_t out = 0; out < kInner; ++out) {
    for (std::int64_t in = 0; in < kWidth; ++in) {
      ASSERT_EQ(at(up, out * kWidth + in), at(their_up, in * kInner + out));
    }
  }
  EXPECT_EQ(ours("cut", "embedding.word_embeddings.weight"),
            reader.read_f32("transformer.wte.weight"));
  const mt::Json config = mt::parse_json(bytes_of(path("theirs/config.json")), "config.json");
  EXPECT_EQ(config["vocab_size"], 37);
  EXPECT_EQ(config["n_inner"], kInner);
  EXPECT_EQ(config["tie_word_embeddings"], true);
  EXPECT_TRUE(config["eos_token_id"].is_null());
}

TEST_F(Export, has_the_same_bytes_from_every_layout_and_in_any_memory) {
  train(kLayouts[0], "one");
  to_theirs("one", "theirs");
  for (const Layout& layout : kLayouts) {
    const std::string name = layout.name();
    train(layout, name);
    // So little that each band of rows is written for itself; and so that some are.
    for (const std::uint64_t memory : {std::uint64_t{1}, std::uint64_t{10000}}) {
      to_theirs(name, "again", {.most_memory = memory});
      same_bytes("theirs", "again");
      fs::remove_all(path("again"));
    }
  }
}

TEST_F(Export, comes_back_to_the_same_tensors_in_each_type) {
  train({4, 2, 1, true}, "cut");
  weights_only("cut", "weights");
  to_theirs("cut", "theirs");
  to_ours("theirs", "back");
  equal_tensors("weights", "back");
  for (const auto& [type, name] : {std::pair{DType::kBf16, "BF16"}, {DType::kF16, "F16"}}) {
    mt::copy_checkpoint(path("cut"), path("half"), {.weights = type});
    to_theirs("half", "as-stored");
    to_theirs("cut", "narrowed", {.weights = type, .most_memory = 1});
    same_bytes("as-stored", "narrowed");
    EXPECT_EQ(mt::SafetensorsReader(path("narrowed")).info("transformer.wpe.weight").type, name);
    to_ours("narrowed", "wide");
    mt::copy_checkpoint(path("half"), path("widened"), {.weights = DType::kF32});
    equal_tensors("widened", "wide");
    for (const char* const each : {"half", "as-stored", "narrowed", "wide", "widened"}) {
      fs::remove_all(path(each));
    }
  }
}

TEST_F(Export, comes_back_straight_to_any_grid_in_any_memory) {
  train({2, 2, 1, false}, "cut");
  to_theirs("cut", "theirs", {.most_shard = 5000});
  to_ours("theirs", "one");
  for (const auto& [tensor, pipeline] : {std::pair{1, 1}, {4, 1}, {1, 4}, {2, 2}}) {
    const mt::CheckpointLayout layout{.tensor = tensor, .pipeline = pipeline};
    for (const auto& weights : {std::optional<DType>(), std::optional(DType::kBf16)}) {
      mt::copy_checkpoint(path("one"), path("wanted"), {.layout = layout, .weights = weights});
      // With 1 byte a row of theirs at a time is turned.
      for (const std::uint64_t memory : {std::uint64_t{1}, std::uint64_t{4000}}) {
        mt::import_foreign(path("theirs"), path("found"), {},
                           {.layout = layout, .weights = weights, .most_memory = memory});
        same_bytes("wanted", "found");
        fs::remove_all(path("found"));
      }
      fs::remove_all(path("wanted"));
    }
  }
  EXPECT_NE(refused<mt::UsageError>([&] {
              mt::import_foreign(path("theirs"), path("x"), {}, {.layout = {.tensor = 3}});
            }).find("--tensor-model-parallel-size 3"),
            std::string::npos);
  EXPECT_THROW(mt::import_foreign(path("theirs"), path("x"), {}, {.stop = [] { return SIGTERM; }}),
               mt::Error);
  EXPECT_FALSE(fs::exists(path("x")));
}

TEST_F(Export, is_read_in_bands_and_turned_in_blocks_of_any_size) {
  train({2, 2, 1, false}, "cut");
  to_theirs("cut", "theirs");
  const CheckpointReader reader(path("cut"));
  // Bytes: less than a row, some rows, a number of rows that divides nothing, all.
  for (const std::uint64_t band : {1, 128, 320, 1 << 20}) {
    for (const std::uint64_t block : {1, 300, 700, 1 << 20}) {
      const auto source = mt::open_foreign(path("theirs"), {.most_turned = block}).weights;
      for (const auto& [name, info] : source->tensors()) {
        const auto found = source->rows(name, band), wanted = reader.rows(name, band);
        mt::RowStream::Band x, y;
        while (wanted->next(y)) {
          ASSERT_TRUE(found->next(x)) << name;
          ASSERT_EQ(x.first, y.first) << name;
          ASSERT_EQ(x.bytes, y.bytes) << name;
          ASSERT_EQ(std::memcmp(x.data, y.data, x.bytes), 0) << name << " " << x.first;
        }
        EXPECT_FALSE(found->next(x)) << name;
        EXPECT_EQ(mt::to_hex(found->digest()), mt::to_hex(wanted->digest())) << name;
      }
    }
  }
}

TEST_F(Export, is_compared_with_checkpoints_of_any_grid) {
  train({2, 2, 2, true}, "run");  // with the optimizer's tensors, which theirs lacks
  to_theirs("run", "theirs");
  std::ostringstream out;
  EXPECT_EQ(mt::verify_two(path("run"), path("theirs"), out), 0);
  EXPECT_EQ(mt::verify_two(path("theirs"), path("theirs"), out), 0);
  EXPECT_EQ(mt::verify_one(path("theirs")), 0);
  EXPECT_EQ(out.str(), "");
  EXPECT_EQ(mt::diff_checkpoints(path("run"), path("theirs"), true, out), 0);
  const mt::Json same = mt::parse_json(out.str(), "diff");
  EXPECT_EQ(same["tensors"].size(), 4U + 4U * 16U);
  EXPECT_TRUE(same["only_a"].empty());
  out.str("");
  EXPECT_EQ(mt::list_checkpoint(path("theirs"), true, out), 0);
  const mt::Json list = mt::parse_json(out.str(), "list");
  const CheckpointReader reader(path("run"));
  EXPECT_EQ(list["format"], "safetensors");
  EXPECT_EQ(list["model"], reader.model());
  for (const auto& [name, tensor] : list["tensors"].items()) {
    EXPECT_EQ(tensor["digest"], mt::to_hex(reader.tensors().at(name).digest)) << name;
  }
  // The bias of a key: element 3 of the second part of theirs.
  std::string file = bytes_of(path("theirs/model.safetensors"));
  const mt::SafetensorsReader theirs(path("theirs"));
  const float other = 12345;
  std::memcpy(file.data() + theirs.info("transformer.h.2.attn.c_attn.bias").offset + 4 * (16 + 3),
              &other, sizeof(other));
  put(path("theirs/model.safetensors"), file);
  out.str("");
  EXPECT_EQ(mt::verify_two(path("run"), path("theirs"), out), 1);
  EXPECT_EQ(out.str().rfind("tensor layers.2.self_attention.key.bias: element [3]: ", 0), 0U)
      << out.str();
  EXPECT_NE(out.str().find(" and 12345\n"), std::string::npos) << out.str();
  to_theirs("run", "half", {.weights = DType::kBf16});
  mt::copy_checkpoint(path("run"), path("narrow"), {.weights = DType::kBf16});
  EXPECT_EQ(mt::verify_two(path("narrow"), path("half"), out), 0);
}

TEST_F(Export, cuts_files_at_the_size_that_was_asked) {
  train(kLayouts[3], "cut");
  weights_only("cut", "weights");
  to_theirs("cut", "theirs", {.most_shard = 5000});
  const mt::Json index =
      mt::parse_json(bytes_of(path("theirs/model.safetensors.index.json")), "index");
  std::map<std::string, std::uint64_t> held;
  std::map<std::string, int> tensors;
  std::uint64_t total = 0;
  const mt::SafetensorsReader reader(path("theirs"));
  for (const auto& [name, file] : index["weight_map"].items()) {
    const std::uint64_t bytes = reader.info(name).bytes;
    held[file] += bytes;
    ++tensors[file];
    total += bytes;
  }
  EXPECT_EQ(index["metadata"]["total_size"], total);
  EXPECT_GT(held.size(), 5U);
  for (const auto& [file, bytes] : held) {
    EXPECT_TRUE(bytes <= 5000 || tensors[file] == 1) << file;
    EXPECT_TRUE(file.ends_with(mt::cat("-of-0000", held.size(), ".safetensors")) ||
                file.ends_with(mt::cat("-of-000", held.size(), ".safetensors")))
        << file;
  }
  EXPECT_EQ(files("theirs").size(), held.size() + 2);
  to_ours("theirs", "back");
  equal_tensors("weights", "back");
}

TEST_F(Export, leaves_nothing_where_it_fails) {
  train(kLayouts[3], "cut");
  // Not a GPT; and a stop that is asked for.
  EXPECT_NE(refused<mt::DataError>([&] { to_theirs("a", "x"); }).find("manifest.json: model"),
            std::string::npos);
  EXPECT_THROW(to_theirs("cut", "x", {.stop = [] { return SIGTERM; }}), mt::Error);
  EXPECT_THROW(to_theirs("nothing", "x"), mt::EnvironmentError);
  // A byte of a weight.
  fs::copy(path("cut"), path("bad"), fs::copy_options::recursive);
  std::string bytes = bytes_of(path("bad/model-pp01-tp00.h5"));
  bytes[bytes.size() - 20] ^= 1;
  put(path("bad/model-pp01-tp00.h5"), bytes);
  EXPECT_NE(refused<mt::DataError>([&] { to_theirs("bad", "x"); }).find("model-pp01-tp00.h5"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(path("x")));
  for (const auto& entry : fs::directory_iterator(path(""))) {
    EXPECT_EQ(entry.path().filename().string().find(".tmp."), std::string::npos) << entry.path();
  }
  fs::create_directory(path("there"));
  EXPECT_NE(refused<mt::UsageError>([&] { to_theirs("cut", "there"); }).find("exists"),
            std::string::npos);
}

TEST_F(Export, names_a_number_that_the_type_cannot_hold) {
  train(kLayouts[1], "cut");
  to_theirs("cut", "theirs");
  std::string file = bytes_of(path("theirs/model.safetensors"));
  const float large = 70000.0F;  // beyond f16
  const mt::SafetensorsReader reader(path("theirs"));
  std::memcpy(file.data() + reader.info("transformer.h.2.mlp.c_proj.bias").offset + 4 * 5, &large,
              sizeof(large));
  fs::create_directory(path("large"));
  fs::copy(path("theirs/config.json"), path("large/config.json"));
  put(path("large/model.safetensors"), file);
  to_ours("large", "large-ckpt");
  EXPECT_EQ(
      refused<mt::DataError>([&] { to_theirs("large-ckpt", "x", {.weights = DType::kF16}); }),
      "tensor layers.2.mlp.dense_4h_to_h.bias: element 5 is beyond the largest number of f16");
  EXPECT_FALSE(fs::exists(path("x")));
}

// The widths and the tokenizer that the files of llm.c and GGUF want.
class OneFile : public Export {
 protected:
  OneFile() {
    const mt::TokenizerFiles files = mt::testing::byte_level_files();
    const std::string vocab = path("vocab.json"), merges = path("merges.txt");
    put(vocab, files.vocab);
    put(merges, files.merges);
    mt::testing::ForeignModel model(259);
    std::mt19937 generator(9);
    model.config["n_inner"] = 24;
    for (auto& [name, tensor] : model.tensors) {
      const bool up = name.find("c_fc") != std::string::npos;
      const bool down = name.find("mlp.c_proj.weight") != std::string::npos;
      if (up && tensor.shape.size() == 1)
        tensor = mt::testing::ForeignModel::random({24}, generator);
      if (up && tensor.shape.size() == 2) {
        tensor = mt::testing::ForeignModel::random({6, 24}, generator);
      }
      if (down) tensor = mt::testing::ForeignModel::random({24, 6}, generator);
    }
    model.write(path("hf"));
    to_ours("hf", "one");
    for (const auto& [tensor, pipeline] : {std::pair{3, 1}, {1, 2}, {3, 2}}) {
      mt::copy_checkpoint(path("one"), path(mt::cat("cut", tensor, pipeline)),
                          {.layout = {.tensor = tensor, .pipeline = pipeline}});
    }
  }
  void from_llmc(const std::string& from, const std::string& to) const {
    mt::import_foreign(path(from), path(to), {path("vocab.json"), path("merges.txt")}, {});
  }
  const std::vector<std::string> cuts_ = {"one", "cut31", "cut12", "cut32"};
};

TEST_F(OneFile, llmc_has_one_file_for_all_layouts_and_comes_back) {
  mt::export_llmc(path("one"), path("f32.bin"), {});
  mt::export_llmc(path("one"), path("bf16.bin"), {.weights = DType::kBf16});
  const std::string wide = bytes_of(path("f32.bin")), narrow = bytes_of(path("bf16.bin"));
  for (const std::string& cut : cuts_) {
    for (const std::uint64_t memory : {std::uint64_t{1}, std::uint64_t{1} << 30}) {
      mt::export_llmc(path(cut), path("again"), {.replace = true, .most_memory = memory});
      EXPECT_TRUE(bytes_of(path("again")) == wide) << cut;
    }
  }
  // 256 numbers; 259 entries become 384, with rows of zeros.
  const std::int32_t expected[] = {20240326, 3, 7, 259, 2, 3, 6, 384, 0};
  EXPECT_EQ(std::memcmp(wide.data(), expected, sizeof expected), 0);
  const std::size_t parameters = 384 * 6 + 7 * 6 + 2 * (12 * 36 + 13 * 6) + 2 * 6;
  EXPECT_EQ(wide.size(), 1024 + parameters * 4);
  EXPECT_EQ(narrow.size(), 1024 + parameters * 2);
  EXPECT_EQ(wide.substr(1024 + 259 * 6 * 4, 125 * 6 * 4), std::string(125 * 6 * 4, '\0'));
  // The value weights of layer 1 follow its keys'.
  const auto value = ours("one", "layers.1.self_attention.value.weight");
  const std::size_t fused = 384 * 6 + 7 * 6 + 2 * 2 * 6;
  EXPECT_EQ(std::memcmp(wide.data() + 1024 + (fused + (3 + 2) * 36) * 4, value.data(), 36 * 4), 0);
  from_llmc("f32.bin", "back");
  equal_tensors("one", "back");
  from_llmc("bf16.bin", "half");
  mt::copy_checkpoint(path("one"), path("rounded"), {.weights = DType::kBf16});
  equal_tensors("rounded", "half");
  EXPECT_EQ(CheckpointReader(path("back")).tokenizer_digest(),
            CheckpointReader(path("one")).tokenizer_digest());
  EXPECT_THROW(mt::export_llmc(path("one"), path("f32.bin"), {}), mt::UsageError);
  EXPECT_THROW(mt::export_llmc(path("one"), path("x"), {.weights = DType::kF16}), mt::UsageError);
  train(kLayouts[0], "other");  // whose inner width is not 4 h
  EXPECT_NE(refused<mt::UsageError>([&] {
              mt::export_llmc(path("other"), path("x"), {});
            }).find("inner width of 28"),
            std::string::npos);
}

TEST_F(OneFile, a_spoiled_llmc_file_is_refused) {
  mt::export_llmc(path("one"), path("good.bin"), {});
  EXPECT_TRUE(mt::is_llmc(path("good.bin")) && !mt::is_llmc(path("one")) &&
              !mt::is_llmc(path("vocab.json")));
  const std::string good = bytes_of(path("good.bin"));
  const auto with = [&](std::size_t number, std::int32_t value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + number * 4, &value, 4);
    return bytes;
  };
  std::string infinite = good;
  const float inf = std::numeric_limits<float>::infinity();
  std::memcpy(infinite.data() + 1024 + 4 * 10, &inf, 4);
  const std::pair<std::string, std::string> cases[] = {
      {with(0, 1), "magic number 1"},
      {with(1, 4), "version 4, expected 3 (fp32) or 5 (bf16)"},
      {with(1, 5), "bytes, expected 1024 +"},
      {with(2, 0), "max_seq_len: expected 1 or more, found 0"},
      {with(3, -7), "vocab_size"},
      {with(4, 3), "bytes, expected 1024 +"},
      {with(4, 2000000000), "num_layers: below 65536, found 2000000000"},
      {with(5, 4), "4"},
      {with(6, 2147483646), ""},
      {with(7, 259), "padded_vocab_size: expected 384, found 259"},
      {good.substr(0, 1000), "truncated: 1000 bytes"},
      {good.substr(0, good.size() - 1), "bytes, expected 1024 +"},
      {good + "x", "bytes, expected 1024 +"},
      {infinite, "a value is inf (element 10 of embedding.word_embeddings.weight)"},
  };
  for (const auto& [bytes, text] : cases) {
    put(path("bad.bin"), bytes);
    const std::string found = refused<mt::DataError>([&] { from_llmc("bad.bin", "x"); });
    EXPECT_EQ(found.rfind(path("bad.bin"), 0), 0U) << found;
    EXPECT_NE(found.find(text), std::string::npos) << text << ": " << found;
    EXPECT_FALSE(fs::exists(path("x")));
  }
  std::mt19937 generator(3);
  int refusals = 0;
  for (int round = 0; round < 500; ++round) {
    std::string bytes = good;
    bytes[generator() % 32] = static_cast<char>(generator());
    put(path("bad.bin"), bytes);
    try {
      from_llmc("bad.bin", "x");
      fs::remove_all(path("x"));
    } catch (const mt::DataError&) {
      ++refusals;
    }
  }
  EXPECT_GT(refusals, 300);
}

TEST_F(OneFile, gguf_has_one_file_for_all_layouts_in_any_memory) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBf16}) {
    mt::export_gguf(path("one"), path("whole"), {.weights = type, .replace = true});
    const std::string whole = bytes_of(path("whole"));
    EXPECT_EQ(whole.substr(0, 4), "GGUF");
    EXPECT_EQ(whole.size() % 32, 0U);
    for (const std::string& cut : cuts_) {
      mt::export_gguf(path(cut), path("again"),
                      {.weights = type, .replace = true, .most_memory = 1});
      EXPECT_TRUE(bytes_of(path("again")) == whole) << cut;
    }
  }
  train(kLayouts[0], "mute");
  EXPECT_NE(refused<mt::DataError>([&] {
              mt::export_gguf(path("mute"), path("x"), {});
            }).find("no tokenizer travels"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(path("x")));
}

}  // namespace
