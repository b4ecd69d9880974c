// Continuation of a prompt, token by token, with a key/value cache. Greedy: the most likely token,
// the lowest id of equals, so that a text is a function of model and prompt alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model/gpt.h"

namespace mt {

struct GenerateSettings {
  std::int64_t tokens = 0;      // at most so many
  std::int32_t end_token = -1;  // stops there, without giving it out; -1: none
  std::int64_t allowed = 0;     // ids below it may be chosen; 0: all of the model's
};

// Throws UsageError with the arithmetic if a context of `context` tokens and `tokens` more need
// more positions than the model has. The last token is not read back and needs none.
void check_positions(const ModelConfig& config, std::int64_t context, std::int64_t tokens);

// Why a text ended.
enum class Finish { kLength, kEndOfText };

// Calls on_token for each new token as soon as it is known. `context` must hold at least one token.
// Throws as check_positions does, before anything is computed, and NumericError when a logit is
// not finite. Calls of one stage are independent: each has a cache of its own.
Finish generate_greedy(GptStage& stage, const std::vector<std::int32_t>& context,
                       const GenerateSettings& settings,
                       const std::function<void(std::int32_t)>& on_token);

// Cuts a stream of bytes between UTF-8 characters: a character that comes in several tokens leaves
// in one piece. Bytes that are not UTF-8 pass at once.
class CharacterStream {
 public:
  // The bytes that may go out now.
  [[nodiscard]] std::string push(std::string_view bytes);
  // What is left at the end of the stream, an unfinished character as it stands.
  [[nodiscard]] std::string finish();

 private:
  std::string held_;  // the beginning of a character, at most 3 bytes
};

}  // namespace mt
