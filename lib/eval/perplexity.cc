#include "eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace mt {
namespace {

// The tokens of a source around the present window.
class WindowReader {
 public:
  WindowReader(TokenSource& source, const EvalSettings& settings)
      : source_(source), settings_(settings) {}

  // The next window, or one that counts nothing at the end. Its tokens are at tokens(window).
  EvalWindow next() {
    const std::int64_t start = index_ * settings_.overlapping_eval;
    const std::int64_t wanted = start + settings_.seq_length + 1;
    drop_before(start);
    while (!ended_ && end() < wanted) ended_ = !source_.read_more(held_);
    return eval_window(index_++, end(), settings_);
  }
  [[nodiscard]] const std::int32_t* tokens(const EvalWindow& window) const {
    return held_.data() + (window.start - begin_);
  }

 private:
  [[nodiscard]] std::int64_t end() const {
    return begin_ + static_cast<std::int64_t>(held_.size());
  }
  // Keeps the front of the buffer for a while, so that moving costs little for each token.
  void drop_before(std::int64_t start) {
    const std::int64_t old = std::min(start, end()) - begin_;
    if (old < std::int64_t{1} << 16) return;
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(old));
    begin_ += old;
  }

  TokenSource& source_;
  const EvalSettings& settings_;
  std::vector<std::int32_t> held_;
  std::int64_t begin_ = 0;  // position of held_[0] in the stream
  std::int64_t index_ = 0;
  bool ended_ = false;
};

// Windows of one length that are computed together.
class Batch {
 public:
  Batch(InferenceModel& model, const TokenSource& source, Perplexity& result, const TokenSink& sink)
      : model_(model), source_(source), result_(result), sink_(sink) {}

  [[nodiscard]] bool takes(const EvalWindow& window, std::int64_t most) const {
    return windows_.empty() || (windows_.front().length == window.length &&
                                static_cast<std::int64_t>(windows_.size()) < most);
  }
  void add(const EvalWindow& window, const std::int32_t* tokens) {
    windows_.push_back(window);
    counted_.push_back(window.counted);
    inputs_.insert(inputs_.end(), tokens, tokens + window.length);
    labels_.insert(labels_.end(), tokens + 1, tokens + 1 + window.length);
  }
  // Computes what was added and forgets it.
  void run() {
    if (windows_.empty()) return;
    nll_.resize(labels_.size());
    model_.token_nll({.batch = static_cast<std::int64_t>(windows_.size()),
                      .sequence = windows_.front().length,
                      .tokens = inputs_.data(),
                      .labels = labels_.data()},
                     nll_.data(), counted_.data());
    std::size_t row = 0, at = 0;
    for (const EvalWindow& window : windows_) {
      for (std::int64_t i = window.length - window.counted; i < window.length; ++i) {
        count(window.start + i + 1, labels_[row + static_cast<std::size_t>(i)], nll_[at++]);
      }
      row += static_cast<std::size_t>(window.length);
      ++result_.windows;
    }
    windows_.clear();
    counted_.clear();
    inputs_.clear();
    labels_.clear();
    progress(cat(result_.targets, " tokens evaluated"));
  }

 private:
  void count(std::int64_t position, std::int32_t id, float nll) {
    if (!std::isfinite(nll)) {
      throw NumericError(
          cat(source_.name(), ": the likelihood of token ", position, " is not finite: ", nll));
    }
    result_.nll += static_cast<double>(nll);
    ++result_.targets;
    if (sink_) sink_(position, id, nll);
  }

  InferenceModel& model_;
  const TokenSource& source_;
  Perplexity& result_;
  const TokenSink& sink_;
  std::vector<EvalWindow> windows_;
  std::vector<std::int64_t> counted_;
  std::vector<std::int32_t> inputs_, labels_;
  std::vector<float> nll_;
};

double per_unit(double nll, std::int64_t units) {
  return units > 0 ? nll / static_cast<double>(units) : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

void EvalSettings::check(std::int64_t positions) {
  if (seq_length == 0) seq_length = positions;
  if (seq_length < 1 || seq_length > positions) {
    throw UsageError(cat("--seq-length ", seq_length, ": expected 1 to ", positions,
                         ", the positions of the model"));
  }
  if (overlapping_eval == 0) overlapping_eval = seq_length;
  if (overlapping_eval < 1 || overlapping_eval > seq_length) {
    throw UsageError(cat("--overlapping-eval ", overlapping_eval, ": expected a stride of 1 to ",
                         seq_length, ", the length of a window"));
  }
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 26;
  if (micro_batch_size < 1 || micro_batch_size > kMostTokens / seq_length) {
    throw UsageError(cat("--micro-batch-size ", micro_batch_size, ": expected 1 to ",
                         kMostTokens / seq_length, " windows of ", seq_length, " tokens"));
  }
}

EvalWindow eval_window(std::int64_t i, std::int64_t tokens, const EvalSettings& settings) {
  EvalWindow window{.start = i * settings.overlapping_eval};
  window.length = std::clamp<std::int64_t>(tokens - 1 - window.start, 0, settings.seq_length);
  const std::int64_t before = settings.seq_length - settings.overlapping_eval;
  window.counted = i == 0 ? window.length : std::max<std::int64_t>(0, window.length - before);
  return window;
}

double Perplexity::per_token() const {
  return std::exp(per_unit(nll, targets));
}
double Perplexity::per_word() const {
  return std::exp(per_unit(nll, counts.words));
}
double Perplexity::per_byte() const {
  return std::exp(per_unit(nll, counts.bytes));
}
double Perplexity::bits_per_byte() const {
  return per_unit(nll, counts.bytes) / std::numbers::ln2;
}

Perplexity evaluate_perplexity(InferenceModel& model, TokenSource& source,
                               const EvalSettings& settings, const TokenSink& sink) {
  Perplexity result;
  WindowReader reader(source, settings);
  Batch batch(model, source, result, sink);
  for (EvalWindow window = reader.next(); window.counted > 0; window = reader.next()) {
    if (!batch.takes(window, settings.micro_batch_size)) batch.run();
    batch.add(window, reader.tokens(window));
  }
  batch.run();
  progress("");
  result.counts = source.counts();
  if (result.targets == 0) {
    throw DataError(cat(source.name(), ": ", result.counts.tokens,
                        " tokens, but a perplexity needs two: one to begin with, one to predict"));
  }
  MT_ASSERT(result.targets == result.counts.tokens - 1);
  if (result.counts.replaced > 0) {
    log_warning(cat(source.name(), ": ", result.counts.replaced,
                    " sequences of bytes are not UTF-8 and were read as U+FFFD"));
  }
  return result;
}

}  // namespace mt
