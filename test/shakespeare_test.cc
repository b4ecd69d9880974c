// A trained GPT-2 through the real commands: imported by mt-reshard, scored by mt-eval and
// continued by mt-generate, against PyTorch's float64 (data/hf/shakespeare.json).
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "base/json.h"
#include "shared_data.h"

namespace mt {
namespace {

using testing::data_path;

// The bytes that a command writes to stdout; fails the test unless it ends with status 0.
std::string output(const std::string& command) {
  FILE* const pipe = ::popen(command.c_str(), "r");
  std::string out;
  std::array<char, 4096> buffer{};
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    out.append(buffer.data(), got);
  }
  EXPECT_EQ(::pclose(pipe), 0) << command;
  return out;
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

class Shakespeare : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch = std::make_unique<testing::Scratch>();
    output(std::string(MT_BIN) + "/mt-reshard " + quoted(data_path("hf/gpt-shakespeare")) + " " +
           quoted(*scratch / "ckpt"));
  }
  static void TearDownTestSuite() { scratch.reset(); }

  // The last line of mt-eval --json.
  static Json evaluate(const std::string& options) {
    const std::string out =
        output(std::string(MT_BIN) + "/mt-eval --json --load " + quoted(*scratch / "ckpt") +
               " --valid-data " + quoted(data_path("hf/shakespeare-valid.txt")) + " " + options);
    return parse_json(out, "mt-eval");
  }
  static std::string generate(const std::string& prompt, const std::string& options) {
    return output(std::string(MT_BIN) + "/mt-generate --greedy --load " +
                  quoted(*scratch / "ckpt") + " --prompt=" + quoted(prompt) + " " + options);
  }

  static std::unique_ptr<testing::Scratch> scratch;
  const Json golden = parse_json(testing::slurp(data_path("hf/shakespeare.json")), "golden");
};

std::unique_ptr<testing::Scratch> Shakespeare::scratch;

void expect_relative(const Json& found, double wanted, double tolerance, const char* what) {
  ASSERT_TRUE(found.is_number()) << what;
  EXPECT_NEAR(found.get<double>() / wanted, 1.0, tolerance) << what;
}

TEST_F(Shakespeare, perplexities_of_three_strides_are_pytorchs) {
  ASSERT_EQ(golden["perplexity"].size(), 3U);
  for (const Json& wanted : golden["perplexity"]) {
    const Json found = evaluate("--seq-length 128 --overlapping-eval " +
                                std::to_string(wanted["stride"].get<int>()));
    SCOPED_TRACE(wanted["stride"].get<int>());
    EXPECT_EQ(found["stride"], wanted["stride"]);
    EXPECT_EQ(found["tokens"], golden["valid_tokens"]);
    EXPECT_EQ(found["targets"], wanted["tokens"]);
    EXPECT_EQ(found["words"], golden["valid_words"]);
    EXPECT_EQ(found["bytes"], golden["valid_bytes"]);
    EXPECT_EQ(found["replaced"], 0);
    expect_relative(found["perplexity_per_token"], wanted["per_token"], 1e-5, "token");
    expect_relative(found["bits_per_byte"], wanted["bits_per_byte"], 1e-5, "byte");
    // exp(nll / words): the exponent is 9.4, so an error of the sum weighs 9.4 times.
    expect_relative(found["perplexity_per_word"], wanted["per_word"], 1e-5, "word");
    std::printf("stride %d: perplexity %.9f, PyTorch %.9f\n", wanted["stride"].get<int>(),
                found["perplexity_per_token"].get<double>(), wanted["per_token"].get<double>());
  }
}

TEST_F(Shakespeare, the_first_512_likelihoods_are_pytorchs) {
  static_cast<void>(evaluate("--token-nll " + quoted(*scratch / "nll.jsonl")));
  const auto lines = testing::lines_of(*scratch / "nll.jsonl");
  ASSERT_EQ(lines.size(), golden["valid_tokens"].get<std::size_t>() - 1);
  double worst = 0;
  for (std::size_t i = 0; i < 512; ++i) {
    const Json line = parse_json(lines[i], "nll.jsonl");
    EXPECT_EQ(line["position"], i + 1);
    const double wanted = golden["first_512_nll"][i];
    worst = std::max(worst, std::fabs(line["nll"].get<double>() - wanted));
  }
  EXPECT_LT(worst, 1e-4);
  std::printf("largest difference of a likelihood: %.3g nats\n", worst);
}

