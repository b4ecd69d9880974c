// Lines from plain, zstd and gzip files: every damage is an error, nothing is silently short.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <random>

#include "base/error.h"
#include "io/line_reader.h"
#include "shared_data.h"

namespace mt {
namespace {

using namespace mt::testing;
using Lines = std::vector<std::string>;

Lines read_lines(const std::string& path, std::uint64_t limit = LineReader::kLineLimit) {
  LineReader reader(path, limit);
  Lines lines;
  std::string_view line;
  while (reader.next(line)) {
    unsigned sum = 0;  // the padding may be read
    for (std::size_t i = 0; i < LineReader::kPadding; ++i) {
      sum += static_cast<unsigned char>(line.data()[line.size() + i]);
    }
    EXPECT_LT(sum, 1U << 20);
    lines.emplace_back(line);
    EXPECT_EQ(reader.line_number(), lines.size());
  }
  EXPECT_FALSE(reader.next(line));
  return lines;
}

std::string zstd(const std::string& text, int window_log = 0) {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  if (window_log > 0) ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
  std::string out(ZSTD_compressBound(text.size()), '\0');
  if (window_log > 0) {  // as a stream whose length is not known, so that the window is stated
    ZSTD_inBuffer in{text.data(), text.size(), 0};
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    ZSTD_compressStream2(context, &to, &in, ZSTD_e_flush);
    ZSTD_compressStream2(context, &to, &in, ZSTD_e_end);
    out.resize(to.pos);
  } else {
    out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  }
  ZSTD_freeCCtx(context);
  return out;
}

std::string gzip(const std::string& text) {
  z_stream s{};
  EXPECT_EQ(deflateInit2(&s, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&s, text.size()) + 64, '\0');
  std::string in = text;
  s.next_in = reinterpret_cast<Bytef*>(in.data());
  s.avail_in = static_cast<uInt>(in.size());
  s.next_out = reinterpret_cast<Bytef*>(out.data());
  s.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&s, Z_FINISH), Z_STREAM_END);
  out.resize(s.total_out);
  deflateEnd(&s);
  return out;
}

// A frame that decoders skip.
std::string skippable(std::size_t bytes) {
  std::string out("\x53\x2A\x4D\x18", 4);
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(bytes >> (8 * i)));
  return out + std::string(bytes, 'x');
}

// Lines of odd sizes, some larger than the buffers.
Lines odd_lines(unsigned seed) {
  std::mt19937 random(seed);
  Lines lines;
  for (int i = 0; i < 300; ++i) {
    const std::size_t size = i % 50 == 7 ? random() % 900000 : random() % 2000;
    std::string line(size, '\0');
    for (char& c : line) c = static_cast<char>('a' + random() % 20);
    lines.push_back(line);
  }
  return lines;
}

std::string joined(const Lines& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::string message_of(const std::string& path, std::uint64_t limit = LineReader::kLineLimit) {
  try {
    (void)read_lines(path, limit);
    return "";
  } catch (const DataError& e) {
    return e.what();
  }
}

class LineReaderTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string file(const std::string& bytes) const {
    spill(scratch_ / "in", bytes);
    return scratch_ / "in";
  }
  Scratch scratch_;
};

TEST_F(LineReaderTest, PlainLines) {
  EXPECT_EQ(read_lines(file("")), Lines{});
  EXPECT_EQ(read_lines(file("\n")), Lines{""});
  EXPECT_EQ(read_lines(file("a")), Lines{"a"});
  EXPECT_EQ(read_lines(file("a\n\nb\r\n c")), (Lines{"a", "", "b\r", " c"}));
  EXPECT_EQ(read_lines(file(std::string("a\0b\n", 4))), Lines{std::string("a\0b", 3)});
  EXPECT_EQ(read_lines(file("(\n")), Lines{"("});  // the first byte of a zstd frame
  EXPECT_EQ(read_lines(file("\x1F\n")), Lines{"\x1F"});
  const Lines lines = odd_lines(1);
  EXPECT_EQ(read_lines(file(joined(lines))), lines);
}

TEST_F(LineReaderTest, ManyFramesAndMembers) {
  const Lines lines = odd_lines(2);
  const std::string text = joined(lines);
  std::mt19937 random(3);
  std::string frames = skippable(5), members;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = random() % 300000;
    frames += zstd(text.substr(at, size)) + (random() % 2 != 0 ? skippable(random() % 50) : "");
    members += gzip(text.substr(at, size));
    at += size;
  }
  frames += zstd("");
  EXPECT_EQ(read_lines(file(frames)), lines);
  EXPECT_EQ(read_lines(file(members)), lines);
  // Output far larger than its input.
  const Lines zeros(3, std::string(9000000, '0'));
  EXPECT_EQ(read_lines(file(zstd(joined(zeros)))), zeros);
  EXPECT_EQ(read_lines(file(gzip(joined(zeros)))), zeros);
}

