// Likelihoods of continuations: the boundary, what options share, and scores that no company, order
// or batch can change. E09, E10, E12, E13, E16, E17 and E18 of the users' reports.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "base/error.h"
#include "eval/report.h"
#include "eval/scores.h"
#include "shared_data.h"
#include "small_gpt.h"

namespace mt {
namespace {

using testing::Scratch;
using testing::SmallGpt;
using testing::spill;

constexpr std::int64_t kVocab = 261, kPositions = 24;

// The nats of ids[first...] by one plain pass over the sequence alone.
double plain_logprob(GptStage& stage, const std::vector<std::int32_t>& ids, std::int64_t first) {
  const auto inputs = static_cast<std::int64_t>(ids.size()) - 1;
  std::vector<float> nll(static_cast<std::size_t>(inputs));
  stage.token_nll({.batch = 1, .sequence = inputs, .tokens = ids.data(), .labels = ids.data() + 1},
                  nll.data());
  double sum = 0;
  for (std::int64_t i = first - 1; i < inputs; ++i) sum -= nll[static_cast<std::size_t>(i)];
  return sum;
}

std::unique_ptr<Tokenizer> bytes_tokenizer() {
  return make_bpe_tokenizer(testing::byte_level_files({"ab", "xab"}, "#version: 0.2\na b\nx ab\n"),
                            "bytes");
}

struct Result {
  std::vector<ScoreItem> items;
  std::vector<std::vector<OptionScore>> scores;
  std::vector<std::int64_t> cuts;
  ScoreTotals totals;
  std::string error;  // what ended it
};

class Scores : public ::testing::Test {
 protected:
  Result score(const std::string& lines, const ScoreSettings& settings = {}) {
    spill(scratch / "lines", lines);
    Result result;
    try {
      result.totals = evaluate_scores(model.whole, *tokenizer, scratch / "lines", settings,
                                      [&](const ScoreItem& item, const EncodedScore& encoded,
                                          const std::vector<OptionScore>& scores) {
                                        result.items.push_back(item);
                                        result.cuts.push_back(encoded.cut);
                                        result.scores.push_back(scores);
                                      });
    } catch (const DataError& error) {
      result.error = error.what();
    }
    return result;
  }
  OptionScore score_pair(const std::string& context, const std::string& continuation) {
    Json json;
    json["context"] = context;
    json["continuation"] = continuation;
    const Result result = score(json_line(json) + "\n");
    EXPECT_EQ(result.error, "");
    return result.scores.at(0).at(0);
  }
  std::vector<std::int32_t> ids(const std::string& text) {
    std::vector<std::int32_t> out;
    tokenizer->encode(text, out);
    return out;
  }

  Scratch scratch;
  SmallGpt model{kVocab, kPositions};
  std::unique_ptr<Tokenizer> tokenizer = bytes_tokenizer();
};

TEST_F(Scores, of_trees_are_bitwise_those_of_each_sequence_alone) {
  std::mt19937 generator(7);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(generator() % static_cast<unsigned>(high - low + 1));
  };
  for (int round = 0; round < 20; ++round) {
    std::vector<PrefixTree> trees(static_cast<std::size_t>(draw(1, 4)));
    std::vector<std::int32_t> tokens, labels;
    std::vector<float> wanted;
    for (PrefixTree& tree : trees) {
      tree.prefix = draw(0, 12);
      const std::size_t start = tokens.size();
      const auto add = [&](std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) {
          tokens.push_back(static_cast<std::int32_t>(draw(0, kVocab - 1)));
          labels.push_back(static_cast<std::int32_t>(draw(0, kVocab - 1)));
        }
      };
      add(tree.prefix);
      for (std::int64_t branches = draw(1, 4); branches > 0; --branches) {
        const std::int64_t positions = draw(1, kPositions - tree.prefix);
        const std::size_t from = tokens.size();
        tree.branches.push_back({.positions = positions, .counted = draw(0, positions)});
        add(positions);
        const auto sequence = [&](const std::vector<std::int32_t>& all) {
          std::vector<std::int32_t> out(
              all.begin() + static_cast<std::ptrdiff_t>(start),
              all.begin() + static_cast<std::ptrdiff_t>(start) + tree.prefix);
          out.insert(out.end(), all.begin() + static_cast<std::ptrdiff_t>(from), all.end());
          return out;
        };
        const auto inputs = sequence(tokens), targets = sequence(labels);
        std::vector<float> nll(inputs.size());
        model.stage.token_nll({.batch = 1,
                               .sequence = static_cast<std::int64_t>(inputs.size()),
                               .tokens = inputs.data(),
                               .labels = targets.data()},
                              nll.data());
        wanted.insert(wanted.end(), nll.end() - tree.branches.back().counted, nll.end());
      }
    }
    std::vector<float> found(wanted.size());
    model.stage.tree_nll(trees, tokens, labels, found.data(), nullptr);
    EXPECT_EQ(found, wanted) << round;
  }
}

