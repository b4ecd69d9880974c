// Greedy continuation with a cache, and the stream of whole characters.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "infer/generate.h"
#include "small_gpt.h"

namespace mt {
namespace {

using testing::SmallGpt;

std::vector<std::int32_t> greedy(GptStage& stage, const std::vector<std::int32_t>& context,
                                 const GenerateSettings& settings, Finish* finish = nullptr) {
  std::vector<std::int32_t> out;
  const Finish reason =
      generate_greedy(stage, context, settings, [&](std::int32_t token) { out.push_back(token); });
  if (finish != nullptr) *finish = reason;
  return out;
}

// The same without a cache: the whole sequence through the model for each token.
std::vector<std::int32_t> without_cache(GptStage& stage, std::vector<std::int32_t> sequence,
                                        int tokens) {
  std::vector<std::int32_t> out;
  for (int i = 0; i < tokens; ++i) {
    const auto length = static_cast<std::int64_t>(sequence.size());
    const Tensor logits =
        stage.all_logits({.batch = 1, .sequence = length, .tokens = sequence.data()});
    const std::int64_t vocabulary = logits.dim(2);
    const float* last = logits.as<float>() + (length - 1) * vocabulary;
    out.push_back(static_cast<std::int32_t>(std::max_element(last, last + vocabulary) - last));
    sequence.push_back(out.back());
  }
  return out;
}

TEST(Generate, cached_tokens_are_those_of_whole_forward_passes) {
  SmallGpt model;
  for (const std::vector<std::int32_t>& prompt :
       {std::vector<std::int32_t>{5}, {1, 2, 3}, {30, 0, 30, 0, 7, 7, 7}}) {
    const int room = 16 - static_cast<int>(prompt.size()) + 1;
    EXPECT_EQ(greedy(model.stage, prompt, {.tokens = room}),
              without_cache(model.stage, prompt, room));
  }
}

TEST(Generate, counts_are_exact_and_a_second_prompt_owes_nothing_to_the_first) {
  SmallGpt model;
  const auto most = greedy(model.stage, {4, 9}, {.tokens = 15});
  ASSERT_EQ(most.size(), 15U);
  for (const std::int64_t n : {0, 1, 2, 14}) {
    const auto found = greedy(model.stage, {4, 9}, {.tokens = n});
    EXPECT_EQ(found, std::vector<std::int32_t>(most.begin(), most.begin() + n));
    static_cast<void>(greedy(model.stage, {8, 8, 8}, {.tokens = 3}));
  }
}

TEST(Generate, stops_before_the_end_token) {
  SmallGpt model;
  const auto free = greedy(model.stage, {4, 9}, {.tokens = 15});
  const std::int32_t stop = free.at(6);
  const auto at = std::find(free.begin(), free.end(), stop);
  Finish finish = Finish::kLength;
  EXPECT_EQ(greedy(model.stage, {4, 9}, {.tokens = 15, .end_token = stop}, &finish),
            std::vector<std::int32_t>(free.begin(), at));
  EXPECT_EQ(finish, Finish::kEndOfText);
}

TEST(Generate, equal_logits_give_the_lowest_id) {
  SmallGpt model;
  model.set_all(0.0F);
  EXPECT_EQ(greedy(model.stage, {9}, {.tokens = 4}), std::vector<std::int32_t>(4, 0));
}

TEST(Generate, a_row_beyond_the_tokenizer_is_never_chosen) {
  SmallGpt model;
  std::int32_t largest = 0;
  for (const std::int32_t token : greedy(model.stage, {4}, {.tokens = 16})) {
    largest = std::max(largest, token);
  }
  ASSERT_GT(largest, 0);
  for (const std::int32_t token : greedy(model.stage, {4}, {.tokens = 16, .allowed = largest})) {
    EXPECT_LT(token, largest);
  }
}

TEST(Generate, positions_are_checked_with_the_arithmetic) {
  SmallGpt model;
  EXPECT_EQ(greedy(model.stage, {1, 2, 3}, {.tokens = 14}).size(), 14U);
  bool begun = false;
  const auto ask = [&](std::vector<std::int32_t> context, std::int64_t tokens) -> std::string {
    try {
      generate_greedy(model.stage, context, {.tokens = tokens},
                      [&](std::int32_t) { begun = true; });
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  const std::string message = ask({1, 2, 3}, 15);
  for (const char* part : {"--num-tokens-to-generate 15", "3 tokens", "14", "16"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  EXPECT_NE(ask({1}, std::numeric_limits<std::int64_t>::max()), "");
  EXPECT_NE(ask({1}, -1), "");
  EXPECT_NE(ask(std::vector<std::int32_t>(17, 1), 0), "");
  EXPECT_FALSE(begun);
  EXPECT_EQ(ask(std::vector<std::int32_t>(16, 1), 1), "");
  EXPECT_TRUE(begun);
}

TEST(Generate, a_logit_that_is_not_finite_is_an_error) {
  SmallGpt model;
  model.embedding()[12 * 20 + 3] = NAN;
  try {
    static_cast<void>(greedy(model.stage, {1}, {.tokens = 2}));
    FAIL() << "went on";
  } catch (const NumericError& error) {
    EXPECT_NE(std::string(error.what()).find("token 20"), std::string::npos) << error.what();
  }
}

TEST(CharacterStream, gives_out_whole_characters) {
  CharacterStream stream;
  EXPECT_EQ(stream.push("a"), "a");
  EXPECT_EQ(stream.push("\xF0\x9F"), "");
  EXPECT_EQ(stream.push("\x98"), "");
  EXPECT_EQ(stream.push("\x80\xC3"), "\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.push("\xA9!"), "\xC3\xA9!");
  EXPECT_EQ(stream.finish(), "");
}

TEST(CharacterStream, loses_no_byte_whatever_comes) {
  const std::string bytes =
      "\x80\xBF x\xE4\xBD\xA0\xE4\xBD \xFF\xF0\x9F\x98\xC3\xA9\xF4\x8F\xBF\xBF\xE0\xF0";
  for (std::size_t step = 1; step <= bytes.size(); ++step) {
    CharacterStream stream;
    std::string out;
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      const std::string piece = stream.push(std::string_view(bytes).substr(at, step));
      out += piece;
      EXPECT_LE(at + step - out.size(), step + 3);
    }
    EXPECT_EQ(stream.finish(), "\xF0") << step;
    EXPECT_EQ(out + "\xF0", bytes) << step;
  }
}

TEST(CharacterStream, an_unfinished_character_comes_at_the_end) {
  CharacterStream stream;
  EXPECT_EQ(stream.push("ab\xE4\xBD"), "ab");
  EXPECT_EQ(stream.finish(), "\xE4\xBD");
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace mt
