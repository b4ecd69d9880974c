// Models in other libraries' formats under our names: what a GGUF file may say, and --verify
// between any two formats, which names the element that differs.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <sstream>

#include "base/error.h"
#include "base/threads.h"
#include "convert/copy_checkpoint.h"
#include "convert/export_hugging_face.h"
#include "convert/foreign_view.h"
#include "convert/gguf.h"
#include "convert/import_foreign.h"
#include "convert/inspect.h"
#include "convert/llmc.h"
#include "io/gguf_reader.h"
#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "test/shared_data.h"

namespace {

using mt::DType;
using mt::testing::Scratch;
using mt::testing::slurp;
using mt::testing::spill;

// The bytes of a file, made by hand.
struct Bytes {
  std::string out;
  template <typename T>
  Bytes& number(T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& text(const std::string& value) {
    number(std::uint64_t{value.size()});
    out += value;
    return *this;
  }
};

struct Tensor {
  std::string name;
  std::vector<std::uint64_t> sizes;  // innermost first
  std::uint32_t type;
  std::uint64_t offset;
};

const std::vector<Tensor> kTensors{
    {"a", {3, 2}, 0, 0}, {"b", {5}, 1, 32}, {"c", {2, 1, 2}, 30, 64}};
constexpr std::uint32_t kU32 = 4, kBool = 7, kString = 8, kArray = 9, kI64 = 11;

// With the keys given, behind general.architecture; `count` of them.
std::string file_of(const std::vector<Tensor>& tensors, const std::string& keys = "",
                    std::uint64_t count = 0, std::size_t data = 72) {
  Bytes bytes{"GGUF"};
  bytes.number(std::uint32_t{3}).number(std::uint64_t{tensors.size()}).number(count + 1);
  bytes.text("general.architecture").number(kString).text("gpt2");
  bytes.out += keys;
  for (const Tensor& tensor : tensors) {
    bytes.text(tensor.name).number(static_cast<std::uint32_t>(tensor.sizes.size()));
    for (const std::uint64_t size : tensor.sizes) bytes.number(size);
    bytes.number(tensor.type).number(tensor.offset);
  }
  bytes.out.resize((bytes.out.size() + 31) / 32 * 32, '\0');
  for (std::size_t i = 0; i < data; ++i) bytes.out.push_back(static_cast<char>(i + 1));
  return bytes.out;
}

std::string key(const std::string& name, std::uint32_t type, const std::string& value) {
  return Bytes{}.text(name).number(type).out + value;
}

std::string refused(const std::string& path) {
  try {
    const mt::GgufReader reader(path);
  } catch (const mt::DataError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Gguf, is_read_as_it_was_written) {
  const Scratch folder;
  const std::string path = folder / "x.gguf";
  const std::string words = Bytes{}.number(kString).number(std::uint64_t{2}).text("x").text("").out;
  const std::string numbers = Bytes{}.number(kU32).number(std::uint64_t{2}).out + "12345678";
  spill(path, file_of(kTensors,
                      key("words", kArray, words) + key("numbers", kArray, numbers) +
                          key("yes", kBool, "\1") + key("long", kI64, "12345678") +
                          key("name", kString, Bytes{}.text("n").out),
                      5));
  const mt::GgufReader reader(path);
  EXPECT_TRUE(mt::is_gguf(path));
  EXPECT_EQ(reader.texts(),
            (std::map<std::string, std::string>{{"general.architecture", "gpt2"}, {"name", "n"}}));
  ASSERT_EQ(reader.tensors().size(), 3U);
  const auto& a = reader.tensors().at("a");
  const auto& b = reader.tensors().at("b");
  const auto& c = reader.tensors().at("c");
  EXPECT_EQ(a.shape, (mt::Shape{2, 3}));
  EXPECT_EQ(b.shape, (mt::Shape{5}));
  EXPECT_EQ(c.shape, (mt::Shape{2, 1, 2}));
  EXPECT_TRUE(a.type == DType::kF32 && b.type == DType::kF16 && c.type == DType::kBf16);
  EXPECT_TRUE(a.data[0] == std::byte{1} && b.data[0] == std::byte{33} &&
              c.data[7] == std::byte{72});
}

TEST(Gguf, what_is_damaged_or_lies_is_refused_by_name) {
  const Scratch folder;
  const std::string path = folder / "x.gguf", good = file_of(kTensors);
  const auto with = [&](std::size_t at, std::uint64_t value, std::size_t bytes) {
    std::string out = good;
    std::memcpy(out.data() + at, &value, bytes);
    return out;
  };
  const auto third = [](const Tensor& tensor) {
    return file_of({kTensors[0], kTensors[1], tensor});
  };
  const std::string alignment = Bytes{}.number(std::uint32_t{12}).out;
  const std::string nested = Bytes{}.number(kArray).number(std::uint64_t{1}).out;
  const std::string endless = Bytes{}.number(kU32).number(~std::uint64_t{0} / 4).out;
  const std::pair<std::string, std::string> cases[] = {
      {"", "truncated"},
      {"GGU", "truncated"},
      {with(0, 'X', 1), "magic"},
      {with(4, 2, 4), "version 2, expected 3"},
      {with(8, ~std::uint64_t{0}, 8), "tensors do not fit"},
      {with(16, std::uint64_t{1} << 60U, 8), "keys do not fit"},
      {with(24, std::uint64_t{1} << 40U, 8), "truncated"},
      {good.substr(0, 90), "3 tensors do not fit"},
      {good.substr(0, good.size() - 1), "tensor c: bytes 64 to 64 + 8 of 71"},
      {third({"c", {2, 2}, 2, 64}), "tensor c: type 2, expected 0"},
      {third({"c", {}, 0, 64}), "tensor c: 0 dimensions"},
      {third({"c", {1, 1, 1, 1, 1}, 0, 64}), "tensor c: 5 dimensions"},
      {third({"c", {2, 0}, 0, 64}), "tensor c: a dimension of 0"},
      {third({"c", {1U << 31U, 1U << 31U}, 0, 64}), "tensor c: a dimension of"},
      {third({"c", {~std::uint64_t{0}}, 0, 64}), "tensor c: a dimension of"},
      {third({"c", {1}, 0, ~std::uint64_t{0} - 31}), "tensor c: bytes"},
      {third({"c", {1}, 0, 68}), "tensor c: begins at 68"},
      {third({"c", {1}, 0, 32}), "tensor c: begins where"},
      {third({"b", {1}, 0, 64}), "tensor b: is there twice"},
      {third({std::string(65, 'n'), {1}, 0, 64}), "name of 65 bytes"},
      {file_of({{"a", {9}, 0, 0}, kTensors[1], kTensors[2]}), "tensor b: overlaps"},
      {file_of(kTensors, key("general.architecture", kString, Bytes{}.text("x").out), 1), "twice"},
      {file_of(kTensors, key("k", 13, "1"), 1), "key k: type 13"},
      {file_of(kTensors, key("k", kBool, "\2"), 1), "key k: no truth value"},
      {file_of(kTensors, key("k", kArray, nested), 1), "key k: an array of arrays"},
      {file_of(kTensors, key("k", kArray, endless), 1), "elements do not fit"},
      {file_of(kTensors, key("general.alignment", kU32, alignment), 1), "general.alignment: 12"},
  };
  for (const auto& [bytes, text] : cases) {
    spill(path, bytes);
    const std::string found = refused(path);
    EXPECT_EQ(found.rfind(path, 0), 0U) << found;
    EXPECT_NE(found.find(text), std::string::npos) << text << ": " << found;
  }
  EXPECT_THROW(mt::GgufReader(folder / "none"), mt::EnvironmentError);
}

TEST(Gguf, spoiled_bytes_never_lead_outside_the_file) {
  const Scratch folder;
  const std::string path = folder / "x.gguf", good = file_of(kTensors);
  std::mt19937 generator(7);
  int refusals = 0;
  unsigned sum = 0;
  for (int round = 0; round < 1000; ++round) {
    std::string bytes = good;
    for (unsigned i = generator() % 3 + 1; i > 0; --i) {
      bytes[generator() % (good.size() - 72)] = static_cast<char>(generator());
    }
    if (round % 4 == 0) bytes.resize(generator() % good.size());
    spill(path, bytes);
    try {
      const mt::GgufReader reader(path);
      for (const auto& [name, tensor] : reader.tensors()) {
        const auto count = static_cast<std::size_t>(mt::element_count(tensor.shape));
        for (std::size_t i = 0; i < count * dtype_size(tensor.type); ++i) {
          sum += std::to_integer<unsigned>(tensor.data[i]);
        }
      }
    } catch (const mt::DataError&) {
      ++refusals;
    }
  }
  EXPECT_GT(refusals, 500);
  EXPECT_GT(sum, 0U);
}

TEST(Source, what_cannot_be_looked_at_is_not_taken_for_another_format) {
  const Scratch folder;
  spill(folder / "file", "GGUF and so on");
  std::filesystem::create_symlink("file", folder / "link");
  std::filesystem::create_symlink("nowhere", folder / "dangling");
  std::filesystem::create_symlink("circle", folder / "circle");
  EXPECT_TRUE(mt::is_file(folder / "file") && mt::is_file(folder / "link"));
  EXPECT_TRUE(mt::is_gguf(folder / "file") && mt::is_gguf(folder / "link"));
  for (const char* const other : {"", "none", "dangling", "file/below"}) {
    EXPECT_FALSE(mt::is_file(folder / other) || mt::is_gguf(folder / other) ||
                 mt::is_llmc(folder / other))
        << other;
  }
  for (const std::string& path : {folder / "circle", folder / std::string(300, 'n')}) {
    EXPECT_THROW(static_cast<void>(mt::is_file(path)), mt::EnvironmentError);
    EXPECT_THROW(static_cast<void>(mt::is_gguf(path)), mt::EnvironmentError);
    EXPECT_THROW(static_cast<void>(mt::is_llmc(path)), mt::EnvironmentError);
    EXPECT_THROW(static_cast<void>(mt::is_foreign(path)), mt::EnvironmentError);
  }
}

// A model of 4 layers, width 128, in every format.
class Formats : public testing::Test {
 protected:
  Formats() {
    mt::set_threads(2);
    mt::import_foreign(hf_, folder_ / "one", {}, {});
    mt::copy_checkpoint(folder_ / "one", folder_ / "cut", {.layout = {.tensor = 4, .pipeline = 2}});
    mt::export_hugging_face(folder_ / "cut", folder_ / "hf", {});
    mt::export_gguf(folder_ / "cut", folder_ / "gguf", {});
    mt::export_llmc(folder_ / "cut", folder_ / "llmc", {});
  }
  [[nodiscard]] std::string verify(const std::string& a, const std::string& b) const {
    std::ostringstream out;
    const int status = mt::verify_two(folder_ / a, folder_ / b, out);
    EXPECT_EQ(status, out.str().empty() ? 0 : 1);
    return out.str();
  }
  // The lowest bit of an element of f32.
  void spoil(const std::string& file, std::uint64_t at) const {
    std::string bytes = slurp(folder_ / file);
    ASSERT_LT(at + 4, bytes.size());
    bytes[at] ^= 1;
    spill(folder_ / file, bytes);
  }
  Scratch folder_;
  std::string hf_ = mt::testing::data_path("hf/gpt-shakespeare");
};

TEST_F(Formats, verify_finds_any_two_equal) {
  const char* const all[] = {"one", "cut", "hf", "gguf", "llmc"};
  for (const char* const a : all) {
    for (const char* const b : all) EXPECT_EQ(verify(a, b), "") << a << " " << b;
  }
  for (const DType type : {DType::kBf16, DType::kF16}) {
    mt::copy_checkpoint(folder_ / "one", folder_ / "half", {.weights = type, .replace = true});
    mt::export_gguf(folder_ / "half", folder_ / "half.gguf", {.replace = true});
    EXPECT_EQ(verify("half", "half.gguf"), "");
    EXPECT_EQ(verify("half.gguf", "half"), "");
    // Its readers add vectors and positions to f32, and want them so.
    const mt::GgufReader reader(folder_ / "half.gguf");
    for (const auto& [name, tensor] : reader.tensors()) {
      const bool narrow = tensor.shape.size() == 2 && name != "position_embd.weight";
      EXPECT_EQ(tensor.type, narrow ? type : DType::kF32) << name;
    }
    mt::export_hugging_face(folder_ / "half", folder_ / "half.hf", {.replace = true});
    EXPECT_EQ(verify("half.gguf", "half.hf"), "");
    EXPECT_NE(verify("half", "hf").find(mt::cat(dtype_name(type), " [128, 128] and f32")),
              std::string::npos);
  }
  mt::copy_checkpoint(folder_ / "one", folder_ / "bf16", {.weights = DType::kBf16});
  mt::export_llmc(folder_ / "bf16", folder_ / "bf16.bin", {});
  EXPECT_EQ(verify("bf16.bin", "bf16"), "");
  mt::copy_checkpoint(folder_ / "one", folder_ / "f16", {.weights = DType::kF16});
  EXPECT_NE(verify("bf16.bin", "f16").find("bf16 [128, 128] and f16"), std::string::npos);
}

// Element [7, 5] of layer 2's keys in each format, one bit.
TEST_F(Formats, verify_names_the_element_that_differs) {
  const std::string name = "tensor layers.2.self_attention.key.weight: element [7, 5]: ";
  const std::uint64_t width = 128, row = width + 7;
  const auto in_hf =
      mt::SafetensorsReader(folder_ / "hf").info("transformer.h.2.attn.c_attn.weight").offset;
  spoil("hf/model.safetensors", in_hf + (5 * 3 * width + row) * 4);
  EXPECT_EQ(verify("cut", "hf").rfind(name, 0), 0U) << verify("cut", "hf");
  EXPECT_EQ(verify("hf", "llmc").rfind(name, 0), 0U);
  const std::string gguf = slurp(folder_ / "gguf");
  {
    const mt::GgufReader reader(folder_ / "gguf");
    const auto& tensor = reader.tensors().at("blk.2.attn_qkv.weight");
    const std::string begin(reinterpret_cast<const char*>(tensor.data), 256);
    const std::size_t at = gguf.find(begin);
    ASSERT_EQ(gguf.find(begin, at + 1), std::string::npos);
    spoil("gguf", at + (row * width + 5) * 4);
  }
  EXPECT_EQ(verify("gguf", "one").rfind(name, 0), 0U);
  EXPECT_EQ(verify("gguf", "hf"), "");  // the same bit
  // 1024 entries, 128 positions, two vectors of 4 layers, then layers of 3 x 128 rows.
  spoil(
      "llmc",
      1024 + (1024 * width + 128 * width + 2 * 4 * width + (2 * 3 * width + row) * width + 5) * 4);
  EXPECT_EQ(verify("llmc", "one").rfind(name, 0), 0U);
  EXPECT_EQ(verify("llmc", "gguf"), "");
  // Beyond the first band of rows: as it stands, and transposed.
  const auto up = mt::SafetensorsReader(folder_ / "hf").info("transformer.h.1.mlp.c_fc.weight");
  spoil("hf/model.safetensors", up.offset + (6 * 4 * width + 300) * 4);
  EXPECT_EQ(
      verify("hf", "gguf").rfind("tensor layers.1.mlp.dense_h_to_4h.weight: element [300, 6]: ", 0),
      0U);
  spoil("llmc", 1024 + (1024 * width - 1) * 4);
  EXPECT_EQ(verify("one", "llmc")
                .rfind("tensor embedding.word_embeddings.weight: element [1023, 127]: ", 0),
            0U);
}

TEST_F(Formats, verify_names_what_is_missing_or_unknown) {
  std::string bytes = slurp(folder_ / "gguf");
  const auto rename = [&](const std::string& from, const std::string& to) {
    std::string other = bytes;
    other.replace(other.find(from), from.size(), to);
    spill(folder_ / "other", other);
    try {
      return verify("one", "other");
    } catch (const mt::DataError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_NE(rename("blk.3.ffn_up.bias", "blk.3.ffn_us.bias").find("ffn_us.bias: has no name here"),
            std::string::npos);
  EXPECT_NE(rename("blk.3.ffn_up.bias", "blk.5.ffn_up.bias")
                .find("tensor layers.3.mlp.dense_h_to_4h.bias: only in"),
            std::string::npos);
  EXPECT_NE(rename("gpt2", "gptx").find("general.architecture: expected gpt2, found gptx"),
            std::string::npos);
}

}  // namespace
