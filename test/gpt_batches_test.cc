// Order and packing of samples.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "data/gpt_batches.h"
#include "data/token_shard.h"
#include "shared_data.h"

namespace mt {
namespace {

using namespace mt::testing;

// Shards whose token at position i is i, cut into documents of `length` tokens.
class Ramp {
 public:
  explicit Ramp(std::int64_t tokens, std::int64_t length = 7) {
    std::vector<std::string> extra;
    for (int i = 0; i < 2000; ++i) {
      extra.push_back(cat(static_cast<char>('A' + i % 26), static_cast<char>('a' + i / 26 % 26),
                          static_cast<char>('A' + i / 676)));
    }
    const auto tokenizer = make_bpe_tokenizer(byte_level_files(extra), "test");
    TokenShardWriter writer({.path = path(), .replace = true, .options = {}}, *tokenizer);
    for (std::int64_t at = 0; at < tokens; at += length) {
      std::vector<std::int32_t> ids;
      for (std::int64_t i = at; i < std::min(at + length, tokens); ++i) {
        ids.push_back(static_cast<std::int32_t>(i));
      }
      writer.add_document(ids.data(), ids.size(), -1);
    }
    writer.close();
    reader_ = std::make_unique<TokenShardReader>(path());
  }
  [[nodiscard]] const TokenShardReader& shard() const { return *reader_; }
  [[nodiscard]] DocumentRange all() const { return {0, reader_->documents()}; }

 private:
  [[nodiscard]] std::string path() const { return scratch_ / "ramp.h5"; }
  Scratch scratch_;
  std::unique_ptr<TokenShardReader> reader_;
};

// The first token of sample i, after a check that it is a window.
std::int64_t start_of(const GptDataset& data, std::int64_t sequence, std::int64_t i) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(sequence) + 1, -1);
  data.sample(i, ids.data());
  for (std::size_t k = 1; k < ids.size(); ++k) EXPECT_EQ(ids[k], ids[0] + static_cast<int>(k));
  return ids[0];
}

TEST(GptDataset, EveryWindowOfAnEpochOnce) {
  for (std::int64_t tokens = 5; tokens < 140; tokens += 3) {
    const Ramp ramp(tokens);
    for (const std::int64_t sequence : {1, 2, 3, 4, 16, 64}) {
      if (tokens <= sequence) {
        EXPECT_THROW(GptDataset(ramp.shard(), ramp.all(), sequence, 1), UsageError);
        continue;
      }
      const GptDataset data(ramp.shard(), ramp.all(), sequence, 1);
      const std::int64_t n = data.samples_per_epoch();
      EXPECT_EQ(n, std::max<std::int64_t>(1, (tokens - sequence) / sequence));
      for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
        std::set<std::int64_t> starts;
        for (std::int64_t i = 0; i < n; ++i) {
          starts.insert(start_of(data, sequence, epoch * n + i));
        }
        ASSERT_EQ(starts.size(), static_cast<std::size_t>(n));
        ASSERT_EQ(*starts.rbegin() - *starts.begin(), (n - 1) * sequence);
        ASSERT_LE(*starts.rbegin() + sequence, tokens - 1);
        for (const std::int64_t s : starts) ASSERT_EQ((s - *starts.begin()) % sequence, 0);
      }
    }
  }
}

