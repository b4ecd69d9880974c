#include "io/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"

namespace {

using mt::DataError;
using mt::SafetensorsReader;
using mt::Shape;

// Eight bytes of length, the header, the data.
std::string file_of(const std::string& header, const std::string& data,
                    std::uint64_t length = ~0ULL) {
  length = length == ~0ULL ? header.size() : length;
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

std::string entry(const std::string& name, const std::string& type, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

class Safetensors : public testing::Test {
 protected:
  Safetensors() {
    std::string name = testing::TempDir() + "mt-safetensors-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~Safetensors() override { std::filesystem::remove_all(folder_); }

  std::string put(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << bytes;
    return folder_ + "/" + name;
  }
  // The message of the DataError that opening this file must give.
  std::string refusal(const std::string& bytes) const {
    try {
      const SafetensorsReader reader(put("bad.safetensors", bytes));
    } catch (const DataError& error) {
      return error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "another error: " << error.what();
      return "";
    }
    ADD_FAILURE() << "accepted: " << bytes.substr(0, 200);
    return "";
  }

  std::string folder_;
};

TEST_F(Safetensors, reads_every_type_it_converts) {
  std::string data;
  const float f32[] = {1.5F, -2.0F, 1e-45F};
  const std::uint16_t bf16[] = {0x3FC0, 0xC000};
  const std::uint16_t f16[] = {0x3E00, 0xC000, 0x0001, 0x8000, 0x7C00, 0x7BFF};
  const double f64[] = {0.1};
  const auto append = [&](const auto& values) {
    data.append(reinterpret_cast<const char*>(&values), sizeof values);
  };
  append(f16);  // the f32 behind it lies at an odd place, as it may
  append(f32);
  append(bf16);
  append(f64);
  data += "\x01";
  const std::string header =
      "{\"__metadata__\":{\"format\":\"pt\"}," + entry("a", "F16", "[3,2]", "[0,12]") + "," +
      entry("b", "F32", "[3]", "[12,24]") + "," + entry("c", "BF16", "[2,1]", "[24,28]") + "," +
      entry("d", "F64", "[]", "[28,36]") + "," + entry("e", "BOOL", "[1]", "[36,37]") + "," +
      entry("f", "F32", "[0,7]", "[37,37]") + "}  ";
  const SafetensorsReader reader(put("m.safetensors", file_of(header, data)));
  EXPECT_EQ(reader.tensors().size(), 6U);
  EXPECT_EQ(reader.info("a").shape, (Shape{3, 2}));
  EXPECT_EQ(reader.read_f32("a"),
            (std::vector<float>{1.5F, -2.0F, 0x1p-24F, -0.0F, INFINITY, 65504.0F}));
  EXPECT_TRUE(std::signbit(reader.read_f32("a")[3]));
  EXPECT_EQ(reader.read_f32("b"), (std::vector<float>{1.5F, -2.0F, 1e-45F}));
  EXPECT_EQ(reader.read_f32("c"), (std::vector<float>{1.5F, -2.0F}));
  EXPECT_EQ(reader.read_f32("d"), std::vector<float>{0.1F});
  EXPECT_TRUE(reader.read_f32("f").empty());
  float row[2];
  reader.read_f32("a", 2, 1, row);
  EXPECT_EQ(row[1], 65504.0F);
  EXPECT_EQ(*reader.data("e"), 1);
  EXPECT_THROW(static_cast<void>(reader.read_f32("e")), DataError);
  EXPECT_THROW(static_cast<void>(reader.info("none")), DataError);
}

TEST_F(Safetensors, refuses_hostile_headers) {
  const std::string data(16, 'x');
  const auto one = [&](const std::string& type, const std::string& shape,
                       const std::string& offsets) {
    return file_of("{" + entry("t", type, shape, offsets) + "}", data);
  };
  const struct {
    const char* what;
    std::string bytes;
    const char* says;
  } cases[] = {
      {"empty file", "", "0 bytes"},
      {"seven bytes", "1234567", "7 bytes"},
      {"length 2^63", file_of("{}", "", 1ULL << 63), "does not fit"},
      {"length 2^64-1", file_of("{}", "", ~0ULL - 1), "does not fit"},
      {"length over 100 MB", file_of("{}", "", 100'000'001), "does not fit"},
      {"length behind the end", file_of("{}", "", 3), "does not fit"},
      {"empty header", file_of("", data), "JSON object"},
      {"not an object", file_of("[]", data), "JSON object"},
      {"not JSON", file_of("{\"a\":", data), "JSON"},
      {"text behind the object", file_of("{}x", ""), "JSON"},
      {"deep JSON", file_of("{\"a\":" + std::string(100'000, '['), ""), "nested"},
      {"repeated name",
       file_of(
           "{" + entry("t", "U8", "[8]", "[0,8]") + "," + entry("t", "U8", "[8]", "[8,16]") + "}",
           data),
       "repeated"},
      {"repeated key", file_of("{\"t\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", data), "repeated"},
      {"unknown type", one("F12", "[16]", "[0,16]"), "unknown type"},
      {"entry is a list", file_of("{\"t\":[]}", data), "tensor t"},
      {"no shape", file_of("{\"t\":{\"dtype\":\"U8\",\"data_offsets\":[0,16]}}", data), "shape"},
      {"no offsets", file_of("{\"t\":{\"dtype\":\"U8\",\"shape\":[16]}}", data), "data_offsets"},
      {"negative size", one("U8", "[-16]", "[0,16]"), "shape"},
      {"fraction", one("U8", "[16.0]", "[0,16]"), "shape"},
      {"size is text", one("U8", "[\"16\"]", "[0,16]"), "shape"},
      {"size over 2^63", one("U8", "[18446744073709551615]", "[0,16]"), "shape"},
      {"product overflows to 16", one("U8", "[4294967296,4294967296,16]", "[0,16]"), "too large"},
      {"product with zero overflows", one("U8", "[0,4294967296,4294967296]", "[0,0]"), "too large"},
      {"bytes overflow", one("F32", "[4611686018427387904]", "[0,0]"), "too large"},
      {"nine dimensions", one("U8", "[16,1,1,1,1,1,1,1,1]", "[0,16]"), "at most 8"},
      {"offsets reversed", one("U8", "[16]", "[16,0]"), "in order"},
      {"offsets behind the file", one("U8", "[17]", "[0,17]"), "within 16"},
      {"offset far behind", one("U8", "[16]", "[9223372036854775791,9223372036854775807]"),
       "within 16"},
      {"one offset", one("U8", "[16]", "[0]"), "two offsets"},
      {"three offsets", one("U8", "[16]", "[0,16,16]"), "two offsets"},
      {"type lies", one("F32", "[16]", "[0,16]"), "needs 64 bytes"},
      {"bytes left over", one("U8", "[8]", "[0,8]"), "hold 8 bytes, the file has 16"},
      {"no tensors but data", file_of("{}", data), "hold 0 bytes"},
      {"overlap",
       file_of(
           "{" + entry("t", "U8", "[10]", "[0,10]") + "," + entry("u", "U8", "[8]", "[8,16]") + "}",
           data),
       "overlap"},
      {"same bytes twice",
       file_of("{" + entry("t", "U8", "[16]", "[0,16]") + "," + entry("u", "U8", "[16]", "[0,16]") +
                   "}",
               data),
       "overlap"},
      {"hole",
       file_of(
           "{" + entry("t", "U8", "[4]", "[0,4]") + "," + entry("u", "U8", "[8]", "[8,16]") + "}",
           data),
       "hole"},
      {"hole in front", one("U8", "[8]", "[8,16]"), "hole"},
      {"another format", std::string("\x89HDF\r\n\x1a\n") + std::string(4096, '\0'),
       "does not fit"},
      {"a zip", "PK\x03\x04" + std::string(4096, 'z'), "does not fit"},
  };
  for (const auto& c : cases) {
    const std::string message = refusal(c.bytes);
    EXPECT_NE(message.find(c.says), std::string::npos) << c.what << ": " << message;
    EXPECT_NE(message.find("bad.safetensors"), std::string::npos) << c.what;
    EXPECT_EQ(message.find('\n'), std::string::npos) << c.what;
  }
  std::printf("hostile headers refused: %zu/%zu\n", std::size(cases), std::size(cases));
}

TEST_F(Safetensors, control_characters_of_names_do_not_reach_the_terminal) {
  const std::string message =
      refusal(file_of("{" + entry("a\\u001b[2J\\n", "U8", "[1]", "[0,9]") + "}", ""));
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST_F(Safetensors, truncations_and_damaged_headers_are_refused_or_read) {
  std::string header = "{";
  std::string data;
  for (int i = 0; i < 20; ++i) {
    const std::string at = std::to_string(i * 12);
    header += (i > 0 ? "," : "") + entry("layer." + std::to_string(i), "F32", "[3]",
                                         "[" + at + "," + std::to_string(i * 12 + 12) + "]");
    data += std::string(12, static_cast<char>(i));
  }
  const std::string whole = file_of(header + "}", data);
  for (std::size_t cut = 0; cut < whole.size(); cut += cut < 16 ? 1 : 7) {
    refusal(whole.substr(0, cut));
  }
  refusal(whole + "x");
  std::mt19937 random(1);
  int refused = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    std::string bytes = whole;
    for (int flips = 0; flips < 1 + trial % 3; ++flips) {
      bytes[random() % (8 + header.size() + 1)] ^= static_cast<char>(1 << random() % 8);
    }
    try {
      const SafetensorsReader reader(put("bad.safetensors", bytes));
      for (const auto& [name, tensor] : reader.tensors()) {  // what it accepts lies in the file
        ASSERT_LE(tensor.offset + tensor.bytes, bytes.size());
        ASSERT_NE(reader.data(name)[0], 255);
      }
    } catch (const DataError&) {
      ++refused;
    }
  }
  std::printf("damaged headers: %d of 1000 refused, the others are other names\n", refused);
  EXPECT_GT(refused, 500);
}

TEST_F(Safetensors, a_hundred_thousand_tensors_take_bounded_memory) {
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i) {
    header += (i > 0 ? "," : "") + entry(std::to_string(i), "U8", "[0]", "[0,0]");
  }
  const std::string path = put("many.safetensors", file_of(header + "}", ""));
  header.clear();
  struct rusage before {};
  ::getrusage(RUSAGE_SELF, &before);
  {
    const SafetensorsReader reader(path);
    EXPECT_EQ(reader.tensors().size(), 100'000U);
  }
  struct rusage after {};
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 300'000) << "KiB";
}

TEST_F(Safetensors, an_index_joins_files_of_one_directory) {
  const std::string a = file_of("{" + entry("a", "U8", "[4]", "[0,4]") + "}", "aaaa");
  const std::string b = file_of(
      "{" + entry("b", "U8", "[2]", "[0,2]") + "," + entry("c", "U8", "[1]", "[2,3]") + "}", "bbc");
  put("one.safetensors", a);
  put("two.safetensors", b);
  const auto index = [&](const std::string& map) {
    put("model.safetensors.index.json", "{\"weight_map\":" + map + "}");
  };
  const auto says = [&]() -> std::string {
    try {
      const SafetensorsReader reader(folder_);
    } catch (const mt::Error& error) {
      return error.what();
    }
    return "accepted";
  };
  index(R"({"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"})");
  {
    const SafetensorsReader reader(folder_);
    EXPECT_EQ(reader.tensors().size(), 3U);
    EXPECT_EQ(reader.files().size(), 2U);
    EXPECT_EQ(*reader.data("c"), 'c');
    EXPECT_EQ(*reader.data("a"), 'a');
  }
  index(R"({"a":"../one.safetensors"})");
  EXPECT_NE(says().find("plain name"), std::string::npos);
  index(R"({"a":"/etc/one.safetensors"})");
  EXPECT_NE(says().find("plain name"), std::string::npos);
  index(R"({"a":".hidden.safetensors"})");
  EXPECT_NE(says().find("plain name"), std::string::npos);
  index(R"({"a":"pytorch_model.bin"})");
  EXPECT_NE(says().find("plain name"), std::string::npos);
  index(R"({"a":7})");
  EXPECT_NE(says().find("file name"), std::string::npos);
  index(R"({"a":"two.safetensors"})");
  EXPECT_NE(says().find("tensor a: two.safetensors has none"), std::string::npos);
  index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  EXPECT_NE(says().find("tensor c of two.safetensors is not listed"), std::string::npos);
  index(R"({"a":"three.safetensors"})");
  EXPECT_NE(says().find("No such file"), std::string::npos);
  put("model.safetensors.index.json", "{}");
  EXPECT_NE(says().find("weight_map"), std::string::npos);
  put("model.safetensors", a);  // goes first
  EXPECT_EQ(says(), "accepted");
}

TEST_F(Safetensors, refuses_what_is_no_file) {
  EXPECT_THROW(SafetensorsReader(folder_ + "/none"), mt::EnvironmentError);
  EXPECT_THROW(SafetensorsReader{folder_}, mt::Error);
  EXPECT_THROW(SafetensorsReader("/dev/zero"), DataError);
}

TEST_F(Safetensors, reads_a_published_layout) {
  const std::string model = MT_TEST_DATA "/hf/gpt-tiny";
  const SafetensorsReader reader(model);
  EXPECT_EQ(reader.info("transformer.wte.weight").shape, (Shape{211, 32}));
  const auto values = reader.read_f32("transformer.wte.weight");
  EXPECT_EQ(values.size(), 211U * 32);
  EXPECT_LT(std::abs(values[0]), 10);
}

}  // namespace
