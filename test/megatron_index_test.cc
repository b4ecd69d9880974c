// Megatron-LM's token data: bytes written by hand, both ways; and an index of which nothing is
// trusted.
#include "data/megatron_index.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>

#include "base/commit.h"
#include "base/error.h"
#include "data/token_shard.h"
#include "shared_data.h"

namespace mt {
namespace {

using testing::byte_level_files;
using testing::Scratch;
using testing::slurp;
using testing::spill;

template <typename T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// Three documents of 2, 0 and 3 tokens, the last of two sequences.
struct Index {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  std::uint64_t version = 1;
  std::uint8_t code = 8;
  std::uint64_t sequences = 4, boundaries = 4;
  std::vector<std::int32_t> lengths = {2, 0, 1, 2};
  std::vector<std::int64_t> pointers = {0, 4, 4, 6};
  std::vector<std::int64_t> documents = {0, 1, 2, 4};
  std::string more;

  [[nodiscard]] std::string bytes() const {
    std::string out = magic;
    put(out, version);
    put(out, code);
    put(out, sequences);
    put(out, boundaries);
    for (const std::int32_t x : lengths) put(out, x);
    for (const std::int64_t x : pointers) put(out, x);
    for (const std::int64_t x : documents) put(out, x);
    return out + more;
  }
};

std::string tokens(const std::vector<std::uint16_t>& ids) {
  std::string out;
  for (const std::uint16_t id : ids) put(out, id);
  return out;
}

struct Place {
  Scratch scratch;
  std::unique_ptr<Tokenizer> tokenizer = make_bpe_tokenizer(byte_level_files(), "test");
  std::string prefix = scratch / "data";