TEST(GptDataset, OrderDependsOnSeedAndEpochAndNothingElse) {
  const Ramp ramp(2000);
  const auto order = [&](std::uint32_t seed, std::int64_t epoch) {
    const GptDataset data(ramp.shard(), ramp.all(), 8, seed);
    std::vector<std::int64_t> out;
    for (std::int64_t i = 0; i < data.samples_per_epoch(); ++i) {
      out.push_back(start_of(data, 8, epoch * data.samples_per_epoch() + i) / 8);
    }
    return out;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  // No place is preferred: over many epochs the mean window of the first sample is in the middle.
  const GptDataset data(ramp.shard(), ramp.all(), 8, 5);
  const std::int64_t n = data.samples_per_epoch();
  double sum = 0;
  std::map<std::int64_t, int> offsets;
  for (std::int64_t epoch = 0; epoch < 2000; ++epoch) {
    const std::int64_t start = start_of(data, 8, epoch * n);
    sum += static_cast<double>(start / 8);
    ++offsets[start % 8];
  }
  EXPECT_NEAR(sum / 2000, static_cast<double>(n) / 2, 0.05 * static_cast<double>(n));
  EXPECT_EQ(offsets.size(), 8U);
  for (const auto& [offset, count] : offsets) EXPECT_NEAR(count, 250, 80) << offset;
}

TEST(GptDataset, NumbersBeyond32Bits) {
  const Ramp ramp(100);
  const GptDataset data(ramp.shard(), ramp.all(), 4, 3);
  for (const std::int64_t i : {std::int64_t{1} << 31, std::int64_t{1} << 33, std::int64_t{1} << 62,
                               std::numeric_limits<std::int64_t>::max()}) {
    const std::int64_t start = start_of(data, 4, i);
    EXPECT_GE(start, 0);
    EXPECT_LE(start + 4, 99);
  }
  const std::int64_t n = data.samples_per_epoch();
  std::set<std::int64_t> starts;
  const std::int64_t epoch = (std::int64_t{1} << 40) / n;
  for (std::int64_t i = 0; i < n; ++i) starts.insert(start_of(data, 4, epoch * n + i));
  EXPECT_EQ(starts.size(), static_cast<std::size_t>(n));
}

TEST(GptDataset, StaysInsideItsDocuments) {
  const Ramp ramp(140, 7);  // 20 documents
  const GptDataset data(ramp.shard(), {5, 11}, 6, 1);
  for (std::int64_t i = 0; i < 200; ++i) {
    const std::int64_t start = start_of(data, 6, i);
    EXPECT_GE(start, 35);
    EXPECT_LT(start + 6, 77);
  }
  EXPECT_EQ(data.ordered_samples(), 6);  // 42 tokens: 41 targets
  std::vector<std::int32_t> ids(7);
  data.ordered_sample(5, ids.data());
  EXPECT_EQ(ids.front(), 35 + 30);
  EXPECT_EQ(ids.back(), 35 + 36);
  try {
    GptDataset(ramp.shard(), {5, 6}, 7, 1);
    ADD_FAILURE();
  } catch (const UsageError& e) {
    EXPECT_NE(std::string(e.what()).find("hold 7 tokens, fewer than the 7 + 1"), std::string::npos)
        << e.what();
  }
  EXPECT_EQ(GptDataset(ramp.shard(), {5, 6}, 6, 1).samples_per_epoch(), 1);
}

std::vector<std::int64_t> cuts(std::int64_t documents, const std::string& split) {
  std::vector<std::int64_t> out;
  std::int64_t before = 0;
  for (const DocumentRange& r : split_documents(documents, split)) {
    EXPECT_EQ(r.first, before);
    EXPECT_LE(r.first, r.last);
    before = r.last;
    out.push_back(r.last);
  }
  EXPECT_EQ(before, documents);
  return out;
}

// Values from Megatron-LM's get_train_valid_test_split_.
TEST(Split, MegatronsRule) {
  using Cuts = std::vector<std::int64_t>;
  EXPECT_EQ(cuts(1000, "969,30,1"), (Cuts{969, 999, 1000}));
  EXPECT_EQ(cuts(10, "969,30,1"), (Cuts{10, 10, 10}));
  EXPECT_EQ(cuts(1, "969,30,1"), (Cuts{1, 1, 1}));
  EXPECT_EQ(cuts(0, "969,30,1"), (Cuts{0, 0, 0}));
  EXPECT_EQ(cuts(100, "1"), (Cuts{100, 100, 100}));
  EXPECT_EQ(cuts(100, "0,1,0"), (Cuts{0, 100, 100}));
  EXPECT_EQ(cuts(5, "0.5,0.5"), (Cuts{3, 5, 5}));  // 2.5 and 2.5 round to 2: one is missing
  EXPECT_EQ(cuts(7, "0.5,0.5"), (Cuts{3, 7, 7}));  // 3.5 and 3.5 round to 4: one too many
  EXPECT_EQ(cuts(2, "1,1,1"), (Cuts{0, 1, 2}));
  EXPECT_EQ(cuts(3, "0,1,1"), (Cuts{0, 1, 3}));  // there the first cut is -1
  for (std::int64_t documents = 0; documents < 200; ++documents) cuts(documents, "3,2,1");
  for (const char* bad : {"", "a", "1,", ",1", "1,-1", "0,0,0", "1,1,1,1", "nan", "inf", "1e400",
                          "1 ,2", "1;2", "1e308,1e308"}) {
    EXPECT_THROW((void)split_documents(10, bad), UsageError) << bad;
  }
}

TEST(Packing, Golden) {
  const Json golden = parse_json(slurp(data_path("packed.json")), "packed.json");
  const std::int32_t eod = golden["end_of_document"].get<std::int32_t>();
  const auto rows = golden["tokens"].get<std::vector<std::vector<std::int32_t>>>();
  const auto document = golden["document"].get<std::vector<std::vector<std::int32_t>>>();
  const auto position = golden["position"].get<std::vector<std::vector<std::int32_t>>>();
  const auto b = static_cast<std::int64_t>(rows.size());
  const auto s = static_cast<std::int64_t>(rows[0].size()) - 1;
  std::vector<std::int32_t> windows;
  for (const auto& row : rows) windows.insert(windows.end(), row.begin(), row.end());
  std::vector<std::int64_t> samples(static_cast<std::size_t>(b), 40);
  GptBatch batch;
  int ends = 0, later = 0;
  for (int switches = 0; switches < 8; ++switches) {
    const PackingOptions packing{.reset_position_ids = (switches & 1) != 0,
                                 .reset_attention_mask = (switches & 2) != 0,
                                 .eod_mask_loss = (switches & 4) != 0};
    make_gpt_batch(windows.data(), b, s, eod, packing, samples.data(), batch);
    ASSERT_EQ(batch.samples, samples);
    ASSERT_EQ(batch.first_key.empty(), !packing.reset_attention_mask);
    double weights = 0;
    for (std::int64_t r = 0; r < b; ++r) {
      for (std::int64_t i = 0; i < s; ++i) {
        const auto at = static_cast<std::size_t>(r * s + i);
        const auto row = static_cast<std::size_t>(r), col = static_cast<std::size_t>(i);
        ASSERT_EQ(batch.tokens[at], rows[row][col]);
        ASSERT_EQ(batch.labels[at], rows[row][col + 1]);
        ASSERT_EQ(batch.position_ids[at],
                  packing.reset_position_ids ? position[row][col] : static_cast<std::int32_t>(i));
        if (packing.reset_attention_mask) {
          const auto first =
              std::find(document[row].begin(), document[row].end(), document[row][col]);
          ASSERT_EQ(batch.first_key[at], first - document[row].begin());
          later += batch.first_key[at] > 0;
        }
        const bool masked = packing.eod_mask_loss && rows[row][col] == eod;
        ASSERT_EQ(batch.loss_weight[at], masked ? 0.0F : 1.0F);
        ends += masked;
        weights += masked ? 0 : 1;
      }
    }
    EXPECT_EQ(batch.weight_sum(), weights);
  }
  EXPECT_GT(ends, 0);
  EXPECT_GT(later, 0);
}

}  // namespace
}  // namespace mt
