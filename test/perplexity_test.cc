// Perplexity: Megatron-LM's windows, sums against whole forward passes, texts and shards as
// sources.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "data/token_shard.h"
#include "eval/perplexity.h"
#include "list_source.h"
#include "shared_data.h"
#include "small_gpt.h"

namespace mt {
namespace {

using testing::ListSource;
using testing::Scratch;
using testing::SmallGpt;
using testing::spill;

std::vector<std::int32_t> random_ids(std::size_t count, std::int32_t vocab) {
  std::mt19937 generator(11);
  std::vector<std::int32_t> ids(count);
  for (auto& id : ids) id = static_cast<std::int32_t>(generator() % static_cast<unsigned>(vocab));
  return ids;
}

EvalSettings settings(std::int64_t length, std::int64_t stride, std::int64_t batch = 8) {
  return {.seq_length = length, .overlapping_eval = stride, .micro_batch_size = batch};
}

// The rule as the golden script states it: (start, length, counted) of every window that counts.
std::vector<std::array<std::int64_t, 3>> windows_of_the_script(std::int64_t tokens,
                                                               std::int64_t length,
                                                               std::int64_t stride) {
  std::vector<std::array<std::int64_t, 3>> out;
  const std::int64_t targets = tokens - 1;
  const std::int64_t rest = std::max<std::int64_t>(targets - stride, 0);
  const std::int64_t n = std::max<std::int64_t>((rest + stride - 1) / stride + 1, 1);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t size = std::min(length + 1, tokens - i * stride);
    if (size < 2) continue;
    std::int64_t counted = size - 1;
    if (stride != length && i != 0) {
      counted = std::max<std::int64_t>(0, size - 1 - (length - stride));
    }
    if (counted > 0) out.push_back({i * stride, size - 1, counted});
  }
  return out;
}

TEST(EvalWindows, are_those_of_megatron_and_count_every_target_once) {
  for (std::int64_t length = 1; length <= 9; ++length) {
    for (std::int64_t stride = 1; stride <= length; ++stride) {
      for (std::int64_t tokens = 0; tokens <= 40; ++tokens) {
        std::vector<std::array<std::int64_t, 3>> found;
        std::int64_t next = 1;  // the first token is no target
        for (std::int64_t i = 0;; ++i) {
          const EvalWindow window = eval_window(i, tokens, settings(length, stride));
          if (window.counted == 0) break;
          found.push_back({window.start, window.length, window.counted});
          EXPECT_EQ(window.start + window.length - window.counted + 1, next);
          next += window.counted;
        }
        EXPECT_EQ(next, std::max<std::int64_t>(tokens, 1));
        EXPECT_EQ(found, windows_of_the_script(tokens, length, stride))
            << length << " " << stride << " " << tokens;
      }
    }
  }
}

// The same by whole forward passes and float64.
double reference_nll(GptStage& stage, const std::vector<std::int32_t>& ids, std::int64_t length,
                     std::int64_t stride) {
  double sum = 0;
  const auto tokens = static_cast<std::int64_t>(ids.size());
  for (const auto& [start, size, counted] : windows_of_the_script(tokens, length, stride)) {
    const Tensor logits =
        stage.all_logits({.batch = 1, .sequence = size, .tokens = ids.data() + start});
    const std::int64_t vocab = logits.dim(2);
    for (std::int64_t i = size - counted; i < size; ++i) {
      const float* row = logits.as<float>() + i * vocab;
      double total = 0;
      for (std::int64_t v = 0; v < vocab; ++v) total += std::exp(static_cast<double>(row[v]));
      sum += std::log(total) - row[ids.at(static_cast<std::size_t>(start + i + 1))];
    }
  }
  return sum;
}

TEST(Perplexity, equals_the_sum_over_whole_forward_passes) {
  SmallGpt model;
  for (const std::size_t count : {2U, 3U, 16U, 17U, 18U, 50U, 101U}) {
    const auto ids = random_ids(count, 31);
    for (const auto& [length, stride] : {std::pair{16, 16}, {16, 5}, {7, 7}, {7, 1}, {1, 1}}) {
      ListSource source(ids);
      const auto found =
          evaluate_perplexity(model.whole, source, settings(length, stride), nullptr);
      const double wanted = reference_nll(model.stage, ids, length, stride);
      EXPECT_EQ(found.targets, static_cast<std::int64_t>(count) - 1);
      EXPECT_NEAR(found.nll, wanted, 2e-6 * wanted) << count << " " << length << " " << stride;
    }
  }
}

TEST(Perplexity, of_two_tokens_is_the_second_ones) {
  SmallGpt model;
  const std::vector<std::int32_t> ids{4, 17};
  ListSource source(ids);
  std::vector<std::pair<std::int64_t, std::int32_t>> seen;
  const auto found = evaluate_perplexity(model.whole, source, settings(16, 16),
                                         [&](std::int64_t position, std::int32_t id, float) {
                                           seen.push_back({position, id});
                                         });
  EXPECT_EQ(seen, (std::vector<std::pair<std::int64_t, std::int32_t>>{{1, 17}}));
  EXPECT_NEAR(std::log(found.per_token()), reference_nll(model.stage, ids, 16, 16), 1e-5);
}

TEST(Perplexity, does_not_depend_on_batch_or_pieces) {
  SmallGpt model;
  const auto ids = random_ids(333, 31);
  std::vector<float> first;
  for (const std::int64_t batch : {1, 3, 8, 64}) {
    std::vector<float> all;
    std::int64_t next = 1;
    ListSource source(ids, static_cast<std::size_t>(batch * 7));
    static_cast<void>(evaluate_perplexity(model.whole, source, settings(16, 6, batch),
                                          [&](std::int64_t position, std::int32_t id, float nll) {
                                            EXPECT_EQ(position, next++);
                                            EXPECT_EQ(id,
                                                      ids.at(static_cast<std::size_t>(position)));
                                            all.push_back(nll);
                                          }));
    if (first.empty()) first = all;
    EXPECT_EQ(all, first) << batch;  // bit for bit
  }
}

// A later window's uncounted targets cost no logits: the block of logits shrinks to the counted.
TEST(Perplexity, makes_logits_for_counted_targets_only_with_the_same_bits) {
  constexpr auto kWork = static_cast<std::size_t>(MemoryKind::kWorkspace);
  const auto ids = random_ids(33, 31);
  const std::vector<std::int64_t> counted{3, 0};
  std::vector<float> all(32), some(3);
  std::array<std::int64_t, 2> peak{};
  for (const bool part : {false, true}) {
    SmallGpt model;
    const GptInput input{
        .batch = 2, .sequence = 16, .tokens = ids.data(), .labels = ids.data() + 1};
    if (part) {
      model.stage.token_nll(input, some.data(), counted.data());
    } else {
      model.stage.token_nll(input, all.data());
    }
    peak.at(part ? 1 : 0) = model.pool.use().peak.at(kWork);
  }
  EXPECT_EQ(some, std::vector<float>(all.begin() + 13, all.begin() + 16));
  EXPECT_GE(peak[0] - peak[1], (32 - 3) * 31 * 4 - 64);
}

TEST(Perplexity, of_a_model_of_zeros_is_its_vocabulary) {
  SmallGpt model;
  model.set_all(0.0F);
  ListSource source(random_ids(100, 31));
  const auto found = evaluate_perplexity(model.whole, source, settings(16, 16), nullptr);
  EXPECT_NEAR(found.per_token(), 31, 1e-4);
  EXPECT_NEAR(std::log(found.per_word()), 99 * std::log(31.0) / 3, 1e-3);
  EXPECT_NEAR(found.bits_per_byte(), 99 * std::log2(31.0) / 7, 1e-4);
}

TEST(Perplexity, needs_two_tokens_and_finite_numbers) {
  SmallGpt model;
  for (const std::size_t count : {0U, 1U}) {
    ListSource source(random_ids(count, 31));
    EXPECT_THROW(
        static_cast<void>(evaluate_perplexity(model.whole, source, settings(16, 16), nullptr)),
        DataError);
  }
  model.embedding()[0] = INFINITY;
  ListSource source(random_ids(40, 31));
  EXPECT_THROW(
      static_cast<void>(evaluate_perplexity(model.whole, source, settings(16, 16), nullptr)),
      NumericError);
}

TEST(EvalSettings, are_checked_against_the_model) {
  EvalSettings defaults;
  defaults.check(1024);
  EXPECT_EQ(defaults.seq_length, 1024);
  EXPECT_EQ(defaults.overlapping_eval, 1024);
  for (EvalSettings bad : {settings(17, 1), settings(-1, 1), settings(8, 9), settings(8, -1),
                           settings(8, 8, 0), settings(8, 8, std::int64_t{1} << 40)}) {
    EXPECT_THROW(bad.check(16), UsageError);
  }
}

std::unique_ptr<Tokenizer> gpt2() {
  return make_bpe_tokenizer(testing::gpt2_files(), "GPT-2");
}

std::vector<std::int32_t> all_of(TokenSource& source) {
  std::vector<std::int32_t> ids;
  while (source.read_more(ids)) {
  }
  return ids;
}

// Words, runs of white space, and letters of one to four bytes; or of ASCII's white space only.
enum class Spaces { kAll, kAscii };
std::string mixed_text(std::size_t bytes, Spaces spaces = Spaces::kAll) {
  constexpr std::size_t kOdd = 6;  // white space beyond ASCII, and what is none but looks like it
  const char* pieces[] = {"\xC2\xA0",
                          "\xE3\x80\x80",
                          "\xE2\x80\x83 ",
                          "\xC2\x85",
                          "\x1F ",
                          "\x1C",
                          "word",
                          "don't",
                          "\xC3\xA9t\xC3\xA9",
                          "\xE4\xBD\xA0\xE5\xA5\xBD",
                          "123",
                          "\xF0\x9F\x98\x80",
                          "...",
                          "I'LL",
                          " ",
                          "  ",
                          "\n",
                          "\n\n",
                          "\t",
                          "\r\n"};
  const std::size_t first = spaces == Spaces::kAll ? 0 : kOdd;
  std::mt19937 generator(17);
  std::string text;
  while (text.size() < bytes) {
    text += pieces[first + generator() % (std::size(pieces) - first)];
  }
  return text;
}

TEST(TextSource, cuts_a_long_text_where_its_tokens_do_not_notice) {
  const Scratch scratch;
  const std::string text = mixed_text(3U << 20);
  spill(scratch / "text", text);
  const auto tokenizer = gpt2();
  const auto source = open_text(scratch / "text", *tokenizer);
  std::vector<std::int32_t> whole;
  tokenizer->encode(text, whole);
  EXPECT_EQ(all_of(*source), whole);
  EXPECT_EQ(source->counts().bytes, static_cast<std::int64_t>(text.size()));
  EXPECT_EQ(source->counts().tokens, static_cast<std::int64_t>(whole.size()));
  EXPECT_EQ(source->counts().replaced, 0);
}

TEST(TextSource, cuts_at_any_place_give_the_tokens_of_the_whole_text) {
  // Signs, contractions and what only looks like one, without and with white space, not UTF-8.
  const std::vector<std::string> close{"a",
                                       "'",
                                       "'s",
                                       "'ll",
                                       "'LL",
                                       "1",
                                       ".",
                                       "\xC3\xA9",
                                       "22",
                                       "\xE4\xBD\xA0",
                                       "\xF0\x9F\x98\x80",
                                       "x",
                                       "\xE4\xBD",
                                       "\xFF"};
  std::vector<std::string> wide = close;
  for (const char* space : {" ", "  ", "\n", "\xC2\xA0", "\x1F", "\xE3\x80\x80"}) {
    wide.emplace_back(space);
  }
  const Scratch scratch;
  const auto tokenizer = gpt2();
  std::mt19937 generator(5);
  for (const std::vector<std::string>* pieces : {&std::as_const(close), &std::as_const(wide)}) {
    std::string text;
    while (text.size() < 30000) text += (*pieces)[generator() % pieces->size()];
    spill(scratch / "text", text);
    std::string repaired;
    const std::size_t replaced = replace_invalid_utf8(text, repaired);
    std::vector<std::int32_t> whole;
    tokenizer->encode(repaired, whole);
    for (const std::size_t block : {1U, 2U, 3U, 7U, 64U}) {
      const auto source =
          open_text(scratch / "text", *tokenizer, {.block = block, .longest_piece = 4096});
      EXPECT_EQ(all_of(*source), whole) << block;
      EXPECT_EQ(source->counts().replaced, static_cast<std::int64_t>(replaced));
    }
  }
}

TEST(TextSource, a_run_of_one_kind_over_the_limit_is_refused_and_named) {
  const Scratch scratch;
  const auto tokenizer = gpt2();
  for (const std::string unit : {"a", "7", ".", "\n", "'", "\xE4\xBD\xA0"}) {
    std::string text = "begin 5,";
    while (text.size() < 5000) text += unit;
    spill(scratch / "text", text);
    const auto source =
        open_text(scratch / "text", *tokenizer, {.block = 100, .longest_piece = 4096});
    try {
      static_cast<void>(all_of(*source));
      FAIL() << "not refused: " << unit;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find("scratch"), std::string::npos) << error.what();
    }
  }
}