TEST_F(LineReaderTest, CutAnywhere) {
  const std::string text = "first line\nsecond line\nthird";
  for (const bool use_zstd : {true, false}) {
    const std::string whole = use_zstd ? zstd(text) + zstd(text) : gzip(text) + gzip(text);
    const std::size_t seam = whole.size() / 2;
    ASSERT_EQ(read_lines(file(whole)).size(), 5U);
    for (std::size_t size = 2; size < whole.size(); ++size) {
      if (size == seam) continue;  // a whole file
      EXPECT_NE(message_of(file(whole.substr(0, size))), "") << size;
    }
    EXPECT_NE(message_of(file(whole + "x")), "");
    EXPECT_NE(message_of(file(whole + "garbage after it")), "");
    EXPECT_NE(message_of(file(whole.substr(0, whole.size() - 3))).find("truncated"),
              std::string::npos);
  }
}

TEST_F(LineReaderTest, DamagedStreams) {
  const std::string text = joined(odd_lines(4)).substr(0, 30000);
  for (const bool use_zstd : {true, false}) {
    const std::string whole = use_zstd ? zstd(text) : gzip(text);
    std::mt19937 random(5);
    int found = 0;
    for (int round = 0; round < 300; ++round) {
      std::string bad = whole;
      bad[random() % bad.size()] ^= static_cast<char>(1 << random() % 8);
      std::string out;
      try {
        out = joined(read_lines(file(bad)));
      } catch (const DataError&) {
        ++found;
        continue;
      }
      // A flip in a header's time or name changes nothing of the text, one in the magic makes it
      // no compressed file.
      EXPECT_TRUE(out == text + "\n" || out.find("first") == std::string::npos);
    }
    EXPECT_GT(found, 280);
  }
  std::string bad_crc = gzip(text);
  bad_crc[bad_crc.size() - 6] ^= 1;
  EXPECT_NE(message_of(file(bad_crc)).find("incorrect data check"), std::string::npos);
}

TEST_F(LineReaderTest, WindowOf2GiBIsRefused) {
  EXPECT_EQ(read_lines(file(zstd("a\n", 27))), Lines{"a"});
  EXPECT_NE(message_of(file(zstd("a\n", 31))).find("more than 128 MiB"), std::string::npos);
}

TEST_F(LineReaderTest, LineLimit) {
  EXPECT_EQ(read_lines(file("12345\n1234567890\n"), 10).size(), 2U);
  EXPECT_NE(message_of(file("12345\n12345678901\n"), 10).find("in:2: a line of more than 10 bytes"),
            std::string::npos);
  const std::string bomb = zstd("ok\n" + std::string(60000000, ' '));
  EXPECT_NE(message_of(file(bomb), 1000000).find(":2: a line of more than 1000000"),
            std::string::npos);
  EXPECT_NE(message_of(file(std::string(3000000, 'x') + "\n"), 2999999), "");
  EXPECT_EQ(message_of(file(std::string(3000000, 'x') + "\n"), 3000000), "");
}

TEST_F(LineReaderTest, FileThatChangesIsRefused) {
  const std::string path = file(joined(Lines(100000, "some text")));
  LineReader grows(path);
  std::string_view line;
  ASSERT_TRUE(grows.next(line));
  std::ofstream(path, std::ios::app) << "more\n";
  EXPECT_THROW(while (grows.next(line)){}, DataError);
  LineReader shrinks(path);
  ASSERT_TRUE(shrinks.next(line));
  ASSERT_EQ(::truncate(path.c_str(), 600000), 0);
  EXPECT_THROW(while (shrinks.next(line)){}, DataError);
}

TEST_F(LineReaderTest, WhatCannotBeRead) {
  EXPECT_THROW(LineReader(scratch_ / "absent"), EnvironmentError);
  EXPECT_THROW(LineReader(scratch_ / ""), EnvironmentError);
}

TEST_F(LineReaderTest, StandardInput) {
  const std::string path = file(zstd("a\nb"));
  const int saved = ::dup(STDIN_FILENO);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ::dup2(fd, STDIN_FILENO);
  ::close(fd);
  EXPECT_EQ(read_lines("-"), (Lines{"a", "b"}));
  ::dup2(saved, STDIN_FILENO);
  ::close(saved);
}

}  // namespace
}  // namespace mt
