#include "eval/scores.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "io/line_reader.h"

namespace mt {
namespace {

constexpr std::uint64_t kLineLimit = std::uint64_t{64} << 20;

struct Line {
  ScoreItem item;
  EncodedScore encoded;
  std::vector<OptionScore> scores;
};

std::string place(const LineReader& reader) {
  return cat(printable(reader.name()), ": line ", reader.line_number());
}

// Sequences of several lines that are computed together.
class TreeBatch {
 public:
  TreeBatch(InferenceModel& model, ScoreTotals& totals) : model_(model), totals_(totals) {}

  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(tokens_.size()); }

  // Starts a tree for the line, which stays where it is until run().
  void begin(Line& line) {
    const auto& tokens = line.encoded.options.front().tokens;
    const std::int64_t shared = line.encoded.shared;
    trees_.push_back({.prefix = shared, .branches = {}});
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.begin() + shared);
    labels_.resize(tokens_.size());
  }
  // Appends an option of the line to the tree that was begun last.
  void add(Line& line, const EncodedScore::Option& option) {
    const std::int64_t shared = line.encoded.shared, scored = line.encoded.scored(option);
    const auto& tokens = option.tokens;
    trees_.back().branches.push_back(
        {.positions = static_cast<std::int64_t>(tokens.size()) - 1 - shared, .counted = scored});
    tokens_.insert(tokens_.end(), tokens.begin() + shared, tokens.end() - 1);
    labels_.insert(labels_.end(), tokens.begin() + shared + 1, tokens.end());
    asked_.push_back({&line, &option});
    counted_ += scored;
  }
  // Computes what was added and forgets it.
  void run() {
    if (asked_.empty()) return;
    nll_.resize(static_cast<std::size_t>(counted_));
    greedy_.resize(nll_.size());
    model_.tree_nll(trees_, tokens_, labels_, nll_.data(), greedy_.data());
    totals_.tokens_computed += rows();
    std::size_t at = 0;
    for (const auto& [line, option] : asked_) {
      OptionScore score{.tokens = line->encoded.scored(*option),
                        .bytes = option->bytes,
                        .characters = option->characters};
      for (std::int64_t i = 0; i < score.tokens; ++i, ++at) {
        score.logprob -= static_cast<double>(nll_[at]);
        score.is_greedy = score.is_greedy && greedy_[at] != 0;
      }
      line->scores.push_back(score);
    }
    trees_.clear();
    tokens_.clear();
    labels_.clear();
    asked_.clear();
    counted_ = 0;
  }

 private:
  struct Asked {
    Line* line;
    const EncodedScore::Option* option;
  };
  InferenceModel& model_;
  ScoreTotals& totals_;
  std::vector<PrefixTree> trees_;
  std::vector<std::int32_t> tokens_, labels_;
  std::vector<Asked> asked_;
  std::int64_t counted_ = 0;
  std::vector<float> nll_;
  std::vector<std::uint8_t> greedy_;
};

// Lines that wait to be computed, and their results in order.
class Window {
 public:
  Window(InferenceModel& model, const std::string& name, const ScoreSettings& settings,
         const ScoreSink& sink)
      : name_(name), settings_(settings), sink_(sink), batch_(model, totals_) {}

  void add(ScoreItem&& item, EncodedScore&& encoded) {
    std::int64_t rows = encoded.shared;
    for (const auto& option : encoded.options) rows += own_rows(encoded, option);
    if (batch_.rows() + rows > settings_.rows) flush();
    lines_.push_back({std::move(item), std::move(encoded), {}});
    Line& line = lines_.back();
    batch_.begin(line);
    for (const auto& option : line.encoded.options) {
      if (batch_.rows() > line.encoded.shared &&
          batch_.rows() + own_rows(line.encoded, option) > most_rows()) {
        batch_.run();
        batch_.begin(line);
      }
      batch_.add(line, option);
    }
  }
  void flush() {
    batch_.run();
    for (Line& line : lines_) {
      MT_ASSERT(line.scores.size() == line.encoded.options.size());
      count(line);
      sink_(line.item, line.encoded, line.scores);
    }
    lines_.clear();
    progress(cat(totals_.pairs + totals_.questions, " lines scored"));
  }
  [[nodiscard]] const ScoreTotals& totals() const { return totals_; }

