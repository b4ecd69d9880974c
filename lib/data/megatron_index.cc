#include "data/megatron_index.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "base/commit.h"
#include "base/error.h"
#include "base/log.h"
#include "data/load.h"
#include "data/shard_layout.h"

namespace mt {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::uint64_t kHeader = 34;  // magic, version u64, type u8, sequences u64, boundaries u64
constexpr std::uint64_t kVersion = 1;
constexpr std::uint8_t kCodeI32 = 4, kCodeU16 = 8;
constexpr std::uint64_t kPiece = std::uint64_t{1} << 16;  // entries read at once

template <typename T>
void store(std::string& to, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  to.append(bytes, sizeof(T));
}

// One of the index's tables, read in pieces in its order.
template <typename T>
class Table {
 public:
  Table(int fd, const std::string& path, std::uint64_t at, std::uint64_t count)
      : fd_(fd), path_(path), at_(at), left_(count) {}
  T next() {
    if (place_ == piece_.size()) {
      const std::uint64_t count = std::min(kPiece, left_);
      piece_.resize(static_cast<std::size_t>(count));
      read_fully_at(fd_, piece_.data(), piece_.size() * sizeof(T), at_, path_);
      at_ += count * sizeof(T);
      left_ -= count;
      place_ = 0;
    }
    return piece_[place_++];
  }

 private:
  int fd_;
  const std::string& path_;
  std::uint64_t at_, left_;
  std::vector<T> piece_;
  std::size_t place_ = 0;
};

class IndexReader {
 public:
  IndexReader(const std::string& prefix, std::uint64_t bin_bytes)
      : path_(prefix + ".idx"),
        bin_(prefix + ".bin"),
        bin_bytes_(bin_bytes),
        file_(open_regular(path_)) {}

  MegatronIndex read() {
    read_header();
    read_tables();
    return std::move(index_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(cat(printable(path_), ": ", what));
  }
  void read_header();
  void read_tables();

  std::string path_, bin_;
  std::uint64_t bin_bytes_;
  FileDescriptor file_;
  std::uint64_t sequences_ = 0, boundaries_ = 0;
  MegatronIndex index_;
};

void IndexReader::read_header() {
  const std::uint64_t bytes = file_size(file_.get(), path_);
  if (bytes < kHeader) fail(cat("truncated: ", bytes, " bytes, its header alone has ", kHeader));
  std::string header(kHeader, '\0');
  read_fully_at(file_.get(), header.data(), header.size(), 0, path_);
  if (std::string_view(header).substr(0, kMagic.size()) != kMagic) {
    fail("not an index of Megatron-LM's: it does not begin with MMIDIDX");
  }
  if (const auto version = load<std::uint64_t>(header.data() + 9); version != kVersion) {
    fail(cat("version ", version, ", expected ", kVersion));
  }
  const auto code = static_cast<std::uint8_t>(header[17]);
  if (code != kCodeI32 && code != kCodeU16) {
    fail(cat("type of the tokens: code ", int{code}, ", expected 4 (int32) or 8 (uint16)"));
  }
  index_.token_bytes = code == kCodeU16 ? 2 : 4;
  sequences_ = load<std::uint64_t>(header.data() + 18);
  boundaries_ = load<std::uint64_t>(header.data() + 26);
  // No product overflows once both are below the size of the file.
  if (sequences_ > bytes || boundaries_ > bytes ||
      bytes != kHeader + sequences_ * 12 + boundaries_ * 8) {
    fail(cat(bytes, " bytes, but ", sequences_, " sequences and ", boundaries_,
             " document boundaries make ", kHeader, " + 12 x ", sequences_, " + 8 x ", boundaries_,
             sequences_ <= bytes && boundaries_ <= bytes &&
                     bytes == kHeader + sequences_ * 13 + boundaries_ * 8
                 ? "; data of several modes are not read"
                 : ""));
  }
  if (boundaries_ < 2) fail(cat(boundaries_, " document boundaries, expected at least 2"));
  if (bin_bytes_ % index_.token_bytes != 0) {
    throw DataError(cat(printable(bin_), ": ", bin_bytes_, " bytes, no multiple of the ",
                        index_.token_bytes, " of a token"));
  }
  index_.tokens = bin_bytes_ / index_.token_bytes;
}

void IndexReader::read_tables() {
  Table<std::int32_t> lengths(file_.get(), path_, kHeader, sequences_);
  Table<std::int64_t> pointers(file_.get(), path_, kHeader + sequences_ * 4, sequences_);
  Table<std::int64_t> documents(file_.get(), path_, kHeader + sequences_ * 12, boundaries_);
  std::uint64_t tokens = 0, at = 0;  // of all sequences before number `at`
  for (std::uint64_t d = 0; d < boundaries_; ++d) {
    const std::int64_t boundary = documents.next();
    if (boundary < 0 || static_cast<std::uint64_t>(boundary) < at ||
        static_cast<std::uint64_t>(boundary) > sequences_ || (d == 0 && boundary != 0)) {
      fail(cat("document boundary ", d, " is ", boundary, ", expected ",
               d == 0 ? "0" : cat(at, " to ", sequences_)));
    }
    for (; at < static_cast<std::uint64_t>(boundary); ++at) {
      const std::int32_t length = lengths.next();
      const std::int64_t pointer = pointers.next();
      if (length < 0) fail(cat("sequence ", at, " has length ", length));
      if (pointer < 0 || static_cast<std::uint64_t>(pointer) != tokens * index_.token_bytes) {
        fail(cat("sequence ", at, " begins at byte ", pointer, ", expected ",
                 tokens * index_.token_bytes, ", where the one before it ends"));
      }
      tokens += static_cast<std::uint64_t>(length);
      if (tokens > index_.tokens) {
        fail(cat("sequence ", at, " ends after token ", tokens, ", but ", printable(bin_),
                 " has only ", index_.tokens));
      }
    }
    index_.offsets.push_back(tokens);
  }
  if (at != sequences_) {
    fail(cat("the last document boundary is ", at, ", expected ", sequences_, " sequences"));
  }
  if (tokens != index_.tokens) {
    fail(cat("its sequences have ", tokens, " tokens, but ", printable(bin_), " has ",
             index_.tokens));
  }
  if (tokens == 0) fail("not one token");
}

}  // namespace

std::string find_megatron_prefix(const std::string& path) {
  std::string bare = path;
  for (const char* const suffix : {".bin", ".idx"}) {
    if (path.ends_with(suffix)) bare = path.substr(0, path.size() - std::strlen(suffix));
  }
  for (const std::string& prefix : {bare, bare + "_text_document"}) {
    if (exists(prefix + ".idx")) return prefix;
  }
  return "";
}

MegatronIndex read_megatron_index(const std::string& prefix, std::uint64_t bin_bytes) {
  return IndexReader(prefix, bin_bytes).read();
}

struct MegatronWriter::State {
  State(std::string p, bool replace, const Tokenizer& t)
      : prefix(std::move(p)),
        replaces(replace),
        tokenizer(&t),
        bin(prefix + ".bin", existing()),
        index(prefix + ".idx", existing()),
        wide(t.vocab_size() >= kShardWideVocabulary) {}

