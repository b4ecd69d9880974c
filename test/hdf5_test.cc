#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "io/hdf5.h"
#include "io/hdf5_driver.h"

namespace {

using mt::FileType;
using mt::Hdf5Reader;
using mt::Hdf5Writer;
using mt::PendingFile;
using mt::Shape;

class Hdf5 : public testing::Test {
 protected:
  Hdf5() {
    std::string name = testing::TempDir() + "mt-hdf5-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~Hdf5() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }
  // The output of a shell command; fails the test if it does not end well.
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
};

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// One data set of every type, text, attributes, a user block.
std::map<std::string, mt::ByteRange> write_sample(const std::string& path) {
  PendingFile file(path, PendingFile::Existing::kReplace);
  Hdf5Writer writer(file, 4096);
  const float f32[] = {1.5F, -2, 3, 4, 5, 6};
  const std::uint16_t bf16[] = {0x3F80, 0xC000, 0x7F80};  // 1, -2, infinity
  const std::uint16_t f16[] = {0x3C00, 0xC000, 0x3555};   // 1, -2, a third
  const std::int32_t i32[] = {-7, 8};
  const std::uint16_t u16[] = {0, 65535, 12};
  const std::uint64_t u64[] = {0, 1ULL << 40};
  const std::uint8_t u8[] = {9, 255};
  const double scalar = 0.1;
  writer.write("/group/f32", FileType::kF32, {2, 3}, f32);
  writer.write("bf16", FileType::kBf16, {3}, bf16);
  writer.write("f16", FileType::kF16, {3}, f16);
  writer.write("i32", FileType::kI32, {2, 1}, i32);
  writer.create("rows", FileType::kU16, {3});
  writer.write_rows("rows", 2, 1, u16 + 2);
  writer.write_rows("rows", 0, 2, u16);
  writer.write("u64", FileType::kU64, {2}, u64);
  writer.write("u8", FileType::kU8, {2}, u8);
  writer.write("scalar", FileType::kF64, {}, &scalar);
  writer.write("empty", FileType::kF32, {0, 3}, nullptr);
  writer.write_text("text", "na\xc3\xafve\n");
  writer.write_text("no text", "");
  writer.attribute("/", "format", "sample");
  writer.attribute("/", "count", std::int64_t{1} << 40);
  writer.attribute("/", "ratio", 0.25);
  writer.attribute("/", "nothing", "");
  writer.attribute("/group/f32", "offset", Shape{4, 5});
  auto ranges = writer.close();
  file.write_at(0, std::string(4096, 'u'));
  file.commit();
  return ranges;
}

TEST_F(Hdf5, reads_back_what_it_wrote) {
  write_sample(path("a.h5"));
  const Hdf5Reader reader(path("a.h5"));
  EXPECT_EQ(reader.names(),
            (std::vector<std::string>{"/bf16", "/empty", "/f16", "/group/f32", "/i32", "/no text",
                                      "/rows", "/scalar", "/text", "/u64", "/u8"}));
  EXPECT_EQ(reader.names("/group"), std::vector<std::string>{"/group/f32"});
  EXPECT_EQ(reader.shape("/group/f32"), (Shape{2, 3}));
  EXPECT_EQ(reader.shape("scalar"), Shape{});
  EXPECT_EQ(reader.read<float>("/group/f32"), (std::vector<float>{1.5F, -2, 3, 4, 5, 6}));
  EXPECT_EQ(reader.read<float>("bf16"), (std::vector<float>{1, -2, INFINITY}));
  EXPECT_EQ(reader.read<float>("f16"), (std::vector<float>{1, -2, 0.333251953125F}));
  EXPECT_EQ(reader.read<std::int32_t>("i32"), (std::vector<std::int32_t>{-7, 8}));
  EXPECT_EQ(reader.read<std::uint16_t>("rows"), (std::vector<std::uint16_t>{0, 65535, 12}));
  EXPECT_EQ(reader.read<std::int64_t>("u64"), (std::vector<std::int64_t>{0, 1LL << 40}));
  EXPECT_EQ(reader.read<std::uint8_t>("u8"), (std::vector<std::uint8_t>{9, 255}));
  EXPECT_EQ(reader.read<double>("scalar"), std::vector<double>{0.1});
  EXPECT_TRUE(reader.read<float>("empty").empty());
  EXPECT_EQ(reader.text("text"), "na\xc3\xafve\n");
  EXPECT_EQ(reader.text("no text"), "");
  EXPECT_EQ(reader.text_attribute("/", "format"), "sample");
  EXPECT_EQ(reader.text_attribute("/", "nothing"), "");
  EXPECT_EQ(reader.number_attribute("/", "count"), std::pow(2.0, 40));
  EXPECT_EQ(reader.number_attribute("/", "ratio"), 0.25);
  EXPECT_TRUE(reader.has_attribute("/group/f32", "offset"));
  EXPECT_FALSE(reader.has_attribute("/group/f32", "other"));
  EXPECT_TRUE(reader.contains("/group"));
  EXPECT_FALSE(reader.contains("/group/none/at/all"));
}

TEST_F(Hdf5, byte_ranges_hold_the_elements) {
  const auto ranges = write_sample(path("a.h5"));
  const std::string bytes = bytes_of(path("a.h5"));
  EXPECT_EQ(bytes.substr(0, 4096), std::string(4096, 'u'));
  const Hdf5Reader reader(path("a.h5"));
  EXPECT_EQ(ranges.size(), reader.names().size());
  for (const auto& [name, range] : ranges) {
    ASSERT_LE(range.offset + range.bytes, bytes.size()) << name;
    if (name != "/text" && name != "/no text") {
      EXPECT_EQ(range.offset, reader.range(name).offset) << name;
      EXPECT_EQ(range.bytes, reader.range(name).bytes) << name;
    }
    EXPECT_EQ(range.offset % 64, 0U) << name;
  }
  float f32[6];
  ASSERT_EQ(ranges.at("/group/f32").bytes, sizeof f32);
  std::memcpy(f32, bytes.data() + ranges.at("/group/f32").offset, sizeof f32);
  EXPECT_EQ(f32[0], 1.5F);
  EXPECT_EQ(f32[5], 6.0F);
  EXPECT_EQ(bytes.substr(ranges.at("/text").offset, ranges.at("/text").bytes), "na\xc3\xafve\n");
  std::uint16_t rows[3];
  std::memcpy(rows, bytes.data() + ranges.at("/rows").offset, sizeof rows);
  EXPECT_EQ(rows[1], 65535);
}

TEST_F(Hdf5, equal_content_is_equal_bytes) {
  write_sample(path("a.h5"));
  ::sleep(2);  // a clock in the file would show
  write_sample(path("b.h5"));
  EXPECT_EQ(bytes_of(path("a.h5")), bytes_of(path("b.h5")));
}

TEST_F(Hdf5, other_tools_read_it) {
  write_sample(path("a.h5"));
  const std::string dump = output("h5dump -d /bf16 -d /group/f32 -a /format " + path("a.h5"));
  EXPECT_NE(dump.find("1, -2, inf"), std::string::npos) << dump;
  EXPECT_NE(dump.find("1.5, -2, 3"), std::string::npos) << dump;
  EXPECT_NE(dump.find("\"sample\""), std::string::npos) << dump;
  if (output("/usr/bin/python3 -c 'import h5py' && echo yes || true").substr(0, 3) != "yes") {
    FAIL() << "h5py is not installed";
  }
  const std::string script =
      "import h5py, numpy as n; f = h5py.File('" + path("a.h5") + "', 'r')\n" +
      "assert f['bf16'][:].tolist() == [1, -2, n.inf]\n"
      "assert f['f16'].dtype == n.float16 and f['f16'][1] == -2\n"
      "assert f['group/f32'].dtype == n.float32 and f['group/f32'][1, 2] == 6\n"
      "assert f['rows'].dtype == n.uint16 and f['rows'][:].tolist() == [0, 65535, 12]\n"
      "assert f['u64'][1] == 2**40 and f['scalar'][()] == 0.1 and f['empty'].shape == (0, 3)\n"
      "assert f['text'][()].decode() == 'na\\u00efve\\n'\n"
      "assert f.attrs['format'] == b'sample' and f.attrs['count'] == 2**40\n"
      "assert f['group/f32'].attrs['offset'].tolist() == [4, 5]\n"
      "print('right')\n";
  std::ofstream(path("check.py")) << script;
  EXPECT_EQ(output("/usr/bin/python3 " + path("check.py")), "right\n");
}

TEST_F(Hdf5, virtual_data_sets_show_the_parts_from_anywhere) {
  {
    PendingFile file(path("part.h5"), PendingFile::Existing::kRefuse);
    Hdf5Writer writer(file, 0);
    const std::uint16_t left[] = {0x3F80, 0x4000};   // 1, 2
    const std::uint16_t right[] = {0x4040, 0x4080};  // 3, 4
    const float one = 9;
    writer.write("m/left", FileType::kBf16, {2, 1}, left);
    writer.write("m/right", FileType::kBf16, {2, 1}, right);
    writer.write("m/one", FileType::kF32, {}, &one);
    writer.close();
    file.commit();
    PendingFile index(path("index.h5"), PendingFile::Existing::kRefuse);
    Hdf5Writer shown(index, 0);
    shown.write_virtual(
        "whole", FileType::kBf16, {2, 2},
        {{"part.h5", "/m/left", {0, 0}, {2, 1}}, {"part.h5", "/m/right", {0, 1}, {2, 1}}});
    shown.write_virtual("one", FileType::kF32, {}, {{"part.h5", "/m/one", {}, {}}});
    shown.close();
    index.commit();
  }
  std::filesystem::create_directory(path("moved"));
  std::filesystem::rename(path("part.h5"), path("moved/part.h5"));
  std::filesystem::rename(path("index.h5"), path("moved/index.h5"));
  const std::string dump = output("cd / && h5dump -d /whole " + path("moved/index.h5"));
  EXPECT_NE(dump.find("1, 3"), std::string::npos) << dump;
  EXPECT_NE(dump.find("2, 4"), std::string::npos) << dump;
  EXPECT_NE(output("cd / && h5dump -d /one " + path("moved/index.h5")).find(": 9"),
            std::string::npos);
  const Hdf5Reader reader(path("moved/index.h5"));
  EXPECT_THROW(static_cast<void>(reader.read<float>("whole")), mt::DataError);
  EXPECT_THROW(static_cast<void>(reader.read<float>("one")), mt::DataError);
}

// Every write of a file failing in turn: an error that says where, no crash, and the process goes
// on to write whole files.
TEST_F(Hdf5, a_file_size_limit_at_any_byte_is_an_error) {
  write_sample(path("whole.h5"));
  const std::string whole = bytes_of(path("whole.h5"));
  std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit before {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  int failed = 0;
  for (std::size_t limit = 0; limit < whole.size(); limit += 61) {
    const struct rlimit low = {limit, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &low);
    try {
      write_sample(path("cut.h5"));
      ADD_FAILURE() << "no error at limit " << limit;
    } catch (const mt::EnvironmentError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("File too large"), std::string::npos) << text;
      EXPECT_NE(text.find("cut.h5"), std::string::npos) << text;
      ++failed;
    }
    ::setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_FALSE(std::filesystem::exists(path("cut.h5")));
  }
  std::printf("file size limits: %d/%d are errors\n", failed, failed);
  write_sample(path("after.h5"));
  EXPECT_EQ(bytes_of(path("after.h5")), whole);
}

TEST_F(Hdf5, the_first_error_is_the_one_reported) {
  mt::LatchedFile latch;
  latch.path = "x.h5";
  EXPECT_NO_THROW(latch.check());
  latch.error = ENOSPC;
  latch.error_offset = 2048;
  latch.error_call = "write";
  try {
    latch.check();
    FAIL();
  } catch (const mt::EnvironmentError& error) {
    EXPECT_STREQ(error.what(), "cannot write x.h5: at offset 2048: No space left on device");
  }
}

TEST_F(Hdf5, refuses_what_is_not_there_or_not_hdf5) {
  EXPECT_THROW(Hdf5Reader(path("none.h5")), mt::EnvironmentError);
  std::ofstream(path("text.h5")) << "hello\n";
  EXPECT_THROW(Hdf5Reader(path("text.h5")), mt::DataError);
  std::ofstream(path("empty.h5")).flush();
  EXPECT_THROW(Hdf5Reader(path("empty.h5")), mt::DataError);
  write_sample(path("a.h5"));
  const std::string whole = bytes_of(path("a.h5"));
  std::ofstream(path("cut.h5"), std::ios::binary) << whole.substr(0, whole.size() - 1);
  EXPECT_THROW(Hdf5Reader(path("cut.h5")), mt::DataError);
  const Hdf5Reader reader(path("a.h5"));
  EXPECT_THROW(static_cast<void>(reader.read<float>("nothing")), mt::DataError);
  EXPECT_THROW(static_cast<void>(reader.read<float>("group")), mt::DataError);
  EXPECT_THROW(static_cast<void>(reader.read<float>("text")), mt::DataError);
  EXPECT_THROW(static_cast<void>(reader.text("i32")), mt::DataError);
  EXPECT_THROW(static_cast<void>(reader.text_attribute("/", "count")), mt::DataError);
  EXPECT_THROW(static_cast<void>(reader.number_attribute("/", "format")), mt::DataError);
  EXPECT_THROW(static_cast<void>(reader.number_attribute("/", "none")), mt::DataError);
}

TEST_F(Hdf5, reads_variable_strings_and_filtered_data_of_others) {
  if (output("/usr/bin/python3 -c 'import h5py' && echo yes || true").substr(0, 3) != "yes") {
    FAIL() << "h5py is not installed";
  }
  std::ofstream(path("make.py"))
      << "import h5py, numpy as n; f = h5py.File('" + path("o.h5") +
             "', 'w')\n"
             "f.attrs['config'] = '{\"n\": 1}'\n"
             "f['s'] = 'variable'\n"
             "f.create_dataset('a/z', data=n.arange(1000.), chunks=(100,), "
             "compression='gzip')\n"
             "f['a/big'] = n.arange(4, dtype='>i4')\n"
             "f['soft'] = h5py.SoftLink('/a/z')\n"
             "f['out'] = h5py.ExternalLink('other.h5', '/a')\n"
             "f['never'] = h5py.Empty('f4')\n"
             "f['a/up'] = f['/']\n";
  output("/usr/bin/python3 " + path("make.py"));
  const Hdf5Reader reader(path("o.h5"));
  EXPECT_EQ(reader.text_attribute("/", "config"), "{\"n\": 1}");
  EXPECT_EQ(reader.text("s"), "variable");
  EXPECT_EQ(reader.names(), (std::vector<std::string>{"/a/big", "/a/z", "/never", "/s"}));
  EXPECT_EQ(reader.read<float>("a/z")[999], 999.0F);
  EXPECT_EQ(reader.read<std::int32_t>("a/big"), (std::vector<std::int32_t>{0, 1, 2, 3}));
  EXPECT_FALSE(reader.contains("out"));
  EXPECT_THROW(static_cast<void>(reader.shape("out")), mt::DataError);
}

TEST_F(Hdf5, reads_the_golden_numbers) {
  const std::string golden = MT_TEST_DATA "/golden/gpt-tiny.h5";
  const Hdf5Reader reader(golden);
  EXPECT_NE(reader.text_attribute("/", "config").find("vocab"), std::string::npos);
  EXPECT_EQ(reader.shape("tokens"), (Shape{20, 8, 33}));
  const auto tokens = reader.read<std::int32_t>("tokens");
  EXPECT_EQ(*std::max_element(tokens.begin(), tokens.end()) < 211, true);
  EXPECT_EQ(reader.read<double>("float64/adamw/loss").size(), 20U);
}

}  // namespace
