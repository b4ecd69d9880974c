#include "base/option_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/log.h"

namespace mt {

namespace {

constexpr std::string_view kSpace = " \t";

// A file that is no configuration, a text for example, may have lines of any length.
[[noreturn]] void refuse(std::string_view text, const std::string& where, const char* expected) {
  constexpr std::size_t kMostShown = 80;
  const char* const more = text.size() > kMostShown ? "..." : "";
  throw UsageError(cat(where, ": expected ", expected, ", found \"",
                       printable(std::string(text.substr(0, kMostShown))), more, "\""));
}

int hex_digit(char c) {
  const std::string_view digits = "0123456789abcdef";
  const std::size_t at = digits.find(c);
  return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

// Reads the quoted word at the start of `rest` and removes it; false if it is malformed.
bool take_quoted(std::string_view& rest, std::string& word) {
  for (std::size_t i = 1; i < rest.size(); ++i) {
    if (rest[i] == '"') {
      rest.remove_prefix(i + 1);
      return true;
    }
    if (rest[i] != '\\') {
      word += rest[i];
      continue;
    }
    const char escape = ++i < rest.size() ? rest[i] : '\0';
    if (escape == 'n' || escape == 't') {
      word += escape == 'n' ? '\n' : '\t';
    } else if (escape == '"' || escape == '\\') {
      word += escape;
    } else if (escape == 'x' && i + 2 < rest.size() && hex_digit(rest[i + 1]) >= 0 &&
               hex_digit(rest[i + 2]) >= 0) {
      word += static_cast<char>(hex_digit(rest[i + 1]) * 16 + hex_digit(rest[i + 2]));
      i += 2;
    } else {
      return false;
    }
  }
  return false;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// The value of a line, "= " removed: its words, and the text as one value.
void read_value(std::string_view text, const std::string& where, ConfigLine& line) {
  std::string_view rest = trimmed(text);
  std::string unquoted;
  bool quoted = false;
  while (!rest.empty() && rest[0] != '#') {
    std::string word;
    if (rest[0] == '"') {
      quoted = true;
      if (!take_quoted(rest, word) || (!rest.empty() && kSpace.find(rest[0]) == kSpace.npos)) {
        throw UsageError(cat(where,
                             ": a word in double quotes does not end, or has an escape "
                             "other than \\\" \\\\ \\n \\t \\xNN"));
      }
    } else {
      const std::size_t end = std::min(rest.find_first_of(kSpace), rest.size());
      word = rest.substr(0, end);
      rest.remove_prefix(end);
    }
    line.words.push_back(word);
    unquoted += word;
    const std::size_t gap = std::min(rest.find_first_not_of(kSpace), rest.size());
    if (gap < rest.size() && rest[gap] != '#') {
      unquoted += rest.substr(0, gap);
    }
    rest.remove_prefix(gap);
  }
  line.value = quoted && line.words.size() == 1 ? line.words[0] : unquoted;
}

std::size_t edits(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1,
                             cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::int64_t parse_count(std::string_view text, const std::string& where) {
  struct Suffix {
    std::string_view name;
    std::int64_t factor;
  };
  constexpr std::array<Suffix, 7> kSuffixes = {{{"", 1},
                                                {"k", 1000},
                                                {"M", 1000000},
                                                {"G", 1000000000},
                                                {"Ki", 1 << 10},
                                                {"Mi", 1 << 20},
                                                {"Gi", 1 << 30}}};
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) {
    refuse(text, where, "a whole number below 2^63");
  }
  const std::string_view rest = text.substr(static_cast<std::size_t>(end - text.data()));
  const auto* const suffix = std::find_if(kSuffixes.begin(), kSuffixes.end(),
                                          [&](const Suffix& s) { return s.name == rest; });
  if (error != std::errc() || suffix == kSuffixes.end()) {
    refuse(text, where, "a whole number (suffixes k, M, G, Ki, Mi, Gi)");
  }
  if (__builtin_mul_overflow(value, suffix->factor, &value)) {
    refuse(text, where, "a whole number below 2^63");
  }
  return value;
}

double parse_number(std::string_view text, const std::string& where) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) {
    refuse(text, where, "a number that a double can hold");
  }
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    refuse(text, where, "a number");
  }
  return value;
}

bool parse_flag(std::string_view text, const std::string& where) {
  if (text != "true" && text != "false") {
    refuse(text, where, "true or false");
  }
  return text == "true";
}

std::string number_text(double value) {
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  MT_ASSERT(error == std::errc());
  return {text.data(), end};
}

std::vector<ConfigLine> parse_config(std::string_view text, const std::string& file) {
  std::vector<ConfigLine> lines;
  if (text.substr(0, 3) == "\xEF\xBB\xBF") {
    text.remove_prefix(3);
  }
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view content = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!content.empty() && content.back() == '\r') {
      content.remove_suffix(1);
    }
    content = trimmed(content);
    if (content.empty() || content[0] == '#') {
      continue;
    }
    const std::string where = cat(file, ":", number);
    const std::size_t equals = content.find('=');
    ConfigLine line{number, std::string(trimmed(content.substr(0, equals))), {}, {}};
    if (equals == std::string_view::npos || line.name.empty() ||
        line.name.find_first_of("[]\"# \t") != std::string::npos) {
      refuse(content, where, "NAME = VALUE");
    }
    if (content.find('\0') != std::string_view::npos) {
      refuse(content, where, "text without NUL bytes");
    }
    read_value(content.substr(equals + 1), where, line);
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string config_word(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte > 0x20 && byte < 0x7F && c != '#' && c != '"' && c != '\\';
  });
  if (plain) {
    return word;
  }
  // printable() writes what is not plain text as \xNN.
  std::string escaped;
  for (const char c : word) {
    if (c == '"' || c == '\\') {
      escaped += '\\';
    }
    escaped += c;
  }
  return '"' + printable(escaped) + '"';
}

std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t fewest = std::max<std::size_t>(1, name.size() / 2) + 1;
  for (const std::string& candidate : candidates) {
    // A name that was cut short is near, too.
    const std::size_t cost = candidate.rfind(name, 0) == 0 ? 1 : edits(name, candidate);
    if (cost < fewest) {
      fewest = cost;
      best = candidate;
    }
  }
  return best;
}

}  // namespace mt