TEST_F(Scores, of_a_two_token_target_are_both_of_its_likelihoods) {  // E12
  const auto whole = ids("question 12");
  const OptionScore found = score_pair("question ", "12");
  // The blank goes to the continuation: " 12" is three bytes, three tokens.
  EXPECT_EQ(found.tokens, 3);
  EXPECT_EQ(found.bytes, 2);
  EXPECT_EQ(found.logprob, plain_logprob(model.stage, whole, 8));
  EXPECT_EQ(score_pair("question", " 12").logprob, found.logprob);
  const OptionScore two = score_pair("question", "12");
  EXPECT_EQ(two.tokens, 2);
  EXPECT_EQ(two.logprob, plain_logprob(model.stage, ids("question12"), 8));
}

TEST_F(Scores, move_all_white_space_at_the_end_of_a_context) {
  for (const std::string blanks : {"  ", "\n", "\t \n", "\xC2\xA0", "\xE3\x80\x80 "}) {
    EXPECT_EQ(score_pair("ask:" + blanks, "yes").logprob,
              score_pair("ask:", blanks + "yes").logprob);
  }
}

TEST_F(Scores, begin_with_one_end_of_text_after_an_empty_context_and_nothing_else) {  // E16
  const std::int32_t end = tokenizer->end_of_document();
  for (const std::string blanks : {"", " ", "\n\n"}) {
    auto whole = ids(blanks + "word");
    whole.insert(whole.begin(), end);
    Json json;
    json["context"] = blanks;
    json["continuation"] = "word";
    const Result result = score(json_line(json));
    EXPECT_EQ(result.scores.at(0).at(0).logprob, plain_logprob(model.stage, whole, 1));
    EXPECT_EQ(result.totals.empty_contexts, 1);
  }
}

TEST_F(Scores, cut_a_merged_text_at_the_length_of_the_contexts_encoding) {
  // "xa" are two tokens, "xab" is one: of xab|c|d, what lies beyond two tokens is the continuation.
  EXPECT_EQ(ids("xabcd").size(), 3U);
  const OptionScore merged = score_pair("xa", "bcd");
  EXPECT_EQ(merged.tokens, 1);
  EXPECT_EQ(merged.logprob, plain_logprob(model.stage, ids("xabcd"), 2));
  // Beside an option that does not merge, not even the first token is shared.
  const Result result =
      score(R"({"context": "xa", "continuations": ["bcd", "zz", "bcde", "zzab"]})");
  EXPECT_EQ(result.scores.at(0).at(0).logprob, merged.logprob);
  EXPECT_EQ(result.scores.at(0).at(1).logprob, plain_logprob(model.stage, ids("xazz"), 2));
  EXPECT_EQ(result.scores.at(0).at(2).logprob, plain_logprob(model.stage, ids("xabcde"), 2));
  EXPECT_EQ(result.scores.at(0).at(3).logprob, plain_logprob(model.stage, ids("xazzab"), 2));
  EXPECT_EQ(result.totals.tokens_computed, 2 + 3 + 3 + 4);
  EXPECT_EQ(result.totals.tokens_needed, 1 + 1 + 2 + 2 + 3);
}

TEST_F(Scores, take_the_prefix_once_and_the_continuations) {
  std::string lines;
  std::int64_t wanted = 0, unshared = 0;
  for (int context = 1; context <= 12; ++context) {
    lines += "{\"context\": \"" + std::string(static_cast<std::size_t>(context), 'c') +
             "\", \"continuations\": [\"1\", \"22\", \"333\", \"4444\", \"22\"]}\n";
    wanted += context - 1 + 1 + 2 + 3 + 4 + 2;
    unshared += 5 * (context - 1) + 12;
  }
  for (const std::int64_t rows : {1, 7, 64, 8192}) {
    const Result result = score(lines, {.rows = rows});
    EXPECT_EQ(result.totals.tokens_computed, wanted) << rows;
    EXPECT_EQ(result.totals.tokens_needed, wanted);
    EXPECT_EQ(result.totals.tokens_unshared, unshared);
    EXPECT_EQ(result.totals.tokens_scored, 12 * 12);
    EXPECT_EQ(result.totals.options, 12 * 5);
  }
}

