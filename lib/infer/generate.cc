#include "infer/generate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace mt {
namespace {

// Texts that wait behind a longer one, for each slot.
constexpr std::size_t kWaiting = 64;

void check_finite(const float* logits, std::int64_t n, std::int64_t position) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(logits[i])) {
      throw NumericError(
          cat("the logit of token ", i, " at position ", position, " is not finite: ", logits[i]));
    }
  }
}

}  // namespace

void check_positions(const ModelConfig& config, std::int64_t context, std::int64_t tokens) {
  const std::int64_t positions = config.max_position_embeddings;
  // Subtractions only: tokens may be any number.
  if (context > positions || (tokens > 0 && tokens - 1 > positions - context)) {
    throw UsageError(
        cat("--num-tokens-to-generate ", tokens, ": a prompt of ", context,
            " tokens leaves room for ", std::max<std::int64_t>(0, positions - context + 1),
            " more in the model's ", positions, " positions (the last token needs none)"));
  }
}

std::int64_t window_start(std::int64_t length, std::int64_t positions) {
  const std::int64_t step = std::max<std::int64_t>(1, positions / 2);
  const std::int64_t over = std::max<std::int64_t>(0, length - positions);
  return (over + step - 1) / step * step;
}

Json json_of(const Continuation& text) {
  const auto name = [](Finish finish) {
    switch (finish) {
      case Finish::kLength:
        return "length";
      case Finish::kEndOfText:
        return "end-of-text";
      case Finish::kStop:
        return "stop";
    }
    return "";
  };
  Json line;
  line["index"] = text.request->index;
  if (!text.request->id.is_null()) line["id"] = text.request->id;
  line["sample"] = text.sample;
  line["prompt"] = text.request->prompt;
  line["text"] = text.text;
  line["tokens"] = text.tokens;
  line["log_probabilities"] = text.log_probabilities;
  line["finish_reason"] = name(text.finish);
  return line;
}

// A place in the batch and the text that is being made in it.
struct Generator::Slot {
  std::int64_t number = 0;     // in the cache
  Running* running = nullptr;  // null: free
  std::shared_ptr<const Request> request;
  std::vector<std::int32_t> all;  // context and what was made
  std::int64_t start = 0;         // of the window in `all`
  StopText stops{{}};
  CharacterStream characters;
};

Generator::Generator(InferenceModel& model, GeneratorSettings settings)
    : model_(model),
      settings_(std::move(settings)),
      positions_(model.config().max_position_embeddings) {
  MT_ASSERT(settings_.slots > 0 && settings_.decode != nullptr);
  const std::int64_t vocabulary = model.config().vocab_size;
  settings_.allowed = settings_.allowed > 0 ? std::min(settings_.allowed, vocabulary) : vocabulary;
  cache_ =
      model.open_cache(settings_.slots, settings_.capacity > 0 ? settings_.capacity : positions_);
  for (std::int64_t i = 0; i < settings_.slots; ++i) {
    slots_.push_back(std::make_unique<Slot>());
    slots_.back()->number = i;
  }
}

Generator::~Generator() = default;

