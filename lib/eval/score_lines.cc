#include "eval/score_lines.h"

#include <algorithm>

#include "base/error.h"
#include "text/unicode.h"

namespace mt {
namespace {

std::string text_of(const Json& value, const char* key, const std::string& where) {
  if (value.is_string()) return value.get<std::string>();
  throw DataError(cat(where, ": ", key, ": expected a string, found ", value.type_name()));
}

std::vector<std::string> texts_of(const Json& value, const std::string& where) {
  if (!value.is_array() || value.empty()) {
    throw DataError(cat(where, ": continuations: expected a list of one string or more, found ",
                        value.is_array() ? "an empty one" : value.type_name()));
  }
  std::vector<std::string> texts;
  for (const Json& text : value) texts.push_back(text_of(text, "continuations", where));
  return texts;
}

// The number of bytes of white space at the end of valid UTF-8.
std::size_t blanks_at_end(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    std::size_t begin = end - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U) --begin;
    if (next_character(text.data() + begin, text.data() + end).kind != CharClass::kSpace) break;
    end = begin;
  }
  return text.size() - end;
}

std::int64_t characters_of(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

// What the options' inputs, all tokens but the last, have in common, at most `most`.
std::int64_t common_prefix(const std::vector<EncodedScore::Option>& options, std::int64_t most) {
  std::int64_t common = most;
  const auto& first = options.front().tokens;
  for (const auto& [tokens, bytes, characters] : options) {
    const auto end = first.begin() + common;
    common = std::mismatch(first.begin(), end, tokens.begin()).first - first.begin();
  }
  return common;
}

std::string option_name(const ScoreItem& item, std::size_t i) {
  return item.question ? cat("continuation ", i) : "the continuation";
}

// Cuts so much off the left that the longest option fits.
void fit(EncodedScore& encoded, std::int64_t positions, LongContext policy, const ScoreItem& item,
         const std::string& where) {
  std::size_t longest = 0;
  for (std::size_t i = 1; i < encoded.options.size(); ++i) {
    if (encoded.options[i].tokens.size() > encoded.options[longest].tokens.size()) longest = i;
  }
  // The last token is not read.
  const auto inputs = static_cast<std::int64_t>(encoded.options[longest].tokens.size()) - 1;
  if (inputs <= positions) return;
  encoded.cut = inputs - positions;
  if (encoded.cut >= encoded.context) {
    throw DataError(cat(where, ": ", option_name(item, longest), " has ",
                        inputs + 1 - encoded.context, " tokens: the model's ", positions,
                        " positions hold no more than ", positions));
  }
  if (policy == LongContext::kRefuse) {
    throw DataError(cat(where, ": a context of ", encoded.context,
                        " tokens before a continuation of ", inputs + 1 - encoded.context, ": ",
                        encoded.cut, " more than the model's ", positions, " positions take"));
  }
  encoded.context -= encoded.cut;
  for (auto& option : encoded.options) {
    // An option that is much shorter loses as much, so that all see one context.
    option.tokens.erase(option.tokens.begin(), option.tokens.begin() + encoded.cut);
  }
}

}  // namespace

bool parse_score_line(std::string_view line, const std::string& where, ScoreItem& item) {
  if (line.find_first_not_of(" \t\r\n") == std::string_view::npos) return false;
  const Json json = parse_json(line, where);
  if (!json.is_object()) {
    throw DataError(cat(where, ": expected an object, found ", json.type_name()));
  }
  item = {};
  bool has_context = false, pair = false;
  for (const auto& [key, value] : json.items()) {
    if (key == "context") {
      item.context = text_of(value, "context", where);
      has_context = true;
    } else if (key == "continuation") {
      item.continuations = {text_of(value, "continuation", where)};
      pair = true;
    } else if (key == "continuations") {
      item.continuations = texts_of(value, where);
      item.question = true;
    } else if (key == "id") {
      item.id = value;
    } else if (key == "answer" && !value.is_null()) {
      item.answer = json_count(json, "answer", where);
    }
  }
  if (!has_context) throw DataError(cat(where, ": context: missing"));
  if (pair == item.question) {
    throw DataError(
        cat(where, ": expected continuation or continuations, found ", pair ? "both" : "neither"));
  }
  const auto options = static_cast<std::int64_t>(item.continuations.size());
  if (item.answer && (pair || *item.answer >= options)) {
    throw DataError(
        cat(where, ": answer: ", *item.answer, ", but ",
            pair ? "a pair has no options" : cat("the options are 0 to ", options - 1)));
  }
  return true;
}

EncodedScore encode_score(const ScoreItem& item, Tokenizer& tokenizer, std::int64_t positions,
                          LongContext policy, const std::string& where) {
  const std::size_t kept = item.context.size() - blanks_at_end(item.context);
  const std::string_view context = std::string_view(item.context).substr(0, kept);
  EncodedScore encoded;
  encoded.empty_context = context.empty();
  std::vector<std::int32_t> alone;
  tokenizer.encode(context, alone);
  encoded.context = std::max<std::int64_t>(1, static_cast<std::int64_t>(alone.size()));
  for (std::size_t i = 0; i < item.continuations.size(); ++i) {
    const std::string& continuation = item.continuations[i];
    if (continuation.empty()) {
      throw DataError(cat(where, ": ", option_name(item, i), " is empty"));
    }
    EncodedScore::Option option{.tokens = {},
                                .bytes = static_cast<std::int64_t>(continuation.size()),
                                .characters = characters_of(continuation)};
    if (encoded.empty_context) option.tokens.push_back(tokenizer.end_of_document());
    tokenizer.encode(item.context + continuation, option.tokens);
    if (encoded.scored(option) < 1) {
      throw DataError(cat(where, ": ", option_name(item, i),
                          " has no token of its own: it joins the last one of the context"));
    }
    encoded.options.push_back(std::move(option));
  }
  fit(encoded, positions, policy, item, where);
  encoded.shared = common_prefix(encoded.options, encoded.context - 1);
  return encoded;
}

}  // namespace mt
