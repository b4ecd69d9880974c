// The JSON that we read and write whole: configurations, manifests, headers, metric lines. JSON
// lines of documents are read by io/json_lines. Objects keep the order of their keys, so equal
// content gives equal bytes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace mt {

using Json = nlohmann::ordered_json;

// Parses one whole document. Throws DataError naming `where` (a file, or a file and an object) and
// the byte offset. Nesting deeper than 256 and repeated keys in one object are refused. Time is
// linear in the text; looking up a key afterwards is linear in its object, so iterate over large
// ones.
[[nodiscard]] Json parse_json(std::string_view text, const std::string& where);

// One line, no trailing newline; numbers round-trip; bytes that are not UTF-8 become U+FFFD. JSON
// has no infinity and no NaN: throws NumericError naming the key.
[[nodiscard]] std::string json_line(const Json& value);

// The number, or null for one that is not finite: for a writer for whom such a value is no fault.
[[nodiscard]] Json finite_or_null(double value);

// Typed member access. Throws DataError "WHERE: KEY: expected ..., found ...".
[[nodiscard]] std::int64_t json_int(const Json& object, const std::string& key,
                                    const std::string& where);
// The same of 0 or more.
[[nodiscard]] std::int64_t json_count(const Json& object, const std::string& key,
                                      const std::string& where);
[[nodiscard]] double json_number(const Json& object, const std::string& key,
                                 const std::string& where);
[[nodiscard]] bool json_bool(const Json& object, const std::string& key, const std::string& where);
[[nodiscard]] std::string json_string(const Json& object, const std::string& key,
                                      const std::string& where);

}  // namespace mt