// Pairs, questions, an empty context and a merge, an id each.
std::vector<std::string> mixed_lines() {
  std::vector<std::string> lines;
  std::mt19937 generator(23);
  const auto text = [&](std::size_t longest) {
    std::string out;
    for (std::size_t n = 1 + generator() % longest; n > 0; --n) out += "abxyz "[generator() % 6];
    return out;
  };
  for (int i = 0; i < 40; ++i) {
    Json json;
    json["id"] = i;
    json["context"] = i % 10 == 3 ? "" : text(14) + "q";
    if (i % 3 == 0) {
      json["continuation"] = "z" + text(7);
    } else {
      for (int n = 1 + i % 5; n > 0; --n) json["continuations"].push_back("z" + text(7));
      json["answer"] = 0;
    }
    lines.push_back(json_line(json) + "\n");
  }
  return lines;
}

TEST_F(Scores, do_not_depend_on_batch_order_or_company) {  // E10, E17
  const auto lines = mixed_lines();
  const auto all = std::accumulate(lines.begin(), lines.end(), std::string());
  const Result first = score(all);
  ASSERT_EQ(first.scores.size(), lines.size());
  const auto same = [](const std::vector<OptionScore>& a, const std::vector<OptionScore>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].logprob, b[i].logprob);  // bit for bit
      EXPECT_EQ(a[i].tokens, b[i].tokens);
      EXPECT_EQ(a[i].is_greedy, b[i].is_greedy);
    }
  };
  for (const ScoreSettings settings : {ScoreSettings{.rows = 1}, ScoreSettings{.rows = 17},
                                       ScoreSettings{.rows = 100}, ScoreSettings{}}) {
    const Result again = score(all, settings);
    ASSERT_EQ(again.scores.size(), lines.size());  // one result a line, in order
    for (std::size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(again.items[i].id, static_cast<int>(i));
      same(again.scores[i], first.scores[i]);
    }
    EXPECT_EQ(again.totals.logprob, first.totals.logprob);
    EXPECT_EQ(again.totals.correct, first.totals.correct);
  }
  const Result backwards =
      score(std::accumulate(lines.rbegin(), lines.rend(), std::string()), {.rows = 50});
  for (std::size_t i = 0; i < lines.size(); ++i) {
    same(backwards.scores[lines.size() - 1 - i], first.scores[i]);
    if (i % 7 == 0) same(score(lines[i]).scores.at(0), first.scores[i]);
  }
  // A question that is too large for one pass: in parts, the prefix in each, and counted.
  const Result parts = score(all, {.rows = 1, .most_rows = 8});
  for (std::size_t i = 0; i < lines.size(); ++i) same(parts.scores[i], first.scores[i]);
  EXPECT_GT(parts.totals.tokens_computed, first.totals.tokens_computed);
  EXPECT_EQ(parts.totals.tokens_needed, first.totals.tokens_needed);
}

TEST_F(Scores, an_option_is_worth_what_its_pair_is) {
  for (const std::string& line : mixed_lines()) {
    const Result question = score(line);
    const ScoreItem& item = question.items.at(0);
    for (std::size_t i = 0; i < item.continuations.size(); ++i) {
      EXPECT_EQ(score_pair(item.context, item.continuations[i]).logprob,
                question.scores.at(0).at(i).logprob);
    }
  }
}

TEST_F(Scores, cut_a_long_context_from_the_left_and_count_it) {  // E09
  const std::string context(30, 'c');
  Json json;
  json["context"] = context;
  json["continuation"] = "1de";
  const Result result = score(json_line(json));
  EXPECT_EQ(result.scores.at(0).at(0).tokens, 3);
  EXPECT_EQ(result.cuts.at(0), 30 + 3 - 1 - kPositions);
  EXPECT_EQ(result.totals.contexts_cut, 1);
  EXPECT_EQ(result.totals.tokens_cut, 8);
  const auto whole = ids(std::string(22, 'c') + "1de");
  EXPECT_EQ(result.scores.at(0).at(0).logprob, plain_logprob(model.stage, whole, 22));
  // Options of a question all see what the longest leaves.
  const Result question =
      score(R"({"context": ")" + context + R"(", "continuations": ["1", "1de"]})");
  EXPECT_EQ(question.scores.at(0).at(1).logprob, result.scores.at(0).at(0).logprob);
  EXPECT_EQ(question.scores.at(0).at(0).logprob,
            plain_logprob(model.stage, ids(std::string(22, 'c') + "1"), 22));
  EXPECT_EQ(question.totals.tokens_computed, 21 + 3 + 1);

  const Result refused = score(json_line(json), {.long_context = LongContext::kRefuse});
  EXPECT_NE(refused.error.find("line 1: a context of 30 tokens"), std::string::npos)
      << refused.error;
  // As many tokens as there are positions still fit, after one of context; one more does not.
  const std::string full(kPositions, '1');
  EXPECT_EQ(score_pair("cc", full).logprob, plain_logprob(model.stage, ids("c" + full), 1));
  const Result over = score(
      "\n"
      R"({"context": "cc", "continuation": "1)" +
      full + "\"}");
  EXPECT_NE(over.error.find("line 2: the continuation has 25 tokens"), std::string::npos)
      << over.error;
}

