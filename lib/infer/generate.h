// Continuation of prompts, token by token, with a key/value cache: several sequences of different
// lengths at once, and a sequence that ended makes room for the next prompt at once, so that inputs
// of any length stream through bounded memory. A text is a function of model, prompt, options and
// its number among the prompt's samples: not of what else is computed beside it, nor of threads or
// kernels.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "infer/request.h"
#include "infer/sampling.h"
#include "infer/text_stream.h"
#include "model/inference_model.h"

namespace mt {

// Throws UsageError with the arithmetic if a context of `context` tokens and `tokens` more need
// more positions than the model has. The last token is not read back and needs none.
void check_positions(const ModelConfig& config, std::int64_t context, std::int64_t tokens);

// Where the window of a text of `length` tokens begins: the smallest multiple of half the positions
// (rounded down, at least 1) that leaves no more tokens than there are positions. So the window
// moves once in positions / 2 tokens, and what it shows is read anew then, from position 0.
[[nodiscard]] std::int64_t window_start(std::int64_t length, std::int64_t positions);

// Why a text ended.
enum class Finish : std::uint8_t { kLength, kEndOfText, kStop };

struct Continuation {
  std::shared_ptr<const Request> request;
  std::int64_t sample = 0;           // 0 ... num_samples - 1
  std::string text;                  // without the prompt and without a stop text; any bytes
  std::vector<std::int32_t> tokens;  // all that were made; the end-of-text token is none of them
  std::vector<double> log_probabilities;  // of tokens under the model, before any setting
  Finish finish = Finish::kLength;
};

// {"index", "id" if there is one, "sample", "prompt", "text", "tokens", "log_probabilities",
// "finish_reason": "length", "end-of-text" or "stop"}.
[[nodiscard]] Json json_of(const Continuation& text);

struct GeneratorSettings {
  std::int64_t slots = 1;          // sequences at once
  std::int64_t capacity = 0;       // positions of the cache; 0: the model's
  bool sliding = false;            // else texts that do not fit the positions are refused
  bool log_probabilities = false;  // whether they are wanted
  std::int32_t end_token = -1;     // ends a text; -1: none
  std::int64_t allowed = 0;        // ids below it may be chosen; 0: all of the model's
  std::function<std::string(std::int32_t)> decode = nullptr;  // a token's bytes
};

class Generator {
 public:
  // The next prompt, or none at the end.
  using Source = std::function<std::optional<Request>()>;
  struct Sink {
    // The text is the next one in order; nothing of it was given out.
    std::function<void(const Continuation&)> begin;
    // More of it as it comes, in whole characters.
    std::function<void(std::string_view)> more;
    // It is complete.
    std::function<void(const Continuation&)> end;
  };

  // The model must outlive the generator.
  Generator(InferenceModel& model, GeneratorSettings settings);
  ~Generator();

  // Continues all prompts; texts come in the order of prompts, then of samples. A source that
  // throws ends the input: what came before is completed, then the exception goes on. So it is with
  // a prompt that does not fit (check_positions). Throws NumericError when a logit is not finite.
  void run(const Source& next, const Sink& sink);

 private:
  struct Slot;

  bool start_next(const Source& next);
  void fetch(const Source& next);
  void read_prompt(std::int64_t slot);
  void step();
  void decode_together();
  void read_window(std::int64_t slot);
  void accept(std::int64_t slot, const float* logits);
  void end(Slot& slot, Finish finish);
  void give_out(const Sink& sink);
  [[nodiscard]] Slot* twin_of(const Slot& slot);

  InferenceModel& model_;
  GeneratorSettings settings_;
  std::int64_t positions_;
  std::unique_ptr<InferenceCache> cache_;
  std::vector<std::unique_ptr<Slot>> slots_;
  Sampler sampler_;

  std::shared_ptr<const Request> request_;  // whose samples are being started
  std::int64_t next_sample_ = 0;
  bool more_ = true;
  std::exception_ptr failure_;

  struct Running {
    Continuation text;
    bool done = false, begun = false;
    std::size_t given = 0;  // bytes of the text
  };
  std::deque<std::unique_ptr<Running>> order_;  // started and not yet given out whole

  std::vector<std::int64_t> together_;  // slots of a step
  std::vector<std::int32_t> tokens_;    // and the token that each reads
};

}  // namespace mt