TEST_F(Shakespeare, scores_of_24_continuations_are_pytorchs) {
  const std::size_t count = golden["scores"].size();
  ASSERT_EQ(count, 24U);
  std::string pairs, questions;
  for (std::size_t i = 0; i < count; ++i) {
    const Json& wanted = golden["scores"][i];
    pairs += wanted.dump() + "\n";  // its other keys are ignored
    Json question;
    question["context"] = wanted["context"];
    for (std::size_t j = 0; j < 4; ++j) {
      question["continuations"].push_back(golden["scores"][(i + j) % count]["continuation"]);
    }
    questions += question.dump() + "\n";
  }
  testing::spill(*scratch / "pairs.jsonl", pairs);
  testing::spill(*scratch / "questions.jsonl", questions);
  const std::string command =
      std::string(MT_BIN) + "/mt-eval --quiet --load " + quoted(*scratch / "ckpt") + " --scores ";
  const std::string found = output(command + quoted(*scratch / "pairs.jsonl"));
  std::istringstream lines(found);
  std::istringstream options(output(command + quoted(*scratch / "questions.jsonl")));
  double worst = 0;
  std::string line, option;
  for (const Json& wanted : golden["scores"]) {
    ASSERT_TRUE(std::getline(lines, line) && std::getline(options, option));
    const Json score = parse_json(line, "pairs"), question = parse_json(option, "questions");
    EXPECT_EQ(score["tokens"], wanted["continuation_ids"].size());
    EXPECT_EQ(score["context_tokens"], wanted["context_ids"].size());
    EXPECT_EQ(score["is_greedy"], wanted["is_greedy"]);
    EXPECT_EQ(question["options"][0]["logprob"], score["logprob"]);  // bit for bit
    worst = std::max(worst,
                     std::fabs(score["logprob"].get<double>() - wanted["logprob"].get<double>()));
  }
  EXPECT_FALSE(std::getline(lines, line));
  EXPECT_LT(worst, 1e-4);
  std::printf("largest difference of a score: %.3g nats\n", worst);
  EXPECT_EQ(
      output("MT_CPU=baseline " + command + quoted(*scratch / "pairs.jsonl") + " --threads 2"),
      found);
}

TEST_F(Shakespeare, six_greedy_texts_are_pytorchs) {
  ASSERT_EQ(golden["greedy"].size(), 6U);
  for (const Json& wanted : golden["greedy"]) {
    const std::string prompt = wanted["prompt"];
    EXPECT_EQ(generate(prompt, "--num-tokens-to-generate 64"),
              prompt + wanted["text"].get<std::string>() + "\n");
  }
}

TEST_F(Shakespeare, shorter_texts_are_beginnings_of_longer_ones) {
  const std::string longest = generate("ROMEO:", "--num-tokens-to-generate 64");
  EXPECT_EQ(generate("ROMEO:", "--num-tokens-to-generate 0"), "ROMEO:\n");
  std::string last = "ROMEO:";
  for (const int n : {1, 2, 17}) {
    std::string text = generate("ROMEO:", "--num-tokens-to-generate " + std::to_string(n));
    ASSERT_EQ(text.back(), '\n');
    text.pop_back();
    EXPECT_GT(text.size(), last.size());
    EXPECT_EQ(text, longest.substr(0, text.size()));
    last = text;
  }
}

TEST_F(Shakespeare, threads_and_kernel_sets_give_the_same_bytes) {
  const std::string text = testing::slurp(data_path("hf/shakespeare-valid.txt")).substr(0, 4000);
  testing::spill(*scratch / "short.txt", text);
  const std::string command = std::string(MT_BIN) + "/mt-eval --json --token-nll - --load " +
                              quoted(*scratch / "ckpt") + " --valid-data " +
                              quoted(*scratch / "short.txt");
  const std::string first = output(command + " --threads 1");
  EXPECT_GT(first.size(), 50000U);
  EXPECT_EQ(output(command + " --threads 2"), first);
  EXPECT_EQ(output("MT_CPU=baseline " + command + " --threads 2"), first);
  EXPECT_EQ(output(command + " --micro-batch-size 3"), first);
}

}  // namespace
}  // namespace mt
