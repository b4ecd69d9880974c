#include "base/json.h"

#include <cmath>
#include <iterator>
#include <limits>
#include <unordered_set>
#include <vector>

#include "base/error.h"

namespace mt {

namespace {

constexpr std::size_t kDeepest = 256;

// Walks the text and lets the builder know how far the parser has read.
class Cursor {
 public:
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;
  using iterator_category = std::forward_iterator_tag;

  Cursor(const char* at, const char** seen) : at_(at), seen_(seen) {}
  reference operator*() const { return *at_; }
  Cursor& operator++() {
    *seen_ = ++at_;
    return *this;
  }
  Cursor operator++(int) {
    const Cursor before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const Cursor& a, const Cursor& b) { return a.at_ == b.at_; }

 private:
  const char* at_;
  const char** seen_;
};

// Builds the value from the parser's events. Keys are appended without the search through all
// earlier ones that ordered_json makes, so a vocabulary of 50,000 entries takes linear time.
class Builder {
 public:
  Builder(std::string_view text, const char* const* seen, const std::string& where)
      : text_(text), seen_(seen), where_(where) {}

  bool null() { return append(nullptr); }
  bool boolean(bool value) { return append(value); }
  bool number_integer(Json::number_integer_t value) { return append(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return append(value); }
  bool number_float(Json::number_float_t value, const std::string& /*text*/) {
    return append(value);
  }
  bool string(std::string& value) { return append(std::move(value)); }
  bool binary(Json::binary_t& /*value*/) { return false; }
  bool start_object(std::size_t /*size*/) { return open(Json::object()); }
  bool start_array(std::size_t /*size*/) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    Level& level = levels_.back();
    if (!level.keys.insert(name).second) {
      fail(cat("the key \"", name, "\" is repeated"));
    }
    level.key = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string& last,
                   const nlohmann::detail::exception& error) {
    if (dynamic_cast<const Json::out_of_range*>(&error) != nullptr) {
      throw DataError(cat(where_, ": at byte ", position, ": number ", last, " is out of range"));
    }
    if (position > text_.size()) {
      throw DataError(
          cat(where_, ": at byte ", text_.size(), ": the JSON ends before it is complete"));
    }
    const std::string found = last.size() > 40 ? "..." + last.substr(last.size() - 37) : last;
    throw DataError(cat(where_, ": at byte ", position, ": not JSON, at \"", found, "\""));
  }

  Json take() { return std::move(root_); }

 private:
  struct Level {
    Json* value;
    std::string key;
    std::unordered_set<std::string> keys;
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(cat(where_, ": at byte ", *seen_ - text_.data(), ": ", what));
  }

  Json* place(Json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Level& level = levels_.back();
    if (level.value->is_array()) {
      auto& elements = level.value->get_ref<Json::array_t&>();
      return &elements.emplace_back(std::move(value));
    }
    using Members = Json::object_t::Container;
    Members& members = level.value->get_ref<Json::object_t&>();
    return &members.emplace_back(std::move(level.key), std::move(value)).second;
  }
  bool append(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (levels_.size() >= kDeepest) {
      fail(cat("nested deeper than ", kDeepest, " levels"));
    }
    // A container stays where it is while it is open: only the innermost one grows.
    levels_.push_back({place(std::move(value)), {}, {}});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  std::string_view text_;
  const char* const* seen_;
  const std::string& where_;
  Json root_;
  std::vector<Level> levels_;
};

void check_finite(const Json& value, const std::string& path) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    throw NumericError(cat(path.empty() ? "a value" : path, " is ", value.get<double>(),
                           ", which JSON cannot hold; expected a finite number"));
  }
  if (value.is_structured()) {
    for (const auto& [key, member] : value.items()) {
      check_finite(member, path.empty() ? key : path + "." + key);
    }
  }
}

std::string described(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) {
    text = text.substr(0, 57) + "...";
  }
  return text;
}

const Json& member(const Json& object, const std::string& key, const std::string& where,
                   const char* expected) {
  if (!object.is_object()) {
    throw DataError(cat(where, ": expected an object with ", key, ", found ", described(object)));
  }
  const auto found = object.find(key);
  if (found == object.end()) {
    throw DataError(cat(where, ": ", key, ": expected ", expected, ", found nothing"));
  }
  return *found;
}

[[noreturn]] void wrong(const Json& found, const std::string& key, const std::string& where,
                        const char* expected) {
  throw DataError(cat(where, ": ", key, ": expected ", expected, ", found ", described(found)));
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  // nlohmann's lexer takes a NUL for the end of the text and would pass over what follows.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw DataError(cat(where, ": at byte ", nul, ": not JSON, a NUL byte"));
  }
  const char* seen = text.data();
  Builder builder(text, &seen, where);
  const Cursor begin(text.data(), &seen);
  const Cursor end(text.data() + text.size(), &seen);
  if (!Json::sax_parse(begin, end, &builder)) {
    throw DataError(cat(where, ": not JSON"));
  }
  return builder.take();
}

std::string json_line(const Json& value) {
  check_finite(value, "");
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json finite_or_null(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

std::int64_t json_int(const Json& object, const std::string& key, const std::string& where) {
  const char* const expected = "an integer";
  const Json& value = member(object, key, where, expected);
  const bool too_large =
      value.is_number_unsigned() &&
      value.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()};
  if (!value.is_number_integer() || too_large) {
    wrong(value, key, where, too_large ? "an integer below 2^63" : expected);
  }
  return value.get<std::int64_t>();
}

std::int64_t json_count(const Json& object, const std::string& key, const std::string& where) {
  const std::int64_t value = json_int(object, key, where);
  if (value < 0) throw DataError(cat(where, ": ", key, ": expected a count, found ", value));
  return value;
}

double json_number(const Json& object, const std::string& key, const std::string& where) {
  const char* const expected = "a number";
  const Json& value = member(object, key, where, expected);
  if (!value.is_number()) {
    wrong(value, key, where, expected);
  }
  return value.get<double>();
}

bool json_bool(const Json& object, const std::string& key, const std::string& where) {
  const char* const expected = "true or false";
  const Json& value = member(object, key, where, expected);
  if (!value.is_boolean()) {
    wrong(value, key, where, expected);
  }
  return value.get<bool>();
}

std::string json_string(const Json& object, const std::string& key, const std::string& where) {
  const char* const expected = "a string";
  const Json& value = member(object, key, where, expected);
  if (!value.is_string()) {
    wrong(value, key, where, expected);
  }
  return value.get<std::string>();
}

}  // namespace mt
