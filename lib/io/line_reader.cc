#include "io/line_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <vector>

#include "base/commit.h"
#include "base/error.h"
#include "base/log.h"

namespace mt {
namespace {

constexpr int kZstdWindowLog = 27;  // 128 MiB
constexpr std::size_t kRawBytes = std::size_t{256} << 10;

// The bytes of the file as stored, with a look ahead at the first ones.
class RawInput {
 public:
  explicit RawInput(const std::string& path) : name_(path == "-" ? "stdin" : printable(path)) {
    if (path != "-") {
      own_ = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
      if (!own_.valid()) fail("cannot open ");
      fd_ = own_.get();
    }
    struct stat status {};
    if (::fstat(fd_, &status) != 0) fail("cannot read ");
    if (S_ISDIR(status.st_mode)) {
      errno = EISDIR;
      fail("cannot read ");
    }
    if (path != "-" && S_ISREG(status.st_mode)) size_ = status.st_size;
    buffer_.resize(kRawBytes);
    while (end_ < 4 && fill()) {
    }
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::uint64_t total() const { return total_; }
  [[nodiscard]] std::string_view available() const {
    return {buffer_.data() + begin_, end_ - begin_};
  }
  void consume(std::size_t bytes) { begin_ += bytes; }
  // Adds bytes behind what is available; false at the end of the file.
  bool fill() {
    if (begin_ == end_) begin_ = end_ = 0;
    MT_ASSERT(end_ < buffer_.size());
    for (;;) {
      const ssize_t got = ::read(fd_, buffer_.data() + end_, buffer_.size() - end_);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail("cannot read ");
      end_ += static_cast<std::size_t>(got);
      total_ += static_cast<std::uint64_t>(got);
      if (got == 0) check_size();
      return got > 0;
    }
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw EnvironmentError(cat(what, name_, ": ", std::strerror(errno)));
  }
  void check_size() const {
    if (size_ >= 0 && total_ != static_cast<std::uint64_t>(size_)) {
      throw DataError(cat(name_, ": changed while it was read: ", total_, " bytes, ", size_,
                          " when it was opened"));
    }
  }

  std::string name_;
  FileDescriptor own_;
  int fd_ = STDIN_FILENO;
  std::int64_t size_ = -1;  // of a regular file
  std::uint64_t total_ = 0;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
};

// The text: 1 to `bytes` bytes of it, or 0 at its end.
class Decoder {
 public:
  explicit Decoder(RawInput& in) : in_(&in) {}
  virtual ~Decoder() = default;
  virtual std::size_t read(char* out, std::size_t bytes) = 0;

 protected:
  [[noreturn]] void damaged(const std::string& what) const {
    throw DataError(
        cat(in_->name(), ": byte ", in_->total() - in_->available().size(), ": ", what));
  }
  RawInput* in_;
};

class PlainDecoder : public Decoder {
 public:
  using Decoder::Decoder;
  std::size_t read(char* out, std::size_t bytes) override {
    if (in_->available().empty() && !in_->fill()) return 0;
    const std::string_view from = in_->available().substr(0, bytes);
    std::memcpy(out, from.data(), from.size());
    in_->consume(from.size());
    return from.size();
  }
};

class ZstdDecoder : public Decoder {
 public:
  explicit ZstdDecoder(RawInput& in) : Decoder(in), stream_(ZSTD_createDStream()) {
    if (stream_ == nullptr) throw EnvironmentError("out of memory for zstd");
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kZstdWindowLog);
  }
  std::size_t read(char* out, std::size_t bytes) override {
    ZSTD_outBuffer to{out, bytes, 0};
    while (to.pos == 0) {
      // What the decoder still holds comes out before more goes in.
      if (in_->available().empty() && !full_ && !in_->fill()) {
        if (inside_frame_) damaged("truncated: the file ends inside a zstd frame");
        return 0;
      }
      const std::string_view from = in_->available();
      ZSTD_inBuffer input{from.data(), from.size(), 0};
      const std::size_t rc = ZSTD_decompressStream(stream_.get(), &to, &input);
      in_->consume(input.pos);
      if (ZSTD_isError(rc) != 0) damaged(reason(rc));
      inside_frame_ = rc != 0;
      full_ = to.pos == bytes;
    }
    return to.pos;
  }

 private:
  static std::string reason(std::size_t rc) {
    const std::string what = ZSTD_getErrorName(rc);
    return what.find("too much memory") != std::string::npos
               ? "a zstd frame with a window of more than 128 MiB"
               : "zstd: " + what;
  }
  struct Free {
    void operator()(ZSTD_DStream* s) const { ZSTD_freeDStream(s); }
  };
  std::unique_ptr<ZSTD_DStream, Free> stream_;
  bool inside_frame_ = false;
  bool full_ = false;  // the last call filled its output
};

class GzipDecoder : public Decoder {
 public:
  explicit GzipDecoder(RawInput& in) : Decoder(in) {
    constexpr int kGzip = 15 + 16;  // the largest window, with gzip's header and check sum
    if (inflateInit2(&stream_, kGzip) != Z_OK) throw EnvironmentError("out of memory for zlib");
  }
  ~GzipDecoder() override { inflateEnd(&stream_); }
  GzipDecoder(const GzipDecoder&) = delete;
  GzipDecoder& operator=(const GzipDecoder&) = delete;