TEST(TextSource, a_text_of_letters_alone_is_one_piece) {
  const Scratch scratch;
  std::string text;
  for (int i = 0; i < 800000; ++i) text += "\xE4\xBD\xA0";
  spill(scratch / "text", text);
  const auto tokenizer = gpt2();
  const auto source = open_text(scratch / "text", *tokenizer);
  std::vector<std::int32_t> whole;
  tokenizer->encode(text, whole);
  EXPECT_EQ(all_of(*source), whole);
  EXPECT_EQ(source->counts().words, 1);
}

TEST(TextSource, counts_words_as_white_space_separates_them) {
  const Scratch scratch;
  const auto tokenizer = gpt2();
  const auto words = [&](const std::string& text) {
    spill(scratch / "text", text);
    const auto source = open_text(scratch / "text", *tokenizer);
    static_cast<void>(all_of(*source));
    return source->counts().words;
  };
  EXPECT_EQ(words(""), 0);
  EXPECT_EQ(words(" \n\t "), 0);
  EXPECT_EQ(words("a"), 1);
  EXPECT_EQ(words("  two  words\n"), 2);
  EXPECT_EQ(words("three\xC2\xA0\xE3\x80\x80words\xE2\x80\x83here"), 3);
  const std::string text = mixed_text(2U << 20, Spaces::kAscii);
  std::istringstream stream(text);
  std::int64_t wanted = 0;
  for (std::string word; stream >> word;) ++wanted;
  EXPECT_EQ(words(text), wanted);
}