  void write(const Index& index, const std::string& bin) const {
    spill(prefix + ".idx", index.bytes());
    spill(prefix + ".bin", bin);
  }
  // Every token, document by document; opens and reads everything.
  [[nodiscard]] std::vector<std::vector<std::int32_t>> read() const {
    const TokenShardReader reader(prefix, *tokenizer);
    std::vector<std::vector<std::int32_t>> out;
    for (std::int64_t d = 0; d < reader.documents(); ++d) {
      const std::int64_t begin = reader.document_offset(d);
      out.emplace_back(static_cast<std::size_t>(reader.document_offset(d + 1) - begin));
      reader.read(begin, static_cast<std::int64_t>(out.back().size()), out.back().data());
    }
    return out;
  }
  [[nodiscard]] std::string refused() const {
    try {
      static_cast<void>(read());
    } catch (const DataError& error) {
      return error.what();
    }
    return "it was read";
  }
};

const std::vector<std::vector<std::int32_t>> kDocuments = {{5, 6}, {}, {7, 8, 9}};

TEST(MegatronIndex, gives_the_documents_of_either_type) {
  const Place place;
  Index index;
  place.write(index, tokens({5, 6, 7, 8, 9}));
  EXPECT_EQ(place.read(), kDocuments);
  index.code = 4;
  index.pointers = {0, 8, 8, 12};
  std::string wide;
  for (const std::int32_t id : {5, 6, 7, 8, 9}) put(wide, id);
  place.write(index, wide);
  EXPECT_EQ(place.read(), kDocuments);
}

TEST(MegatronIndex, writes_the_bytes_of_the_format) {
  const Place place;
  MegatronWriter writer(place.prefix, false, *place.tokenizer);
  for (const auto& document : kDocuments) writer.add_document(document.data(), document.size(), -1);
  EXPECT_FALSE(exists(place.prefix + ".bin") || exists(place.prefix + ".idx"));
  writer.close();
  Index index;
  index.sequences = 3;
  index.lengths = {2, 0, 3};
  index.pointers = {0, 4, 4};
  index.documents = {0, 1, 2, 3};
  EXPECT_EQ(slurp(place.prefix + ".idx"), index.bytes());
  EXPECT_EQ(slurp(place.prefix + ".bin"), tokens({5, 6, 7, 8, 9}));
  EXPECT_EQ(place.read(), kDocuments);
  EXPECT_THROW(MegatronWriter(place.prefix, false, *place.tokenizer), UsageError);
  MegatronWriter again(place.prefix, true, *place.tokenizer);
  const std::int32_t id = 3, large = 100000;
  EXPECT_THROW(again.add_document(&large, 1, -1), DataError);
  again.add_document(&id, 1, -1);
  again.close();
  EXPECT_EQ(place.read(), (std::vector<std::vector<std::int32_t>>{{3}}));
  MegatronWriter empty(place.prefix + "2", false, *place.tokenizer);
  empty.add_document(&id, 0, -1);
  EXPECT_THROW(empty.close(), DataError);
  EXPECT_FALSE(exists(place.prefix + "2.bin"));
}

TEST(MegatronIndex, is_found_by_each_of_its_names) {
  const Place place;
  EXPECT_EQ(find_megatron_prefix(place.prefix), "");
  spill(place.prefix + "_text_document.idx", "");
  for (const char* const name :
       {"", "_text_document", "_text_document.bin", "_text_document.idx"}) {
    EXPECT_EQ(find_megatron_prefix(place.prefix + name), place.prefix + "_text_document") << name;
  }
}

TEST(MegatronIndex, is_refused_with_the_entry_that_is_wrong) {
  struct Case {
    const char* text;
    std::function<void(Index&)> spoil;
    std::string bin = tokens({5, 6, 7, 8, 9});
  };
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 62;
  const std::vector<Case> cases = {
      {"does not begin with MMIDIDX", [](Index& i) { i.magic[0] = 'X'; }},
      {"version 2, expected 1", [](Index& i) { i.version = 2; }},
      {"code 5, expected 4 (int32) or 8 (uint16)", [](Index& i) { i.code = 5; }},
      {"114 bytes, but 5 sequences", [](Index& i) { i.sequences = 5; }},
      {"sequences and 4 document boundaries", [=](Index& i) { i.sequences = kHuge; }},
      {"document boundaries make", [=](Index& i) { i.boundaries = kHuge; }},
      {"something", [](Index& i) { i.more = "x"; }},
      {"several modes", [](Index& i) { i.more = "abcd"; }},
      {"sequence 1 has length -1", [](Index& i) { i.lengths[1] = -1; }},
      {"sequence 0 ends after token 6", [](Index& i) { i.lengths[0] = 6; }},
      {"sequence 2 begins at byte 2, expected 4", [](Index& i) { i.pointers[2] = 2; }},
      {"sequence 3 begins at byte -6", [](Index& i) { i.pointers[3] = -6; }},
      {"document boundary 0 is 1, expected 0", [](Index& i) { i.documents[0] = 1; }},
      {"document boundary 2 is 0, expected 1 to 4", [](Index& i) { i.documents[2] = 0; }},
      {"document boundary 3 is 5", [](Index& i) { i.documents[3] = 5; }},
      {"the last document boundary is 3, expected 4", [](Index& i) { i.documents[3] = 3; }},
      {"its sequences have 4 tokens", [](Index& i) { i.lengths[3] = 1; }},
      {"11 bytes, no multiple of the 2", [](Index&) {}, tokens({5, 6, 7, 8, 9}) + "x"},
      {"has only 4", [](Index&) {}, tokens({5, 6, 7, 8})},
      {"token id 300 is outside the vocabulary of 257", [](Index&) {}, tokens({5, 6, 300, 8, 9})},
      {"0 document boundaries",
       [](Index& i) {
         i = {};
         i.sequences = i.boundaries = 0;
         i.lengths.clear();
         i.pointers.clear();
         i.documents.clear();
       },
       ""},
      {"not one token",
       [](Index& i) {
         i.lengths = {0, 0, 0, 0};
         i.pointers = {0, 0, 0, 0};
       },
       ""},
  };
  const Place place;
  for (const Case& each : cases) {
    Index index;
    each.spoil(index);
    place.write(index, each.bin);
    const std::string found = place.refused();
    EXPECT_EQ(found.rfind(place.prefix, 0), 0U) << found;
    if (std::string(each.text) != "something") {
      EXPECT_NE(found.find(each.text), std::string::npos) << each.text << ": " << found;
    }
  }
  place.write({}, tokens({5, 6, 7, 8, 9}));
  const std::string whole = slurp(place.prefix + ".idx");
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    spill(place.prefix + ".idx", whole.substr(0, bytes));
    EXPECT_NE(place.refused(), "it was read") << bytes;
  }
}

// Whatever was changed: refused, or read without a token that the vocabulary lacks.
TEST(MegatronIndex, survives_every_mutation) {
  const Place place;
  const Index index;
  const std::string whole = index.bytes(), bin = tokens({5, 6, 7, 8, 9});
  std::mt19937 generator(11);
  int refused = 0, read = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = whole, data = bin;
    std::string& which = round % 4 == 3 ? data : bytes;
    for (std::uint32_t n = generator() % 3 + 1; n-- > 0;) {
      which[generator() % which.size()] =
          static_cast<char>(generator() % 3 == 0 ? 0xFF : generator());
    }
    spill(place.prefix + ".idx", bytes);
    spill(place.prefix + ".bin", data);
    try {
      for (const auto& document : place.read()) {
        for (const std::int32_t id : document) ASSERT_TRUE(id >= 0 && id < 257);
      }
      ++read;
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_EQ(refused + read, 3000);
  EXPECT_GT(refused, 2000);
  EXPECT_GT(read, 10);
}

}  // namespace
}  // namespace mt