void Generator::run(const Source& next, const Sink& sink) {
  for (;;) {
    while (start_next(next)) give_out(sink);
    step();
    give_out(sink);
    if (order_.empty() && !more_ && request_ == nullptr) break;
  }
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

// Takes the next prompt for request_; none is left there at the end of the input.
void Generator::fetch(const Source& next) {
  next_sample_ = 0;
  request_ = nullptr;
  if (!more_) return;
  try {
    std::optional<Request> request = next();
    more_ = request.has_value();
    if (!more_) return;
    MT_ASSERT(!request->context.empty());
    const auto length = static_cast<std::int64_t>(request->context.size());
    if (!settings_.sliding) {
      check_positions(model_.config(), length, request->options.num_tokens_to_generate);
    }
    request_ = std::make_shared<const Request>(std::move(*request));
  } catch (...) {
    more_ = false;
    failure_ = std::current_exception();
  }
}

// Starts one text. False when there is no room, or nothing to start.
bool Generator::start_next(const Source& next) {
  const auto free = std::find_if(slots_.begin(), slots_.end(),
                                 [](const auto& slot) { return slot->running == nullptr; });
  if (free == slots_.end() || order_.size() >= kWaiting * slots_.size()) return false;
  if (request_ == nullptr) fetch(next);
  if (request_ == nullptr) return false;
  Slot& slot = **free;
  order_.push_back(std::make_unique<Running>());
  slot.running = order_.back().get();
  slot.request = request_;
  slot.running->text.request = request_;
  slot.running->text.sample = next_sample_++;
  if (next_sample_ == request_->options.num_samples) request_ = nullptr;
  slot.all = slot.request->context;
  slot.start = 0;
  slot.stops = StopText(slot.request->options.stop);
  slot.characters = {};
  if (slot.request->options.num_tokens_to_generate == 0) {
    end(slot, Finish::kLength);
  } else {
    read_prompt(slot.number);
  }
  return true;
}

// A slot whose beginning is the same prompt, read already.
Generator::Slot* Generator::twin_of(const Slot& slot) {
  for (const auto& other : slots_) {
    if (other.get() != &slot && other->running != nullptr && other->request == slot.request &&
        other->start == 0) {
      return other.get();
    }
  }
  return nullptr;
}

void Generator::read_prompt(std::int64_t number) {
  Slot& slot = *slots_[static_cast<std::size_t>(number)];
  const auto length = static_cast<std::int64_t>(slot.all.size());
  if (const Slot* twin = twin_of(slot); twin != nullptr && length <= positions_) {
    // The last token of the prompt is read with the next step of all slots.
    cache_->fork(twin->number, number, length - 1);
    return;
  }
  read_window(number);
}

// Reads the window of a slot from its beginning.
void Generator::read_window(std::int64_t number) {
  Slot& slot = *slots_[static_cast<std::size_t>(number)];
  const auto length = static_cast<std::int64_t>(slot.all.size());
  slot.start = window_start(length, positions_);
  cache_->truncate(number, 0);
  const float* const logits = cache_->next_logits(
      {.batch = 1, .sequence = length - slot.start, .tokens = slot.all.data() + slot.start},
      {number});
  accept(number, logits);
}

void Generator::step() {
  decode_together();
  // The windows that are full.
  for (const auto& slot : slots_) {
    if (slot->running == nullptr) continue;
    const auto length = static_cast<std::int64_t>(slot->all.size());
    if (window_start(length, positions_) != slot->start) read_window(slot->number);
  }
}

// One token for every slot whose window stands.
void Generator::decode_together() {
  together_.clear();
  tokens_.clear();
  for (const auto& slot : slots_) {
    if (slot->running == nullptr) continue;
    const auto length = static_cast<std::int64_t>(slot->all.size());
    if (window_start(length, positions_) != slot->start) continue;
    together_.push_back(slot->number);
    tokens_.push_back(slot->all.back());
  }
  if (together_.empty()) return;
  const auto count = static_cast<std::int64_t>(together_.size());
  const float* const logits =
      cache_->next_logits({.batch = count, .sequence = 1, .tokens = tokens_.data()}, together_);
  const std::int64_t vocabulary = model_.config().vocab_size;
  for (std::int64_t i = 0; i < count; ++i) {
    accept(together_[static_cast<std::size_t>(i)], logits + i * vocabulary);
  }
}

// Chooses the next token of a slot.
void Generator::accept(std::int64_t number, const float* logits) {
  Slot& slot = *slots_[static_cast<std::size_t>(number)];
  const auto length = static_cast<std::int64_t>(slot.all.size());
  check_finite(logits, settings_.allowed, length - 1);
  Continuation& text = slot.running->text;
  const RequestOptions& options = slot.request->options;
  const std::int32_t token =
      sampler_.next(logits, settings_.allowed, slot.all, options.sampling,
                    static_cast<std::uint64_t>(text.sample), static_cast<std::uint64_t>(length));
  if (token == settings_.end_token) return end(slot, Finish::kEndOfText);
  if (settings_.log_probabilities) {
    text.log_probabilities.push_back(log_probability(logits, settings_.allowed, token));
  }
  slot.all.push_back(token);
  text.tokens.push_back(token);
  std::string bytes;
  const bool stopped = slot.stops.push(settings_.decode(token), bytes);
  text.text += slot.characters.push(bytes);
  if (stopped) return end(slot, Finish::kStop);
  if (static_cast<std::int64_t>(text.tokens.size()) == options.num_tokens_to_generate) {
    end(slot, Finish::kLength);
  }
}

void Generator::end(Slot& slot, Finish finish) {
  Continuation& text = slot.running->text;
  if (finish != Finish::kStop) text.text += slot.characters.push(slot.stops.finish());
  text.text += slot.characters.finish();
  text.finish = finish;
  slot.running->done = true;
  slot.running = nullptr;
  slot.request = nullptr;
}

void Generator::give_out(const Sink& sink) {
  while (!order_.empty()) {
    Running& first = *order_.front();
    if (!first.begun) sink.begin(first.text);
    first.begun = true;
    if (const std::size_t size = first.text.text.size(); size > first.given) {
      sink.more(std::string_view(first.text.text).substr(first.given));
      first.given = size;
    }
    if (!first.done) return;
    sink.end(first.text);
    order_.pop_front();
  }
}

}  // namespace mt