TEST(TextSource, bytes_that_are_not_utf8_are_counted_and_read_as_u_fffd) {
  const Scratch scratch;
  spill(scratch / "text", "a\xFF\xFE b\xE4\xBD c");
  const auto tokenizer = gpt2();
  const auto source = open_text(scratch / "text", *tokenizer);
  const auto ids = all_of(*source);
  EXPECT_EQ(tokenizer->decode(ids.data(), ids.size()), "a\xEF\xBF\xBD\xEF\xBF\xBD b\xEF\xBF\xBD c");
  EXPECT_EQ(source->counts().replaced, 3);
  EXPECT_EQ(source->counts().bytes, 9);
  EXPECT_EQ(source->counts().words, 3);
}

TEST(TextSource, what_is_plainly_no_text_is_refused) {
  const Scratch scratch;
  const auto tokenizer = gpt2();
  for (const char* magic : {"\x28\xB5\x2F\xFDxx", "\x1F\x8Bxx", "\x89HDF\r\n\x1A\nxx"}) {
    spill(scratch / "text", magic);
    const auto source = open_text(scratch / "text", *tokenizer);
    std::vector<std::int32_t> ids;
    EXPECT_THROW(source->read_more(ids), DataError);
  }
  EXPECT_THROW(open_text(scratch / "absent", *tokenizer), EnvironmentError);
}

