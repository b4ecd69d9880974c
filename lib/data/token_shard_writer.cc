#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <map>

#include "base/commit.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "data/shard_layout.h"
#include "data/token_shard.h"
#include "io/hdf5.h"

namespace mt {
namespace {

static_assert(std::endian::native == std::endian::little);

// A file without a name in the directory of `target`, for the tokens before their number is known.
FileDescriptor make_spool(const std::string& target) {
  const std::size_t slash = target.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : target.substr(0, slash + 1);
  FileDescriptor unnamed(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (unnamed.valid()) return unnamed;
  // File systems without O_TMPFILE: a name that is taken away at once.
  const std::string name = cat(target, ".spool.", ::getpid());
  FileDescriptor named(::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!named.valid() || ::unlink(name.c_str()) != 0) {
    throw EnvironmentError(
        cat("cannot write a temporary file beside ", target, ": ", std::strerror(errno)));
  }
  return named;
}

}  // namespace

struct TokenShardWriter::State {
  State(Settings s, const Tokenizer& t)
      : settings(std::move(s)),
        tokenizer(&t),
        file(settings.path,
             settings.replace ? PendingFile::Existing::kReplace : PendingFile::Existing::kRefuse),
        spool(make_spool(settings.path)),
        spool_name("temporary file beside " + settings.path),
        wide(t.vocab_size() >= kShardWideVocabulary) {
    buffer.reserve(kBuffer + 4);
  }

  void put(const std::int32_t* ids, std::size_t count) {
    const std::size_t at = buffer.size();
    buffer.resize(at + count * token_bytes());
    char* const to = buffer.data() + at;
    if (wide) {
      std::memcpy(to, ids, count * 4);
    } else {
      for (std::size_t i = 0; i < count; ++i) {
        const auto id = static_cast<std::uint16_t>(ids[i]);
        std::memcpy(to + i * 2, &id, 2);
      }
    }
    if (buffer.size() >= kBuffer) flush();
  }
  void flush() {
    write_fully(spool.get(), buffer.data(), buffer.size(), spool_name);
    buffer.clear();
  }
  [[nodiscard]] std::size_t token_bytes() const { return wide ? 4 : 2; }
  [[nodiscard]] std::uint64_t tokens() const { return offsets.back(); }

  void write_attributes(Hdf5Writer& out) const;
  std::vector<std::uint64_t> write_tokens(Hdf5Writer& out);
  void fill_layout(const std::map<std::string, ByteRange>& ranges,
                   const std::map<ShardPart, Digest128>& digests, ShardLayout& layout) const;

