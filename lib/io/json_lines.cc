#include "io/json_lines.h"

#include <simdjson.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "io/line_reader.h"

namespace mt {
namespace {

static_assert(LineReader::kPadding >= simdjson::SIMDJSON_PADDING);

constexpr std::size_t kMostKeys = 16;
constexpr std::size_t kLongestKey = 64;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// The unit of a \uXXXX escape at p, or -1.
int escaped_unit(const char* p, const char* end) {
  if (end - p < 6 || p[0] != '\\' || p[1] != 'u') return -1;
  int value = 0;
  for (int i = 2; i < 6; ++i) {
    const char c = p[i];
    const int digit = is_digit(c)            ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

// Calls f(p) for every escape of half a surrogate pair.
template <typename F>
void for_each_lone_surrogate(const char* p, const char* end, const F& f) {
  while ((p = static_cast<const char*>(std::memchr(p, '\\', static_cast<std::size_t>(end - p)))) !=
         nullptr) {
    const int unit = escaped_unit(p, end);
    if (unit < 0xD800 || unit > 0xDFFF) {
      p += unit < 0 ? std::min<std::ptrdiff_t>(2, end - p) : 6;
      continue;
    }
    const int second = unit < 0xDC00 ? escaped_unit(p + 6, end) : -1;
    const bool pair = second >= 0xDC00 && second <= 0xDFFF;
    if (!pair) f(p);
    p += pair ? 12 : 6;
  }
}

// The end of a JSON number at p, or p if there is none.
const char* number_end(const char* p, const char* end) {
  const char* q = p;
  const auto digits = [&] {
    const char* const start = q;
    while (q < end && is_digit(*q)) ++q;
    return q > start;
  };
  if (q < end && *q == '-') ++q;
  if (q < end && *q == '0') {
    ++q;
  } else if (!digits()) {
    return p;
  }
  if (q < end && *q == '.') {
    ++q;
    if (!digits()) return p;
  }
  if (q < end && (*q == 'e' || *q == 'E')) {
    ++q;
    if (q < end && (*q == '+' || *q == '-')) ++q;
    if (!digits()) return p;
  }
  return q;
}

// Writes 0 over every number outside strings, so that those beyond 64 bits do not lose the
// document. What is not a number stays as it is, for the parser to refuse.
void blank_numbers(std::string& line) {
  char* p = line.data();
  char* const end = p + line.size();
  bool in_string = false;
  while (p < end) {
    if (in_string) {
      if (*p == '\\') ++p;
      in_string = p >= end || *p != '"';
      ++p;
    } else if (*p == '-' || is_digit(*p)) {
      char* const stop = line.data() + (number_end(p, end) - line.data());
      const bool ends = stop == end || std::strchr(",]} \t\r\n", *stop) != nullptr;
      if (stop == p || !ends) return;
      *p = '0';
      std::fill(p + 1, stop, ' ');
      p = stop;
    } else {
      in_string = *p == '"';
      ++p;
    }
  }
}

}  // namespace

struct JsonLineParser::State {
  std::string key;
  Repair repair;
  simdjson::dom::parser parser;
  std::string copy, other;  // of a line that is changed before it is parsed, padded

  // Parses what `line` views, which has the padding.
  simdjson::error_code parse(std::string_view line, simdjson::dom::element& root) {
    return parser.parse(line.data(), line.size(), false).get(root);
  }
  static std::string_view padded(std::string& text) {
    const std::size_t size = text.size();
    text.resize(size + LineReader::kPadding);
    return {text.data(), size};
  }
  std::string_view replace_surrogates(std::string_view line, std::uint64_t& replaced);
  simdjson::error_code parse_with_repairs(std::string_view line, simdjson::dom::element& root,
                                          std::uint64_t& replaced);
  JsonLine extract(simdjson::dom::element root, JsonDocument& out) const;
};

std::string_view JsonLineParser::State::replace_surrogates(std::string_view line,
                                                           std::uint64_t& replaced) {
  const char* const end = line.data() + line.size();
  std::vector<std::size_t> places;
  for_each_lone_surrogate(line.data(), end, [&](const char* p) {
    places.push_back(static_cast<std::size_t>(p - line.data()));
  });
  if (places.empty()) return line;
  copy.assign(line);
  for (const std::size_t at : places) copy.replace(at, 6, "\\uFFFD");
  replaced += places.size();
  return padded(copy);
}

simdjson::error_code JsonLineParser::State::parse_with_repairs(std::string_view line,
                                                               simdjson::dom::element& root,
                                                               std::uint64_t& replaced) {
  line = replace_surrogates(line, replaced);
  simdjson::error_code error = parse(line, root);
  if (error == simdjson::UTF8_ERROR) {
    other.clear();
    replaced += repair(line, other);
    copy.swap(other);
    line = padded(copy);
    error = parse(line, root);
  }
  if (error == simdjson::NUMBER_ERROR) {
    other.assign(line);
    blank_numbers(other);
    copy.swap(other);
    error = parse(padded(copy), root);
  }
  return error;
}

JsonLine JsonLineParser::State::extract(simdjson::dom::element root, JsonDocument& out) const {
  simdjson::dom::object object;
  if (root.get(object) != simdjson::SUCCESS) {
    out.reason = "not a JSON object";
    return JsonLine::kNotObject;
  }
  bool found = false;
  simdjson::dom::element value, meta;
  bool has_meta = false;
  for (const auto field : object) {
    if (field.key == key) {
      value = field.value;
      found = true;
    }
    if (field.key == "meta") {
      meta = field.value;
      has_meta = true;
    }
    if (!found && out.keys.size() < kMostKeys) {
      out.keys.push_back(printable(std::string(field.key.substr(0, kLongestKey))));
    }
  }
  if (!found) {
    out.reason = cat("no key \"", key, "\"");
    return JsonLine::kMissingKey;
  }
  std::string_view text;
  if (value.get(text) != simdjson::SUCCESS) {
    out.reason = cat("the value of \"", key, "\" is not a string");
    return JsonLine::kNotString;
  }
  out.text.assign(text);
  std::string_view set;
  out.has_set = has_meta && meta["pile_set_name"].get(set) == simdjson::SUCCESS;
  if (out.has_set) out.set.assign(set);
  return JsonLine::kDocument;
}

JsonLineParser::JsonLineParser(std::string key, Repair repair) : state_(std::make_unique<State>()) {
  state_->key = std::move(key);
  state_->repair = repair;
}
JsonLineParser::~JsonLineParser() = default;
JsonLineParser::JsonLineParser(JsonLineParser&&) noexcept = default;

JsonLine JsonLineParser::parse(std::string_view line, JsonDocument& out) {
  out.text.clear();
  out.set.clear();
  out.has_set = false;
  out.replaced = 0;
  out.reason.clear();
  out.keys.clear();
  if (line.substr(0, 3) == "\xEF\xBB\xBF") line.remove_prefix(3);
  if (line.find_first_not_of(" \t\r") == std::string_view::npos) return JsonLine::kBlank;
  simdjson::dom::element root;
  const simdjson::error_code error = state_->parse_with_repairs(line, root, out.replaced);
  if (error == simdjson::MEMALLOC) throw EnvironmentError("out of memory for a JSON line");
  if (error != simdjson::SUCCESS) {
    out.reason = cat("not JSON: ", simdjson::error_message(error));
    out.replaced = 0;
    return JsonLine::kNotJson;
  }
  const JsonLine kind = state_->extract(root, out);
  if (kind != JsonLine::kDocument) out.replaced = 0;
  return kind;
}

}  // namespace mt