TEST(ShardSource, gives_the_tokens_and_the_counts_of_the_text_alone) {
  const Scratch scratch;
  const auto tokenizer = gpt2();
  std::vector<std::int32_t> wanted;
  std::int64_t bytes = 0;
  {
    TokenShardWriter writer({.path = scratch / "s.h5", .replace = false, .options = {}},
                            *tokenizer);
    for (const std::string text : {"Hello there", "", "world \xE4\xBD\xA0", " x y "}) {
      std::vector<std::int32_t> ids;
      tokenizer->encode(text, ids);
      ids.push_back(tokenizer->end_of_document());
      writer.add_document(ids.data(), ids.size(), -1);
      wanted.insert(wanted.end(), ids.begin(), ids.end());
      bytes += static_cast<std::int64_t>(text.size());
    }
    writer.close();
  }
  for (const Tokenizer* known :
       {static_cast<const Tokenizer*>(tokenizer.get()), static_cast<const Tokenizer*>(nullptr)}) {
    const auto source = open_shard(scratch / "s.h5", known, 50257);
    EXPECT_EQ(all_of(*source), wanted);
    EXPECT_EQ(source->counts().bytes, bytes);
    EXPECT_EQ(source->counts().words, 6);
    EXPECT_EQ(source->counts().tokens, static_cast<std::int64_t>(wanted.size()));
  }
  EXPECT_THROW(open_shard(scratch / "s.h5", nullptr, 50256), DataError);
  const auto other = make_bpe_tokenizer(testing::byte_level_files(), "bytes");
  try {
    static_cast<void>(open_shard(scratch / "s.h5", other.get(), 257));
    FAIL() << "another tokenizer was taken";
  } catch (const DataError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(to_hex(other->digest())), std::string::npos) << message;
    EXPECT_NE(message.find(to_hex(tokenizer->digest())), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace mt