TEST_F(Scores, report_each_normalisation_under_its_name) {  // E13
  const Result result = score(
      R"({"id": "x", "context": "q:", "continuations": [" \u00e9t\u00e9", " ab", "\u4f60\u597d"], "answer": 1})");
  const Json json =
      parse_json(score_json(result.items.at(0), {.options = {}, .context = 2}, result.scores.at(0)),
                 "score_json");
  EXPECT_EQ(json["id"], "x");
  EXPECT_EQ(json["answer"], 1);
  const std::vector<std::array<std::int64_t, 3>> sizes{{6, 6, 4}, {2, 3, 3}, {6, 6, 2}};
  for (std::size_t i = 0; i < 3; ++i) {
    const Json& option = json["options"][i];
    const double sum = option["logprob"];
    EXPECT_EQ(option["tokens"], sizes[i][0]);
    EXPECT_EQ(option["bytes"], sizes[i][1]);
    EXPECT_EQ(option["characters"], sizes[i][2]);
    EXPECT_EQ(option["logprob_per_token"], sum / static_cast<double>(sizes[i][0]));
    EXPECT_EQ(option["logprob_per_byte"], sum / static_cast<double>(sizes[i][1]));
    EXPECT_EQ(option["logprob_per_character"], sum / static_cast<double>(sizes[i][2]));
  }
  for (const char* by : {"", "_per_token", "_per_byte", "_per_character"}) {
    const std::size_t choice = json[std::string("choice") + by];
    for (const Json& option : json["options"]) {
      const std::string key = std::string("logprob") + by;
      EXPECT_LE(option[key].get<double>(), json["options"][choice][key].get<double>());
    }
  }
}

TEST_F(Scores, of_a_model_of_zeros_are_those_of_chance) {  // E18
  model.set_all(0.0F);
  const auto lines = mixed_lines();
  const Result result = score(std::accumulate(lines.begin(), lines.end(), std::string()));
  for (const auto& scores : result.scores) {
    for (const OptionScore& score : scores) {
      EXPECT_NEAR(score.logprob, -static_cast<double>(score.tokens) * std::log(double{kVocab}),
                  1e-5 * static_cast<double>(score.tokens));
      EXPECT_FALSE(score.is_greedy);  // all logits are equal, and the lowest id is in no text
    }
    EXPECT_EQ(best_option(scores, Normalisation::kToken), 0);  // the first of equals
  }
}

// A model that knows one text by heart: each position's embedding is the code of the next token.
TEST_F(Scores, of_an_oracle_are_zero_for_its_text_and_greedy) {
  const std::string text = "to be or not to be, ab";
  const auto known = ids(text);
  ASSERT_LE(known.size(), static_cast<std::size_t>(kPositions));
  model.set_all(0.0F);
  float *words = nullptr, *positions = nullptr;
  const auto width = static_cast<std::size_t>(model.config.hidden_size);
  for (Parameter* parameter : model.stage.parameters()) {
    float* const values = parameter->value.as<float>();
    if (parameter->segments.front().name == "embedding.word_embeddings.weight") words = values;
    if (parameter->segments.front().name == "embedding.position_embeddings.weight")
      positions = values;
    if (parameter->segments.front().name == "final_layernorm.weight")
      std::fill_n(values, width, 10.0F);
  }
  ASSERT_TRUE(words != nullptr && positions != nullptr);
  // Codes of six ones in twelve places: their mean is the same, any two differ in two places at
  // least.
  std::vector<float> code(width, 0.0F);
  std::fill(code.begin() + 6, code.end(), 1.0F);
  for (std::size_t id = 0; id < static_cast<std::size_t>(kVocab); ++id) {
    for (std::size_t i = 0; i < width; ++i) words[id * width + i] = 2 * code[i] - 1;
    ASSERT_TRUE(std::next_permutation(code.begin(), code.end()));
  }
  for (std::size_t i = 0; i + 1 < known.size(); ++i) {
    const float* const next = words + static_cast<std::size_t>(known[i + 1]) * width;
    for (std::size_t j = 0; j < width; ++j) positions[i * width + j] = 100 * next[j];
  }
  const OptionScore right = score_pair("to be or", " not to be, ab");
  EXPECT_TRUE(right.is_greedy);
  EXPECT_NEAR(right.logprob, 0, 1e-6);
  const OptionScore wrong = score_pair("to be or", " not to be, ac");
  EXPECT_FALSE(wrong.is_greedy);
  EXPECT_LT(wrong.logprob, -10);
  const Result question = score(
      R"({"context": "to be or", "continuations": [" go", " not to", " not ta"], "answer": 1})");
  for (const std::int64_t correct : question.totals.correct) EXPECT_EQ(correct, 1);
}

