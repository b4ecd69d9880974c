// Continuation with a cache: against whole forward passes, alone and beside others, with slots that
// are refilled and windows that slide.
#include "infer/generate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "continuations.h"
#include "small_gpt.h"

namespace mt {
namespace {

using testing::continuations;
using testing::request;
using testing::SmallGpt;

// Token i is the letter 'A' + i.
std::string letter(std::int32_t token) {
  return {static_cast<char>('A' + token)};
}

std::vector<std::int32_t> greedy(InferenceModel& model, const std::vector<std::int32_t>& context,
                                 std::int64_t tokens, GeneratorSettings settings = {}) {
  return continuations(model, {request(context, tokens)}, std::move(settings)).at(0).tokens;
}

// The same without a cache: the whole window through the model for each token.
std::vector<std::int32_t> without_cache(GptStage& stage, std::vector<std::int32_t> sequence,
                                        int tokens) {
  std::vector<std::int32_t> out;
  const std::int64_t positions = stage.config().max_position_embeddings;
  for (int i = 0; i < tokens; ++i) {
    const std::int64_t start = window_start(static_cast<std::int64_t>(sequence.size()), positions);
    const std::int64_t length = static_cast<std::int64_t>(sequence.size()) - start;
    const Tensor logits =
        stage.all_logits({.batch = 1, .sequence = length, .tokens = sequence.data() + start});
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
    EXPECT_EQ(greedy(model.whole, prompt, room), without_cache(model.stage, prompt, room));
  }
}

// G10, G12.
TEST(Generate, counts_are_exact_and_a_second_prompt_owes_nothing_to_the_first) {
  SmallGpt model;
  const auto most = greedy(model.whole, {4, 9}, 15);
  ASSERT_EQ(most.size(), 15U);
  for (const std::int64_t n : {0, 1, 2, 14}) {
    const auto found = continuations(model.whole, {request({8, 8, 8}, 3), request({4, 9}, n)});
    EXPECT_EQ(found.at(1).tokens, std::vector<std::int32_t>(most.begin(), most.begin() + n));
    EXPECT_EQ(found.at(1).finish, Finish::kLength);
  }
}

// G09: nothing after the end in its text, and the batch goes on for the others.
TEST(Generate, stops_before_the_end_token) {
  SmallGpt model;
  const auto free = greedy(model.whole, {4, 9}, 15);
  const std::int32_t stop = free.at(6);
  const auto at = std::find(free.begin(), free.end(), stop);
  const auto found =
      continuations(model.whole, {request({4, 9}, 15), request({1}, 9), request({4, 9}, 2)},
                    {.slots = 2, .end_token = stop});
  EXPECT_EQ(found.at(0).tokens, std::vector<std::int32_t>(free.begin(), at));
  EXPECT_EQ(found.at(0).finish, Finish::kEndOfText);
  EXPECT_EQ(found.at(1).tokens, greedy(model.whole, {1}, 9, {.end_token = stop}));
}

TEST(Generate, a_stop_text_ends_it_across_tokens) {
  SmallGpt model;
  const Continuation free = continuations(model.whole, {request({4, 9}, 15)}).at(0);
  ASSERT_EQ(free.text.size(), 15U);
  Request asked = request({4, 9}, 15);
  asked.options.stop = {"zz", free.text.substr(6, 3)};
  const std::size_t at = free.text.find(free.text.substr(6, 3));
  const Continuation found = continuations(model.whole, {asked}).at(0);
  EXPECT_EQ(found.text, free.text.substr(0, at));
  EXPECT_EQ(found.finish, Finish::kStop);
  EXPECT_EQ(found.tokens.size(), at + 3);
  // What was held back comes at the end if it did not become a stop.
  asked.options.stop = {free.text.substr(12) + "\n"};
  EXPECT_EQ(continuations(model.whole, {asked}).at(0).text, free.text);
}

TEST(Generate, equal_logits_give_the_lowest_id) {
  SmallGpt model;
  model.set_all(0.0F);
  EXPECT_EQ(greedy(model.whole, {9}, 4), std::vector<std::int32_t>(4, 0));
}

// G01: neither chosen nor in the sum of the log-probabilities.
TEST(Generate, a_row_beyond_the_tokenizer_is_never_chosen) {
  SmallGpt model;
  std::int32_t largest = 0;
  for (const std::int32_t token : greedy(model.whole, {4}, 16)) largest = std::max(largest, token);
  ASSERT_GT(largest, 0);
  const SamplingOptions hot{.temperature = 5};
  for (const SamplingOptions& sampling : {SamplingOptions{.greedy = true}, hot}) {
    for (const Continuation& text :
         continuations(model.whole, {request({4}, 16, sampling)}, {.allowed = largest})) {
      for (const std::int32_t token : text.tokens) EXPECT_LT(token, largest);
    }
  }
  const Continuation only = continuations(model.whole, {request({4}, 9)}, {.allowed = 1}).at(0);
  EXPECT_EQ(only.log_probabilities, std::vector<double>(9, 0.0));
}

std::string refused(InferenceModel& model, const Request& asked, bool* begun) {
  try {
    *begun = !continuations(model, {asked}).at(0).tokens.empty();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Generate, positions_are_checked_with_the_arithmetic) {
  SmallGpt model;
  EXPECT_EQ(greedy(model.whole, {1, 2, 3}, 14).size(), 14U);
  bool begun = false;
  const std::string message = refused(model.whole, request({1, 2, 3}, 15), &begun);
  for (const char* part : {"--num-tokens-to-generate 15", "3 tokens", "14", "16"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  EXPECT_NE(refused(model.whole, request({1}, huge), &begun), "");
  EXPECT_NE(refused(model.whole, request(std::vector<std::int32_t>(17, 1), 0), &begun), "");
  EXPECT_FALSE(begun);
  EXPECT_EQ(refused(model.whole, request(std::vector<std::int32_t>(16, 1), 1), &begun), "");
  EXPECT_TRUE(begun);
}

TEST(Generate, a_prompt_that_fails_comes_after_all_before_it) {
  SmallGpt model;
  for (const std::int64_t slots : {1, 3}) {
    Generator generator(model.whole, {.slots = slots, .decode = letter});
    int given = 0, ended = 0;
    const auto next = [&]() -> std::optional<Request> {
      if (given == 5) throw DataError("line 6");
      return request({given++}, 7);
    };
    EXPECT_THROW(generator.run(next, {.begin = [](const Continuation&) {},
                                      .more = [](std::string_view) {},
                                      .end = [&](const Continuation&) { ++ended; }}),
                 DataError);
    EXPECT_EQ(ended, 5);
  }
}

TEST(Generate, a_logit_that_is_not_finite_is_an_error) {
  SmallGpt model;
  model.embedding()[12 * 20 + 3] = NAN;
  try {
    static_cast<void>(greedy(model.whole, {1}, 2));
    FAIL() << "went on";
  } catch (const NumericError& error) {
    EXPECT_NE(std::string(error.what()).find("token 20"), std::string::npos) << error.what();
  }
}

std::vector<Request> mixed_requests(std::int64_t longest) {
  std::vector<Request> requests;
  for (int i = 0; i < 17; ++i) {
    std::vector<std::int32_t> context;
    for (int j = 0; j <= i * 5 % 11; ++j) context.push_back((i * 7 + j * j) % 31);
    Request made = request(std::move(context), (i * 3) % longest);
    made.options.sampling = {.greedy = i % 3 == 0,
                             .temperature = 0.5 + 0.25 * i,
                             .top_k = i % 4 == 1 ? 5 : 0,
                             .top_p = i % 5 == 2 ? 0.8 : 0,
                             .repetition_penalty = i % 2 == 0 ? 1.0 : 1.3,
                             .seed = i};
    made.options.num_samples = 1 + i % 4;
    if (i % 6 == 5) made.options.stop = {"B", "QA"};
    requests.push_back(std::move(made));
  }
  return requests;
}

void expect_equal(const std::vector<Continuation>& found,
                  const std::vector<Continuation>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].request->index, expected[i].request->index);
    EXPECT_EQ(found[i].sample, expected[i].sample);
    EXPECT_EQ(found[i].tokens, expected[i].tokens) << i;
    EXPECT_EQ(found[i].text, expected[i].text) << i;
    EXPECT_EQ(found[i].log_probabilities, expected[i].log_probabilities) << i;
    EXPECT_EQ(found[i].finish, expected[i].finish) << i;
  }
}

TEST(Generate, ragged_batches_of_any_size_give_the_texts_of_one_by_one) {
  SmallGpt model;
  const auto requests = mixed_requests(6);
  const auto one = continuations(model.whole, requests, {.slots = 1, .end_token = 3});
  std::size_t texts = 0;
  for (const Request& asked : requests)
    texts += static_cast<std::size_t>(asked.options.num_samples);
  ASSERT_EQ(one.size(), texts);
  for (const std::int64_t slots : {2, 3, 8, 100}) {
    expect_equal(continuations(model.whole, requests, {.slots = slots, .end_token = 3}), one);
  }
}

TEST(Generate, samples_differ_and_do_not_know_the_line) {
  SmallGpt model;
  Request asked = request({5, 6}, 12, {});
  asked.options.num_samples = 3;
  const auto found = continuations(model.whole, {request({1}, 2), asked, asked}, {.slots = 4});
  ASSERT_EQ(found.size(), 7U);
  EXPECT_NE(found[1].tokens, found[2].tokens);
  EXPECT_NE(found[2].tokens, found[3].tokens);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(found[i].tokens, found[i + 3].tokens);
}

TEST(Generate, a_window_begins_at_the_smallest_multiple_of_half_the_positions) {
  EXPECT_EQ(window_start(16, 16), 0);
  EXPECT_EQ(window_start(17, 16), 8);
  EXPECT_EQ(window_start(24, 16), 8);
  EXPECT_EQ(window_start(25, 16), 16);
  EXPECT_EQ(window_start(7, 5), 2);
  EXPECT_EQ(window_start(8, 5), 4);
  EXPECT_EQ(window_start(9, 1), 8);
}

TEST(Generate, a_sliding_text_is_that_of_whole_windows_in_any_batch) {
  for (const std::int64_t positions : {1, 2, 5, 16}) {
    SmallGpt model(31, positions);
    const GeneratorSettings sliding{.slots = 1, .sliding = true};
    EXPECT_EQ(greedy(model.whole, {1, 2, 3}, 45, sliding),
              without_cache(model.stage, {1, 2, 3}, 45));
    const std::vector<std::int32_t> longer(21, 4);
    EXPECT_EQ(greedy(model.whole, longer, 9, sliding), without_cache(model.stage, longer, 9));
    const auto requests = mixed_requests(50);
    const auto one = continuations(model.whole, requests, sliding);
    for (const std::int64_t slots : {2, 7}) {
      expect_equal(continuations(model.whole, requests, {.slots = slots, .sliding = true}), one);
    }
  }
}

// A text in front that takes long does not let the others pile up without end.
TEST(Generate, reads_the_input_no_further_than_it_can_hold) {
  SmallGpt model;
  Generator generator(model.whole, {.slots = 2, .sliding = true, .decode = letter});
  int given = 0, ended = 0, most = 0;
  const auto next = [&]() -> std::optional<Request> {
    if (given == 1000) return std::nullopt;
    most = std::max(most, ++given - ended);
    return request({5}, given == 1 ? 700 : 1);
  };
  generator.run(next, {.begin = [](const Continuation&) {},
                       .more = [](std::string_view) {},
                       .end = [&](const Continuation&) { ++ended; }});
  EXPECT_EQ(ended, 1000);
  EXPECT_LE(most, 2 * 64 + 1);
}

// What a line of requests may say, and what it is told when it says something else.
TEST(Request, a_line_has_options_of_its_own) {
  RequestOptions defaults;
  defaults.sampling.greedy = true;
  defaults.num_samples = 2;
  const Request asked = request_from_json(
      R"({"prompt": "a", "id": [1], "top_k": 3, "seed": 9, "stop": "x", "num_tokens_to_generate": 5})",
      "f:1", defaults);
  EXPECT_EQ(asked.prompt, "a");
  EXPECT_EQ(json_line(asked.id), "[1]");
  EXPECT_FALSE(asked.options.sampling.greedy);
  EXPECT_EQ(asked.options.sampling.top_k, 3);
  EXPECT_EQ(asked.options.sampling.seed, 9);
  EXPECT_EQ(asked.options.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(asked.options.num_tokens_to_generate, 5);
  EXPECT_EQ(asked.options.num_samples, 2);
}

TEST(Request, a_bad_line_is_refused_with_place_and_key) {
  for (const auto& [line, part] : std::vector<std::pair<std::string, std::string>>{
           {R"({"prompt": "a", "topk": 1})", "topk"},
           {R"({"prompt": 7})", "prompt"},
           {R"({})", "prompt"},
           {R"([])", "object"},
           {R"({"prompt": "a")", "f:12"},
           {R"({"prompt": "a", "stop": 3})", "stop"},
           {R"({"prompt": "a", "stop": ["x", 3]})", "stop"},
           {R"({"prompt": "a", "stop": [""]})", "stop"},
           {R"({"prompt": "a", "temperature": 0})", "temperature"},
           {R"({"prompt": "a", "temperature": "1"})", "temperature"},
           {R"({"prompt": "a", "top_k": 1.5})", "top_k"},
           {R"({"prompt": "a", "num_samples": 0})", "num-samples"},
           {R"({"prompt": "a", "greedy": true, "top_p": 0.5})", "top_p"},
           {R"({"prompt": "a", "greedy": 1})", "greedy"}}) {
    try {
      static_cast<void>(request_from_json(line, "f:12", {}));
      ADD_FAILURE() << "taken: " << line;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("f:12"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace mt
