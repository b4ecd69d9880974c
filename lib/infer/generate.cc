#include "infer/generate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace mt {
namespace {

// The most likely of the first n ids, the lowest of equals.
std::int32_t most_likely(const float* logits, std::int64_t n, std::int64_t position) {
  std::int64_t best = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(logits[i])) {
      throw NumericError(
          cat("the logit of token ", i, " at position ", position, " is not finite: ", logits[i]));
    }
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<std::int32_t>(best);
}

// How many bytes the character that `lead` begins has; 1 for what begins none.
std::size_t character_bytes(unsigned char lead) {
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 1;
}

// Bytes at the end of text that are the beginning of a character and no more.
std::size_t unfinished(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0U) != 0x80U) return character_bytes(byte) > back ? back : 0;
  }
  return 0;
}

}  // namespace

void check_positions(const ModelConfig& config, std::int64_t context, std::int64_t tokens) {
  const std::int64_t positions = config.max_position_embeddings;
  if (tokens < 0) {
    throw UsageError(cat("--num-tokens-to-generate ", tokens, ": expected 0 or more"));
  }
  // Subtractions only: tokens may be any number.
  if (context > positions || (tokens > 0 && tokens - 1 > positions - context)) {
    throw UsageError(
        cat("--num-tokens-to-generate ", tokens, ": a prompt of ", context,
            " tokens leaves room for ", std::max<std::int64_t>(0, positions - context + 1),
            " more in the model's ", positions, " positions (the last token needs none)"));
  }
}

Finish generate_greedy(GptStage& stage, const std::vector<std::int32_t>& context,
                       const GenerateSettings& settings,
                       const std::function<void(std::int32_t)>& on_token) {
  MT_ASSERT(!context.empty());
  const auto length = static_cast<std::int64_t>(context.size());
  check_positions(stage.config(), length, settings.tokens);
  if (settings.tokens == 0) return Finish::kLength;

  const std::int64_t vocabulary = stage.config().vocab_size;
  const std::int64_t allowed =
      settings.allowed > 0 ? std::min(settings.allowed, vocabulary) : vocabulary;
  const auto cache = stage.make_cache(1, length + settings.tokens - 1);
  std::int32_t token = -1;
  GptInput input{.batch = 1, .sequence = length, .tokens = context.data()};
  for (std::int64_t made = 0; made < settings.tokens; ++made) {
    const Tensor logits = stage.next_logits(input, *cache);
    token = most_likely(logits.as<float>(), allowed, length + made - 1);
    if (token == settings.end_token) return Finish::kEndOfText;
    on_token(token);
    input = {.batch = 1, .sequence = 1, .tokens = &token};
  }
  return Finish::kLength;
}

std::string CharacterStream::push(std::string_view bytes) {
  std::string out = std::exchange(held_, {});
  out += bytes;
  const std::size_t keep = unfinished(out);
  held_ = out.substr(out.size() - keep);
  out.resize(out.size() - keep);
  return out;
}

std::string CharacterStream::finish() {
  return std::exchange(held_, {});
}

}  // namespace mt