TEST_F(Scores, of_the_lines_before_a_bad_one_are_out) {
  const std::string good = R"({"context": "c", "continuation": "d", "note": [1]})"
                           "\n";
  const std::vector<std::pair<std::string, std::string>> bad{
      {"{", "byte"},
      {"[1]", "expected an object"},
      {R"({"context": "c"})", "neither"},
      {R"({"continuation": "c"})", "context: missing"},
      {R"({"context": "c", "continuation": "d", "continuations": ["e"]})", "both"},
      {R"({"context": 1, "continuation": "d"})", "expected a string"},
      {R"({"context": "c", "continuation": null})", "expected a string"},
      {R"({"context": "c", "continuations": "d"})", "expected a list"},
      {R"({"context": "c", "continuations": []})", "an empty one"},
      {R"({"context": "c", "continuations": ["d", 2]})", "expected a string"},
      {R"({"context": "c", "continuation": ""})", "is empty"},
      {R"({"context": "c", "continuations": ["d", ""]})", "continuation 1 is empty"},
      {R"({"context": "xa", "continuation": "b"})", "joins the last one"},
      {R"({"context": "c", "continuations": ["d"], "answer": 1})", "answer"},
      {R"({"context": "c", "continuations": ["d"], "answer": -1})", "answer"},
      {R"({"context": "c", "continuations": ["d"], "answer": "d"})", "answer"},
      {R"({"context": "c", "continuation": "d", "answer": 0})", "no options"},
      {R"({"context": "c", "context": "c", "continuation": "d"})", "context"},
      {"{\"context\": \"\xFF\", \"continuation\": \"d\"}", "line 4"}};
  for (const auto& [line, message] : bad) {
    const Result result = score(good + "\n" + good + line + "\n" + good);
    EXPECT_EQ(result.scores.size(), 2U) << line;
    EXPECT_NE(result.error.find("lines: line 4: "), std::string::npos) << result.error;
    EXPECT_NE(result.error.find(message), std::string::npos) << result.error;
  }
  EXPECT_EQ(score("").error, "");
}

TEST_F(Scores, that_are_not_finite_name_their_line) {
  model.embedding()[static_cast<std::int64_t>('z') * 12] = INFINITY;
  std::vector<std::uint64_t> seen;
  spill(scratch / "lines", "{\"context\": \"c\", \"continuation\": \"z\"}\n");
  try {
    static_cast<void>(evaluate_scores(model.whole, *tokenizer, scratch / "lines", {},
                                      [](const auto&...) { FAIL() << "a score went out"; }));
    FAIL() << "no error";
  } catch (const NumericError& error) {
    EXPECT_NE(std::string(error.what()).find("lines: line 1: "), std::string::npos) << error.what();
  }
}

// The peak does not know the length of the file, and lines of any lengths, which make tensors of
// any sizes, let no more pile up than twice the peak and what one batch adds.
TEST_F(Scores, of_many_lines_take_no_more_memory_than_those_of_some) {
  const auto memory = [&](std::size_t lines, std::size_t lengths) {
    std::string text;
    for (std::size_t i = 0; i < lines; ++i) {
      text += "{\"context\": \"" + std::string(1 + i % lengths, 'c') +
              "\", \"continuation\": \"and\"}\n";
    }
    SmallGpt fresh(kVocab, kPositions);
    spill(scratch / "lines", text);
    std::size_t seen = 0;
    static_cast<void>(evaluate_scores(fresh.whole, *tokenizer, scratch / "lines", {.rows = 200},
                                      [&](const auto&...) { ++seen; }));
    EXPECT_EQ(seen, lines);
    return fresh.pool.use();
  };
  EXPECT_EQ(memory(400, 1).peak_total, memory(4000, 1).peak_total);
  const MemoryUse varied = memory(4000, 19);
  EXPECT_LT(varied.system_bytes, 3 * varied.peak_total);
}

}  // namespace
}  // namespace mt