  static constexpr std::size_t kBuffer = std::size_t{1} << 20;
  Settings settings;
  const Tokenizer* tokenizer;
  PendingFile file;
  FileDescriptor spool;
  std::string spool_name;
  bool wide;
  std::string buffer;
  std::vector<std::uint64_t> offsets{0};
  std::vector<std::int32_t> sets;
  std::map<std::string, int, std::less<>> set_ids;
  std::vector<std::string> set_names;
};

TokenShardWriter::TokenShardWriter(Settings settings, const Tokenizer& tokenizer)
    : state_(std::make_unique<State>(std::move(settings), tokenizer)) {}
TokenShardWriter::~TokenShardWriter() = default;

int TokenShardWriter::set_id(std::string_view name) {
  const auto found = state_->set_ids.find(name);
  if (found != state_->set_ids.end()) return found->second;
  const int id = static_cast<int>(state_->set_names.size());
  state_->set_names.emplace_back(name);
  state_->set_ids.emplace(name, id);
  return id;
}

void TokenShardWriter::add_document(const std::int32_t* ids, std::size_t count, int set) {
  State& s = *state_;
  const std::int32_t vocab = s.tokenizer->vocab_size();
  for (std::size_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) {
      throw DataError(cat(s.settings.path, ": document ", s.sets.size(), ": token id ", ids[i],
                          " is outside the vocabulary of ", vocab));
    }
  }
  constexpr std::size_t kPiece = std::size_t{256} << 10;  // ids
  for (std::size_t at = 0; at < count; at += kPiece) s.put(ids + at, std::min(kPiece, count - at));
  MT_ASSERT(set >= -1 && set < static_cast<int>(s.set_names.size()));
  s.offsets.push_back(s.tokens() + count);
  s.sets.push_back(set);
}

void TokenShardWriter::State::write_attributes(Hdf5Writer& out) const {
  out.attribute("/", "format", "mt-token-shard");
  out.attribute("/", "version", std::int64_t{kShardVersion});
  out.attribute("/", "tokenizer", tokenizer->name());
  out.attribute("/", "tokenizer_digest", to_hex(tokenizer->digest()));
  out.attribute("/", "vocabulary_size", std::int64_t{tokenizer->vocab_size()});
  out.attribute("/", "end_of_document", std::int64_t{tokenizer->end_of_document()});
  out.attribute("/", "tokens", static_cast<std::int64_t>(tokens()));
  out.attribute("/", "documents", static_cast<std::int64_t>(sets.size()));
  for (const auto& [name, value] : settings.options) out.attribute("/", "option." + name, value);
}

// Copies the spool, and returns the hashes of its blocks, low word first.
std::vector<std::uint64_t> TokenShardWriter::State::write_tokens(Hdf5Writer& out) {
  const FileType type = wide ? FileType::kI32 : FileType::kU16;
  out.create("/tokens", type, {static_cast<std::int64_t>(tokens())});
  std::vector<std::uint64_t> hashes;
  const std::uint64_t block_tokens = kShardBlockBytes / token_bytes();
  std::string block;
  for (std::uint64_t at = 0; at < tokens(); at += block_tokens) {
    const std::uint64_t count = std::min(block_tokens, tokens() - at);
    block.resize(static_cast<std::size_t>(count) * token_bytes());
    read_fully_at(spool.get(), block.data(), block.size(), at * token_bytes(), spool_name);
    const Digest128 digest = xxh3_128(block.data(), block.size());
    hashes.push_back(digest.low);
    hashes.push_back(digest.high);
    out.write_rows("/tokens", static_cast<std::int64_t>(at), static_cast<std::int64_t>(count),
                   block.data());
  }
  return hashes;
}

void TokenShardWriter::State::fill_layout(const std::map<std::string, ByteRange>& ranges,
                                          const std::map<ShardPart, Digest128>& digests,
                                          ShardLayout& layout) const {
  layout.token_bytes = static_cast<std::uint32_t>(token_bytes());
  layout.file_bytes = file_size(file.fd(), file.temporary_path());
  layout.tokens = tokens();
  layout.documents = sets.size();
  layout.vocab_size = static_cast<std::uint32_t>(tokenizer->vocab_size());
  layout.end_of_document = static_cast<std::uint32_t>(tokenizer->end_of_document());
  layout.tokenizer = tokenizer->digest();
  for (std::size_t p = 0; p < kShardParts; ++p) {
    const auto range = ranges.find(kShardPartNames[p]);
    if (range == ranges.end() || range->second.bytes == 0) continue;
    const auto digest = digests.find(static_cast<ShardPart>(p));
    layout.parts[p] = {range->second.offset, range->second.bytes,
                       digest == digests.end() ? Digest128{} : digest->second};
  }
  layout.rest = hash_rest(file.fd(), layout, file.temporary_path());
}

void TokenShardWriter::close() {
  State& s = *state_;
  if (s.tokens() == 0) {
    throw DataError(cat(s.settings.path, ": not written: ", s.sets.size(),
                        " documents without a single token"));
  }
  s.flush();
  std::map<ShardPart, Digest128> digests;
  Hdf5Writer out(s.file, kShardUserBlock);
  s.write_attributes(out);
  const std::vector<std::uint64_t> hashes = s.write_tokens(out);
  const auto rows = [](std::size_t n) { return static_cast<std::int64_t>(n); };
  const auto put = [&](ShardPart part, FileType type, const Shape& shape, const void* data,
                       std::size_t bytes) {
    digests[part] = xxh3_128(data, bytes);
    out.write(kShardPartNames[static_cast<std::size_t>(part)], type, shape, data);
  };
  put(ShardPart::kDocumentOffsets, FileType::kU64, {rows(s.offsets.size())}, s.offsets.data(),
      s.offsets.size() * 8);
  if (!s.set_names.empty()) {
    put(ShardPart::kDocumentSet, FileType::kI32, {rows(s.sets.size())}, s.sets.data(),
        s.sets.size() * 4);
    const std::string names = json_line(Json(s.set_names));
    put(ShardPart::kSetNames, FileType::kU8, {rows(names.size())}, names.data(), names.size());
  }
  const TokenizerFiles& files = s.tokenizer->files();
  put(ShardPart::kVocab, FileType::kU8, {rows(files.vocab.size())}, files.vocab.data(),
      files.vocab.size());
  put(ShardPart::kMerges, FileType::kU8, {rows(files.merges.size())}, files.merges.data(),
      files.merges.size());
  put(ShardPart::kBlockHashes, FileType::kU64, {rows(hashes.size() / 2), 2}, hashes.data(),
      hashes.size() * 8);
  ShardLayout layout;
  s.fill_layout(out.close(), digests, layout);
  s.file.write_at(0, encode_user_block(layout));
  s.file.commit();
}

}  // namespace mt
