#include "eval/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "base/error.h"
#include "base/log.h"

namespace mt {
namespace {

std::string cell(double value) {
  if (std::isnan(value)) return "-";
  TextStream out;
  out << std::setprecision(6) << value;
  return out.str();
}

// Characters, as far as bytes of UTF-8 tell.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

std::size_t widest(const std::vector<std::string>& names, const char* heading) {
  std::size_t width = width_of(heading);
  for (const std::string& name : names) width = std::max(width, width_of(printable(name)));
  return width;
}

std::string padded(const std::string& text, std::size_t width) {
  return text + std::string(width - std::min(width, width_of(text)), ' ');
}

Json label_json(const ModelLabel& model, const std::string& data) {
  Json json = Json::object();
  json["data"] = data;
  json["model"] = model.directory;
  json["iteration"] = model.iteration;
  json["tokenizer"] = model.tokenizer.empty() ? Json(nullptr) : Json(model.tokenizer);
  json["precision"] = model.precision;
  return json;
}

constexpr std::array<const char*, kNormalisations> kSuffixes{"", "_per_token", "_per_byte",
                                                             "_per_character"};

Json option_json(const OptionScore& score) {
  Json json = Json::object();
  for (std::size_t by = 0; by < kNormalisations; ++by) {
    json[cat("logprob", kSuffixes.at(by))] = normalised(score, static_cast<Normalisation>(by));
  }
  json["tokens"] = score.tokens;
  json["bytes"] = score.bytes;
  json["characters"] = score.characters;
  json["is_greedy"] = score.is_greedy;
  return json;
}

}  // namespace

std::string perplexity_json(const ModelLabel& model, const std::string& data,
                            const EvalSettings& settings, const Perplexity& result) {
  Json json = label_json(model, data);
  json["seq_length"] = settings.seq_length;
  json["stride"] = settings.overlapping_eval;
  json["windows"] = result.windows;
  json["tokens"] = result.counts.tokens;
  json["targets"] = result.targets;
  json["words"] = result.counts.words;
  json["bytes"] = result.counts.bytes;
  json["replaced"] = result.counts.replaced;
  json["nll"] = result.nll;
  json["nll_per_token"] = result.nll / static_cast<double>(result.targets);
  json["perplexity_per_token"] = finite_or_null(result.per_token());
  json["perplexity_per_word"] = finite_or_null(result.per_word());
  json["perplexity_per_byte"] = finite_or_null(result.per_byte());
  json["bits_per_byte"] = finite_or_null(result.bits_per_byte());
  return json_line(json);
}

std::string perplexity_block(const ModelLabel& model, const std::string& data,
                             const EvalSettings& settings, const Perplexity& result) {
  TextStream out;
  out << "data " << data << "\nmodel " << printable(model.directory) << ", iteration "
      << model.iteration << (model.precision == "fp32" ? "" : ", weights in " + model.precision)
      << "\ntokenizer " << (model.tokenizer.empty() ? "unknown" : model.tokenizer) << '\n';
  out << "window " << settings.seq_length << " tokens, stride " << settings.overlapping_eval << ": "
      << result.windows << " windows\n";
  const auto line = [&](const char* unit, const std::string& count, const std::string& nats,
                        const std::string& perplexity) {
    out << std::left << std::setw(6) << unit << std::right << std::setw(14) << count
        << std::setw(14) << nats << std::setw(14) << perplexity << '\n';
  };
  const auto row = [&](const char* unit, std::int64_t count, double perplexity) {
    line(unit, cat(count), cell(count > 0 ? result.nll / static_cast<double>(count) : std::nan("")),
         cell(perplexity));
  };
  line("", "count", "nats each", "perplexity");
  row("token", result.targets, result.per_token());
  row("word", result.counts.words, result.per_word());
  row("byte", result.counts.bytes, result.per_byte());
  out << "bits per byte " << cell(result.bits_per_byte()) << '\n';
  return out.str();
}

ResultLines::ResultLines(const std::vector<std::string>& models,
                         const std::vector<std::string>& data)
    : model_width_(widest(models, "model")), data_width_(widest(data, "data")) {}

std::string ResultLines::heading() const {
  return cat(
      padded("model", model_width_), "  iteration  ", padded("data", data_width_),
      "      tokens       words       bytes   ppl/token    ppl/word    ppl/byte   bits/byte\n");
}

std::string ResultLines::line(const std::string& model, std::int64_t iteration,
                              const std::string& data, const Perplexity& result) const {
  TextStream out;
  out << padded(printable(model), model_width_) << std::setw(11) << iteration << "  "
      << padded(printable(data), data_width_);
  for (const std::int64_t count :
       {result.counts.tokens, result.counts.words, result.counts.bytes}) {
    out << std::setw(12) << count;
  }
  for (const double value :
       {result.per_token(), result.per_word(), result.per_byte(), result.bits_per_byte()}) {
    out << std::setw(12) << cell(value);
  }
  out << '\n';
  return out.str();
}

std::string score_json(const ScoreItem& item, const EncodedScore& encoded,
                       const std::vector<OptionScore>& scores) {
  Json json = Json::object();
  json["line"] = item.line;
  if (!item.id.is_null()) json["id"] = item.id;
  if (!item.question) {
    json.update(option_json(scores.front()));
  } else {
    for (std::size_t by = 0; by < kNormalisations; ++by) {
      json[cat("choice", kSuffixes.at(by))] = best_option(scores, static_cast<Normalisation>(by));
    }
    if (item.answer) json["answer"] = *item.answer;
    Json& options = json["options"] = Json::array();
    for (const OptionScore& score : scores) options.push_back(option_json(score));
  }
  json["context_tokens"] = encoded.context;
  json["cut"] = encoded.cut;
  return json_line(json);
}

std::string totals_json(const ModelLabel& model, const std::string& data,
                        const ScoreTotals& totals) {
  Json json = label_json(model, data);
  json["pairs"] = totals.pairs;
  json["questions"] = totals.questions;
  json["scores"] = totals.options;
  json["greedy"] = totals.greedy;
  json["logprob"] = totals.logprob;
  json["tokens_scored"] = totals.tokens_scored;
  json["contexts_cut"] = totals.contexts_cut;
  json["tokens_cut"] = totals.tokens_cut;
  json["empty_contexts"] = totals.empty_contexts;
  json["answered"] = totals.answered;
  for (std::size_t by = 0; by < kNormalisations; ++by) {
    const auto answered = static_cast<double>(totals.answered);
    json[cat("accuracy", kSuffixes.at(by))] =
        finite_or_null(static_cast<double>(totals.correct.at(by)) / answered);
  }
  json["tokens_computed"] = totals.tokens_computed;
  json["tokens_needed"] = totals.tokens_needed;
  json["tokens_unshared"] = totals.tokens_unshared;
  return json_line({{"totals", json}});
}

std::string totals_text(const ScoreTotals& totals) {
  TextStream out;
  out << std::setprecision(6) << totals.options << " scores of " << totals.pairs << " pairs and "
      << totals.questions << " questions, " << totals.greedy << " greedy, " << totals.tokens_scored
      << " tokens, " << totals.logprob << " nats";
  if (totals.answered > 0) {
    out << "; right of " << totals.answered << " answers: " << totals.correct[0] << " by sum, "
        << totals.correct[1] << " per token, " << totals.correct[2] << " per byte, "
        << totals.correct[3] << " per character";
  }
  out << "; " << totals.empty_contexts << " contexts empty (one end-of-text token), "
      << totals.contexts_cut << " cut by " << totals.tokens_cut << " tokens; computed "
      << totals.tokens_computed << " tokens, needed " << totals.tokens_needed << ", unshared "
      << totals.tokens_unshared;
  return out.str();
}

}  // namespace mt