  [[nodiscard]] PendingFile::Existing existing() const {
    return replaces ? PendingFile::Existing::kReplace : PendingFile::Existing::kRefuse;
  }
  void put(const std::int32_t* ids, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      wide ? store(buffer, ids[i]) : store(buffer, static_cast<std::uint16_t>(ids[i]));
    }
    if (buffer.size() >= kBuffer) flush(bin);
  }
  void flush(PendingFile& to) {
    to.write(buffer);
    buffer.clear();
  }
  // One of the index's tables.
  template <typename T, typename Value>
  void table(std::size_t count, const Value& value) {
    for (std::size_t i = 0; i < count; ++i) {
      store<T>(buffer, value(i));
      if (buffer.size() >= kBuffer) flush(index);
    }
  }

  static constexpr std::size_t kBuffer = std::size_t{1} << 20;
  std::string prefix;
  bool replaces;
  const Tokenizer* tokenizer;
  PendingFile bin, index;
  bool wide;
  std::string buffer;
  std::vector<std::int32_t> lengths;
  std::uint64_t tokens = 0;
};

MegatronWriter::MegatronWriter(std::string prefix, bool replace, const Tokenizer& tokenizer)
    : state_(std::make_unique<State>(std::move(prefix), replace, tokenizer)) {}
MegatronWriter::~MegatronWriter() = default;

int MegatronWriter::set_id(std::string_view /*name*/) {
  return -1;
}

void MegatronWriter::add_document(const std::int32_t* ids, std::size_t count, int /*set*/) {
  State& s = *state_;
  const std::int32_t vocab = s.tokenizer->vocab_size();
  for (std::size_t i = 0; i < count; ++i) {
    if (ids[i] >= 0 && ids[i] < vocab) continue;
    throw DataError(cat(s.prefix, ".bin: document ", s.lengths.size(), ": token id ", ids[i],
                        " is outside the vocabulary of ", vocab));
  }
  if (count > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw DataError(cat(s.prefix, ".idx: document ", s.lengths.size(), " has ", count,
                        " tokens, more than that format holds"));
  }
  constexpr std::size_t kIds = std::size_t{256} << 10;
  for (std::size_t at = 0; at < count; at += kIds) s.put(ids + at, std::min(kIds, count - at));
  s.lengths.push_back(static_cast<std::int32_t>(count));
  s.tokens += count;
}

void MegatronWriter::close() {
  State& s = *state_;
  if (s.tokens == 0) {
    throw DataError(cat(s.prefix, ".bin: not written: ", s.lengths.size(),
                        " documents without a single token"));
  }
  s.flush(s.bin);
  const std::size_t count = s.lengths.size();
  s.buffer.assign(kMagic);
  store(s.buffer, kVersion);
  store(s.buffer, s.wide ? kCodeI32 : kCodeU16);
  store(s.buffer, std::uint64_t{count});
  store(s.buffer, std::uint64_t{count + 1});
  s.table<std::int32_t>(count, [&](std::size_t i) { return s.lengths[i]; });
  std::int64_t at = 0;
  s.table<std::int64_t>(count, [&](std::size_t i) {
    return std::exchange(at, at + std::int64_t{s.lengths[i]} * (s.wide ? 4 : 2));
  });
  s.table<std::int64_t>(count + 1, [](std::size_t i) { return static_cast<std::int64_t>(i); });
  s.flush(s.index);
  if (s.replaces) remove_tree(s.prefix + ".idx");
  s.bin.commit();
  s.index.commit();
}

}  // namespace mt
