// All continuations of prompts, in the order in which they come.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "infer/generate.h"

namespace mt::testing {

inline Request request(std::vector<std::int32_t> context, std::int64_t tokens,
                       const SamplingOptions& sampling = {.greedy = true}) {
  Request made;
  made.context = std::move(context);
  made.options.num_tokens_to_generate = tokens;
  made.options.sampling = sampling;
  return made;
}

// Token i is the letter 'A' + i.
inline std::vector<Continuation> continuations(InferenceModel& model,
                                               const std::vector<Request>& requests,
                                               GeneratorSettings settings = {}) {
  settings.decode = [](std::int32_t token) { return std::string{static_cast<char>('A' + token)}; };
  settings.log_probabilities = true;
  Generator generator(model, settings);
  std::vector<Continuation> out;
  std::string streamed;
  std::size_t at = 0;
  const auto next = [&]() -> std::optional<Request> {
    if (at == requests.size()) return std::nullopt;
    Request made = requests[at];
    made.index = static_cast<std::int64_t>(at++);
    return made;
  };
  generator.run(next, {.begin = [&](const Continuation&) { streamed.clear(); },
                       .more =
                           [&](std::string_view piece) {
                             EXPECT_FALSE(piece.empty());
                             streamed += piece;
                           },
                       .end =
                           [&](const Continuation& text) {
                             EXPECT_EQ(streamed, text.text);
                             EXPECT_EQ(text.tokens.size(), text.log_probabilities.size());
                             out.push_back(text);
                           }});
  return out;
}

inline std::vector<Continuation> continuations(GptStage& stage,
                                               const std::vector<Request>& requests,
                                               GeneratorSettings settings = {}) {
  WholeModel whole(stage);
  return continuations(whole, requests, std::move(settings));
}

}  // namespace mt::testing