  std::size_t read(char* out, std::size_t bytes) override {
    const auto room = static_cast<uInt>(std::min<std::size_t>(bytes, 1U << 30));
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = room;
    while (stream_.avail_out == room) {
      if (in_->available().empty() && !full_ && !in_->fill()) {
        if (inside_member_) damaged("truncated: the file ends inside a gzip member");
        return 0;
      }
      const std::string_view from = in_->available();
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(from.data()));
      stream_.avail_in = static_cast<uInt>(from.size());
      inside_member_ = true;
      const int rc = inflate(&stream_, Z_NO_FLUSH);
      in_->consume(from.size() - stream_.avail_in);
      if (rc == Z_STREAM_END) {
        inside_member_ = false;
        inflateReset(&stream_);
      } else if (rc != Z_OK && rc != Z_BUF_ERROR) {
        damaged(cat("gzip: ", stream_.msg != nullptr ? stream_.msg : "damaged"));
      }
      full_ = stream_.avail_out == 0;
    }
    return room - stream_.avail_out;
  }

 private:
  z_stream stream_{};
  bool inside_member_ = false;
  bool full_ = false;
};

std::unique_ptr<Decoder> make_decoder(RawInput& in) {
  const std::string_view start = in.available().substr(0, 4);
  const auto byte = [&](std::size_t i) {
    return i < start.size() ? static_cast<unsigned char>(start[i]) : 0U;
  };
  const std::string_view zstd_magic = "\x28\xB5\x2F\xFD";
  // Of a zstd file of 2 or 3 bytes, too: it is cut.
  const bool frame = start.size() >= 2 && zstd_magic.substr(0, start.size()) == start;
  const bool skippable =
      start.size() == 4 && byte(0) >> 4 == 5 && start.substr(1) == std::string_view("\x2A\x4D\x18");
  if (frame || skippable) return std::make_unique<ZstdDecoder>(in);
  if (byte(0) == 0x1F && byte(1) == 0x8B) return std::make_unique<GzipDecoder>(in);
  return std::make_unique<PlainDecoder>(in);
}

}  // namespace

struct LineReader::State {
  State(const std::string& path, std::uint64_t most)
      : in(path), decoder(make_decoder(in)), limit(most) {
    buffer.resize(kRawBytes + kPadding);
  }

  // Makes room behind `end`: what was handed out goes, then the buffer grows up to the limit.
  void make_room() {
    if (begin > 0) {
      std::memmove(buffer.data(), buffer.data() + begin, end - begin);
      end -= begin;
      scanned -= begin;
      begin = 0;
    }
    const std::size_t capacity = buffer.size() - kPadding;
    if (end < capacity) return;
    if (capacity > limit) {
      throw DataError(cat(in.name(), ":", lines + 1, ": a line of more than ", limit, " bytes"));
    }
    buffer.resize(std::min<std::uint64_t>(capacity * 2, limit + 1) + kPadding);
  }

  bool next(std::string_view& line) {
    for (;;) {
      const char* const from = buffer.data() + scanned;
      const void* const newline = end > scanned ? std::memchr(from, '\n', end - scanned) : nullptr;
      if (newline != nullptr) {
        const auto at = static_cast<std::size_t>(static_cast<const char*>(newline) - buffer.data());
        return take(line, at, at + 1);
      }
      scanned = end;
      if (finished) return end > begin && take(line, end, end);
      make_room();
      const std::size_t got = decoder->read(buffer.data() + end, buffer.size() - kPadding - end);
      end += got;
      finished = got == 0;
    }
  }

  void rest(std::string& text) {
    text.assign(buffer.data() + begin, end - begin);
    begin = scanned = end;
    while (!finished) {
      const std::size_t size = text.size();
      if (size > limit) {
        throw DataError(cat(in.name(), ": a text of more than ", limit, " bytes"));
      }
      text.resize(size + std::max(size, kRawBytes));
      const std::size_t got = decoder->read(text.data() + size, text.size() - size);
      text.resize(size + got);
      finished = got == 0;
    }
  }

  bool take(std::string_view& line, std::size_t line_end, std::size_t after) {
    line = std::string_view(buffer.data() + begin, line_end - begin);
    ++lines;
    if (line.size() > limit) {
      throw DataError(cat(in.name(), ":", lines, ": a line of more than ", limit, " bytes"));
    }
    begin = scanned = after;
    return true;
  }

  RawInput in;
  std::unique_ptr<Decoder> decoder;
  std::uint64_t limit;
  std::vector<char> buffer;
  std::size_t begin = 0, scanned = 0, end = 0;  // no newline in [begin, scanned)
  std::uint64_t lines = 0;
  bool finished = false;
};

LineReader::LineReader(const std::string& path, std::uint64_t line_limit)
    : state_(std::make_unique<State>(path, line_limit)) {}
LineReader::~LineReader() = default;
LineReader::LineReader(LineReader&&) noexcept = default;

bool LineReader::next(std::string_view& line) {
  return state_->next(line);
}
void LineReader::rest(std::string& text) {
  state_->rest(text);
}
std::uint64_t LineReader::stored_bytes() const {
  return state_->in.total() - state_->in.available().size();
}
std::uint64_t LineReader::line_number() const {
  return state_->lines;
}
const std::string& LineReader::name() const {
  return state_->in.name();
}

}  // namespace mt
