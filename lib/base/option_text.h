// The texts behind base/options: values, the lines of a configuration file, and the nearest name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mt {

// A whole number with an optional suffix k, M, G (powers of 1000), Ki, Mi or Gi. Throws UsageError
// beginning with `where` for anything else, trailing characters and overflow included.
[[nodiscard]] std::int64_t parse_count(std::string_view text, const std::string& where);
// A finite number.
[[nodiscard]] double parse_number(std::string_view text, const std::string& where);
// "true" or "false".
[[nodiscard]] bool parse_flag(std::string_view text, const std::string& where);
// The shortest text that parse_number reads as the same number.
[[nodiscard]] std::string number_text(double value);

// One setting of a configuration file. `#` at the start of a line or after white space begins a
// comment. A value is the rest of the line, or words in double quotes with the escapes \" \\ \n \t
// \xNN.
struct ConfigLine {
  int line = 0;  // counts from 1
  std::string name;
  std::string value;               // as one value
  std::vector<std::string> words;  // as the words of a list
};
// Throws UsageError with FILE:LINE.
[[nodiscard]] std::vector<ConfigLine> parse_config(std::string_view text, const std::string& file);
// The word as parse_config reads it back, in quotes where it needs them.
[[nodiscard]] std::string config_word(const std::string& word);

// The candidate with the fewest single-character edits and swaps of neighbours, or one that begins
// with the name; "" if nothing is near.
[[nodiscard]] std::string nearest_name(const std::string& name,
                                       const std::vector<std::string>& candidates);

}  // namespace mt