 private:
  static std::int64_t own_rows(const EncodedScore& encoded, const EncodedScore::Option& option) {
    return static_cast<std::int64_t>(option.tokens.size()) - 1 - encoded.shared;
  }
  [[nodiscard]] std::int64_t most_rows() const {
    return std::max(settings_.rows, settings_.most_rows);
  }
  void count(const Line& line) {
    const EncodedScore& encoded = line.encoded;
    ++(line.item.question ? totals_.questions : totals_.pairs);
    totals_.contexts_cut += encoded.cut > 0 ? 1 : 0;
    totals_.tokens_cut += encoded.cut;
    totals_.empty_contexts += encoded.empty_context ? 1 : 0;
    totals_.tokens_needed += encoded.context - 1;
    for (std::size_t i = 0; i < line.scores.size(); ++i) {
      const OptionScore& score = line.scores[i];
      if (!std::isfinite(score.logprob)) {
        throw NumericError(cat(name_, ": line ", line.item.line, ": the likelihood of ",
                               line.item.question ? cat("continuation ", i) : "the continuation",
                               " is not finite: ", score.logprob));
      }
      ++totals_.options;
      totals_.greedy += score.is_greedy ? 1 : 0;
      totals_.tokens_scored += score.tokens;
      totals_.tokens_needed += score.tokens;
      totals_.tokens_unshared += static_cast<std::int64_t>(encoded.options[i].tokens.size()) - 1;
      totals_.logprob += score.logprob;
    }
    if (!line.item.answer) return;
    ++totals_.answered;
    for (std::size_t by = 0; by < kNormalisations; ++by) {
      const bool right =
          best_option(line.scores, static_cast<Normalisation>(by)) == *line.item.answer;
      totals_.correct.at(by) += right ? 1 : 0;
    }
  }

  const std::string& name_;
  const ScoreSettings& settings_;
  const ScoreSink& sink_;
  ScoreTotals totals_;
  std::deque<Line> lines_;
  TreeBatch batch_;
};

}  // namespace

double normalised(const OptionScore& score, Normalisation by) {
  switch (by) {
    case Normalisation::kNone:
      return score.logprob;
    case Normalisation::kToken:
      return score.logprob / static_cast<double>(score.tokens);
    case Normalisation::kByte:
      return score.logprob / static_cast<double>(score.bytes);
    case Normalisation::kCharacter:
      break;
  }
  return score.logprob / static_cast<double>(score.characters);
}

std::int64_t best_option(const std::vector<OptionScore>& options, Normalisation by) {
  const auto less = [by](const OptionScore& a, const OptionScore& b) {
    return normalised(a, by) < normalised(b, by);
  };
  return std::max_element(options.begin(), options.end(), less) - options.begin();
}

ScoreTotals evaluate_scores(InferenceModel& model, Tokenizer& tokenizer, const std::string& path,
                            const ScoreSettings& settings, const ScoreSink& sink) {
  LineReader reader(path, kLineLimit);
  const std::string name = printable(reader.name());
  Window window(model, name, settings, sink);
  const std::int64_t positions = model.config().max_position_embeddings;
  // A line that cannot be taken ends the run, but what came before goes out first.
  std::exception_ptr failure;
  const auto next = [&](ScoreItem& item, EncodedScore& encoded) {
    try {
      for (std::string_view text; reader.next(text);) {
        const std::string where = place(reader);
        if (!parse_score_line(text, where, item)) continue;
        item.line = reader.line_number();
        encoded = encode_score(item, tokenizer, positions, settings.long_context, where);
        return true;
      }
    } catch (const Error&) {
      failure = std::current_exception();
    }
    return false;
  };
  for (ScoreItem item;; item = {}) {
    EncodedScore encoded;
    if (!next(item, encoded)) break;
    window.add(std::move(item), std::move(encoded));
  }
  window.flush();
  progress("");
  if (failure) std::rethrow_exception(failure);
  return window.totals();
}

}  // namespace mt
