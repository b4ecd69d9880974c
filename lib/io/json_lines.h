// One line of a file of JSON lines -> the text of a document. Strict JSON, but for what would lose
// a document for a trifle: a byte order mark is skipped, numbers may be larger than any machine
// type, and bytes that are not UTF-8 as well as \u escapes of half a surrogate pair become U+FFFD
// and are counted. Of a repeated key the last one counts, as in Python.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mt {

enum class JsonLine : std::uint8_t {
  kDocument,
  kBlank,       // nothing but white space
  kNotJson,     // `reason` says why; nesting deeper than 1,024 is refused
  kNotObject,   // an array, a string, ...
  kMissingKey,  // `keys` are those that it has
  kNotString,   // the key's value is no string
};

struct JsonDocument {
  std::string text;
  std::string set;  // meta.pile_set_name, if has_set
  bool has_set = false;
  std::uint64_t replaced = 0;     // U+FFFD put into the line
  std::string reason;             // of a bad line, without the place
  std::vector<std::string> keys;  // of a line without the key, at most 16
};

class JsonLineParser {
 public:
  // Replaces what is not UTF-8 and returns how often; text/tokenizer.h has one.
  using Repair = std::size_t (*)(std::string_view bytes, std::string& out);

  JsonLineParser(std::string key, Repair repair);
  ~JsonLineParser();
  JsonLineParser(JsonLineParser&&) noexcept;

  // LineReader::kPadding bytes behind the line must be readable. Overwrites `out`. Throws
  // EnvironmentError when memory runs out.
  [[nodiscard]] JsonLine parse(std::string_view line, JsonDocument& out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mt
