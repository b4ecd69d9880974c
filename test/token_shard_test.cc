// Token shards: what is written comes back, equal content is equal bytes, other tools open them,
// and no damage passes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <random>
#include <thread>

#include "base/error.h"
#include "data/gpt_batches.h"
#include "data/shard_layout.h"
#include "data/token_shard.h"
#include "io/hdf5.h"
#include "shared_data.h"

namespace mt {
namespace {

using namespace mt::testing;
using Documents = std::vector<std::vector<std::int32_t>>;

// A vocabulary of `size` tokens without merges: two-byte tokens after the single ones.
std::unique_ptr<Tokenizer> tokenizer_of(std::int64_t size) {
  std::vector<std::string> extra;
  for (std::int64_t i = 0; i < size - 257; ++i) {
    extra.push_back(cat(static_cast<char>('A' + i % 26), static_cast<char>('a' + i / 26 % 26),
                        static_cast<char>('A' + i / 676 % 26), static_cast<char>('a' + i / 17576)));
  }
  return make_bpe_tokenizer(byte_level_files(extra), "test");
}

Documents random_documents(std::size_t count, std::int32_t vocab, unsigned seed,
                           std::size_t longest = 200) {
  std::mt19937 random(seed);
  Documents documents(count);
  for (auto& d : documents) {
    d.resize(random() % longest);
    for (auto& id : d) id = static_cast<std::int32_t>(random() % static_cast<unsigned>(vocab));
  }
  documents.front() = {vocab - 1};
  return documents;
}

void write(const std::string& path, const Tokenizer& tokenizer, const Documents& documents,
           bool sets = true, bool replace = false) {
  TokenShardWriter writer({.path = path, .replace = replace, .options = {{"append-eod", "true"}}},
                          tokenizer);
  for (std::size_t d = 0; d < documents.size(); ++d) {
    const int set = !sets || d % 3 == 0 ? -1 : writer.set_id(d % 3 == 1 ? "PubMed \"x\"\n" : "b");
    writer.add_document(documents[d].data(), documents[d].size(), set);
  }
  writer.close();
}

Documents read_all(const TokenShardReader& shard) {
  Documents documents;
  for (std::int64_t d = 0; d < shard.documents(); ++d) {
    const std::int64_t begin = shard.document_offset(d);
    documents.emplace_back(static_cast<std::size_t>(shard.document_offset(d + 1) - begin));
    shard.read(begin, static_cast<std::int64_t>(documents.back().size()), documents.back().data());
  }
  return documents;
}

TEST(TokenShard, RoundTripAndBoundaryVocabularies) {
  const Scratch scratch;
  for (const std::int64_t vocab : {257, 65499, 65500, 65535, 65536, 65537}) {
    const auto tokenizer = tokenizer_of(vocab);
    ASSERT_EQ(tokenizer->vocab_size(), vocab);
    const Documents documents = random_documents(300, tokenizer->vocab_size(), 1);
    const std::string path = scratch / cat(vocab, ".h5");
    write(path, *tokenizer, documents);
    const TokenShardReader shard(path);
    EXPECT_EQ(read_all(shard), documents) << vocab;
    EXPECT_EQ(shard.vocab_size(), vocab);
    EXPECT_EQ(shard.end_of_document(), vocab - 1);
    EXPECT_EQ(shard.tokenizer_digest(), tokenizer->digest());
    EXPECT_EQ(shard.tokenizer_files().vocab, tokenizer->files().vocab);
    EXPECT_EQ(shard.tokenizer_files().merges, tokenizer->files().merges);
    const Hdf5Reader plain(path);
    EXPECT_EQ(plain.read<std::int32_t>("/tokens").front(), vocab - 1);
    EXPECT_EQ(plain.range("/tokens").bytes,
              static_cast<std::uint64_t>(shard.tokens()) * (vocab < 65500 ? 2U : 4U));
  }
}

TEST(TokenShard, TokenizerWithoutMerges) {
  const Scratch scratch;
  const auto tokenizer = make_bpe_tokenizer(byte_level_files({}, ""), "test");
  write(scratch / "a.h5", *tokenizer, {{1, 2}, {}, {256}});
  EXPECT_EQ(read_all(TokenShardReader(scratch / "a.h5")), (Documents{{1, 2}, {}, {256}}));
  EXPECT_EQ(TokenShardReader(scratch / "a.h5").tokenizer_files().merges, "");
}

TEST(TokenShard, EqualContentIsEqualBytes) {
  const Scratch scratch;
  const auto tokenizer = tokenizer_of(300);
  const Documents documents = random_documents(50, 300, 2);
  write(scratch / "a.h5", *tokenizer, documents);
  write(scratch / "b.h5", *tokenizer, documents);
  EXPECT_EQ(slurp(scratch / "a.h5"), slurp(scratch / "b.h5"));
  Documents other = documents;
  other[1].push_back(1);
  write(scratch / "b.h5", *tokenizer, other, true, true);
  EXPECT_NE(slurp(scratch / "a.h5"), slurp(scratch / "b.h5"));
}

TEST(TokenShard, SetsAndAttributesForOtherTools) {
  const Scratch scratch;
  const auto tokenizer = tokenizer_of(300);
  const Documents documents = random_documents(7, 300, 2);
  const std::string path = scratch / "a.h5";
  write(path, *tokenizer, documents);
  const Hdf5Reader plain(path);
  EXPECT_EQ(plain.read<std::int32_t>("/document_set"),
            (std::vector<std::int32_t>{-1, 0, 1, -1, 0, 1, -1}));
  const auto names = plain.read<std::uint8_t>("/set_names");
  EXPECT_EQ(std::string(names.begin(), names.end()), R"(["PubMed \"x\"\n","b"])");
  EXPECT_EQ(plain.text_attribute("/", "format"), "mt-token-shard");
  EXPECT_EQ(plain.text_attribute("/", "tokenizer"), "GPT2BPETokenizer");
  EXPECT_EQ(plain.text_attribute("/", "tokenizer_digest"), to_hex(tokenizer->digest()));
  EXPECT_EQ(plain.text_attribute("/", "option.append-eod"), "true");
  EXPECT_EQ(plain.number_attribute("/", "documents"), 7);
  const std::string flat = scratch / "flat";
  const std::string dump = "h5dump -d /tokens -y -w 1 '" + path + "' > '" + flat + "'";
  ASSERT_EQ(std::system(dump.c_str()), 0);
  EXPECT_NE(slurp(flat).find("H5T_STD_U16LE"), std::string::npos);
  const std::string h5py =
      "/usr/bin/python3 -c 'import h5py,sys; f=h5py.File(sys.argv[1]); "
      "print(int(f[\"tokens\"][...].sum()), f.attrs[\"tokens\"], f.attrs[\"format\"].decode())' '" +
      path + "' > '" + flat + "' 2>/dev/null";
  if (std::system("/usr/bin/python3 -c 'import h5py' 2>/dev/null") != 0) {
    FAIL() << "h5py is absent";
  }
  ASSERT_EQ(std::system(h5py.c_str()), 0);
  std::int64_t sum = 0;
  for (const auto& d : documents) {
    for (const std::int32_t id : d) sum += id;
  }
  EXPECT_EQ(slurp(flat), cat(sum, " ", TokenShardReader(path).tokens(), " mt-token-shard\n"));
}

TEST(TokenShard, WholeOrAbsent) {
  const Scratch scratch;
  const auto tokenizer = tokenizer_of(300);
  const std::string path = scratch / "a.h5";
  const std::string list = "ls -A '" + (scratch / "") + "' > list";
  {
    TokenShardWriter writer({.path = path, .replace = false, .options = {}}, *tokenizer);
    const std::int32_t id = 5;
    writer.add_document(&id, 1, -1);
    EXPECT_FALSE(exists(path));
  }
  ASSERT_EQ(std::system(list.c_str()), 0);
  EXPECT_EQ(slurp("list"), "");  // nothing was left
  EXPECT_THROW(write(path, *tokenizer, {{}, {}}), DataError);
  EXPECT_THROW(write(path, *tokenizer, {{1, 300}}), DataError);
  EXPECT_THROW(write(path, *tokenizer, {{-1}}), DataError);
  EXPECT_THROW(write(scratch / "none/a.h5", *tokenizer, {{1}}), EnvironmentError);
  ASSERT_EQ(std::system(list.c_str()), 0);
  EXPECT_EQ(slurp("list"), "");
  write(path, *tokenizer, {{1}});
  const std::string before = slurp(path);
  EXPECT_THROW(write(path, *tokenizer, {{2}}), UsageError);
  EXPECT_EQ(slurp(path), before);
  write(path, *tokenizer, {{2}}, true, true);
  EXPECT_NE(slurp(path), before);
  ::unlink("list");
}

// Opens and reads an epoch in stored order. Empty: no damage was found.
std::string damage_in(const std::string& path) {
  try {
    const TokenShardReader shard(path);
    std::vector<std::int32_t> ids(1000);
    for (std::int64_t at = 0; at < shard.tokens(); at += 1000) {
      shard.read(at, std::min<std::int64_t>(1000, shard.tokens() - at), ids.data());
    }
    return "";
  } catch (const DataError& e) {
    return e.what();
  }
}

TEST(TokenShard, BitFlips) {
  const Scratch scratch;
  const auto tokenizer = tokenizer_of(300);
  const std::string path = scratch / "a.h5";
  write(path, *tokenizer, random_documents(400, 300, 2));
  std::string bytes = slurp(path);
  ASSERT_EQ(damage_in(path), "");
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  std::mt19937 random(11);
  std::map<std::string, int> found;
  for (int flip = 0; flip < 2000; ++flip) {
    const std::size_t at = random() % bytes.size();
    char byte = static_cast<char>(bytes[at] ^ (1 << random() % 8));
    write_fully_at(file.get(), &byte, 1, at, path);
    const std::string what = damage_in(path);
    ASSERT_NE(what, "") << "a flip at byte " << at << " passed";
    ASSERT_EQ(what.rfind(path + ": ", 0), 0U) << what;
    found[what.substr(path.size() + 2, 9)]++;
    write_fully_at(file.get(), &bytes[at], 1, at, path);
  }
  EXPECT_EQ(damage_in(path), "");
  EXPECT_GT(found["block 0 o"], 1000);  // /tokens is most of the file
  EXPECT_GT(found["/document"], 0);
  EXPECT_GT(found["/tokenize"], 0);
  EXPECT_GT(found["HDF5 stru"], 0);
  EXPECT_GT(found["user bloc"], 0);
}

TEST(TokenShard, TruncatedExtendedAndForeign) {
  const Scratch scratch;
  const auto tokenizer = tokenizer_of(300);
  const std::string path = scratch / "a.h5";
  write(path, *tokenizer, random_documents(40, 300, 2));
  const std::string bytes = slurp(path);
  for (std::size_t size = 0; size < bytes.size(); size += 1 + bytes.size() / 400) {
    spill(scratch / "cut.h5", bytes.substr(0, size));
    EXPECT_NE(damage_in(scratch / "cut.h5"), "") << size;
  }
  spill(scratch / "cut.h5", bytes.substr(0, bytes.size() - 1));
  EXPECT_NE(damage_in(scratch / "cut.h5").find("truncated"), std::string::npos);
  spill(scratch / "cut.h5", bytes + "x");
  EXPECT_NE(damage_in(scratch / "cut.h5").find("something follows"), std::string::npos);
  spill(scratch / "cut.h5", "{\"text\": 1}\n");
  EXPECT_NE(damage_in(scratch / "cut.h5").find("not a token shard"), std::string::npos);
  EXPECT_THROW(TokenShardReader(scratch / "absent.h5"), EnvironmentError);
  EXPECT_THROW(TokenShardReader(scratch / ""), Error);
}

// A user block with a right hash and wrong numbers: refused before anything is read or allocated.
TEST(TokenShard, HostileUserBlock) {
  const Scratch scratch;
  const auto tokenizer = tokenizer_of(300);
  const std::string path = scratch / "a.h5";
  write(path, *tokenizer, random_documents(40, 300, 2));
  std::string bytes = slurp(path);
  const ShardLayout good = decode_user_block(bytes.substr(0, kShardUserBlock), bytes.size(), path);
  const auto refused = [&](const std::function<void(ShardLayout&)>& change) {
    ShardLayout bad = good;
    change(bad);
    spill(path, encode_user_block(bad) + bytes.substr(kShardUserBlock));
    EXPECT_NE(damage_in(path), "");
  };
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  for (std::size_t p = 0; p < kShardParts; ++p) {
    refused([&](ShardLayout& l) { l.parts[p].bytes = kHuge; });
    refused([&](ShardLayout& l) { l.parts[p].bytes = kHuge / 2; });
    refused([&](ShardLayout& l) { l.parts[p].bytes = 0; });
    refused([&](ShardLayout& l) { l.parts[p].offset = kHuge; });
    refused([&](ShardLayout& l) { l.parts[p].offset = 0; });
    refused([&](ShardLayout& l) { l.parts[p].offset = l.file_bytes - l.parts[p].bytes + 1; });
    refused([&](ShardLayout& l) { l.parts[p].offset = l.parts[(p + 1) % kShardParts].offset; });
  }
  refused([](ShardLayout& l) { l.tokens = kHuge; });
  refused([](ShardLayout& l) { l.tokens = kHuge / 2 + 1 + l.tokens; });
  refused([](ShardLayout& l) { l.tokens = 0; });
  refused([](ShardLayout& l) { l.documents = kHuge; });
  refused([](ShardLayout& l) { l.documents = kHuge / 8; });
  refused([](ShardLayout& l) { l.documents += 1; });
  refused([](ShardLayout& l) { l.token_bytes = 0; });
  refused([](ShardLayout& l) { l.token_bytes = 4; });
  refused([](ShardLayout& l) { l.vocab_size = 0; });
  refused([](ShardLayout& l) { l.vocab_size = 299; });  // an id outside
  refused([](ShardLayout& l) { l.vocab_size = 0xFFFFFFFF; });
  refused([](ShardLayout& l) { l.end_of_document = l.vocab_size; });
  refused([](ShardLayout& l) { l.file_bytes += 1; });
  spill(path, bytes);
  EXPECT_EQ(damage_in(path), "");
}

TEST(TokenShard, FileThatShrinksWhileInUse) {
  const Scratch scratch;
  const auto tokenizer = tokenizer_of(300);
  const std::string path = scratch / "a.h5";
  write(path, *tokenizer, random_documents(4000, 300, 2));
  const TokenShardReader shard(path);
  std::vector<std::int32_t> ids(100);
  shard.read(0, 100, ids.data());
  ASSERT_EQ(::truncate(path.c_str(), 5000), 0);
  EXPECT_THROW(shard.read(shard.tokens() - 100, 100, ids.data()), DataError);
  EXPECT_THROW((void)shard.document_offset(1), DataError);
}

// Several blocks, read by several threads at once; a flip in one block names that block and leaves
// the others readable.
TEST(TokenShard, BlocksAreVerifiedAtFirstTouch) {
  const Scratch scratch;
  const auto tokenizer = tokenizer_of(300);
  const std::string path = scratch / "a.h5";
  const std::int64_t block = (4 << 20) / 2;
  Documents documents;
  for (int d = 0; d < 9; ++d) {
    documents.push_back(std::vector<std::int32_t>(1000000, d));
  }
  write(path, *tokenizer, documents, false);
  {
    const TokenShardReader shard(path);
    std::vector<std::thread> threads;
    std::atomic<int> right = 0;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        std::vector<std::int32_t> ids(5000);
        for (std::int64_t at = 0; at + 5000 <= shard.tokens(); at += 5000) {
          shard.read(at, 5000, ids.data());
          const auto wanted = static_cast<std::int32_t>(at / 1000000);
          right += std::all_of(ids.begin(), ids.end(), [&](auto id) { return id == wanted; });
        }
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(right, 4 * 1800);
  }
  const ByteRange range = Hdf5Reader(path).range("/tokens");
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  const char bad = 1;
  write_fully_at(file.get(), &bad, 1, range.offset + 2 * (4U << 20) + 77, path);
  const TokenShardReader shard(path);  // not yet noticed
  std::vector<std::int32_t> ids(10);
  shard.read(2 * block - 10, 10, ids.data());
  shard.read(3 * block, 10, ids.data());
  try {
    shard.read(2 * block - 9, 10, ids.data());
    ADD_FAILURE() << "a damaged block was read";
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find(
                  "block 2 of /tokens (tokens 4194304 to 6291455, documents 4 to 6)"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace mt
