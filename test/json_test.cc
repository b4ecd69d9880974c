#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <ctime>
#include <functional>
#include <limits>
#include <random>

#include "base/error.h"

namespace mt {
namespace {

// The message of the error of type E that f throws, or "no error".
template <typename E, typename F>
std::string message(F f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

std::string refusal(const std::string& text) {
  return message<DataError>([&] { static_cast<void>(parse_json(text, "file.json")); });
}

TEST(Json, keeps_values_and_the_order_of_keys) {
  const std::string text =
      R"({"z":[1,-2,3.5,true,null],"a":{"b":"\u00e9\n","c":{}},"m":18446744073709551615,"e":[]})";
  EXPECT_EQ(json_line(parse_json(text, "x")),
            "{\"z\":[1,-2,3.5,true,null],\"a\":{\"b\":\"\xC3\xA9\\n\",\"c\":{}},"
            "\"m\":18446744073709551615,\"e\":[]}");
  EXPECT_EQ(parse_json(" 17 ", "x").get<int>(), 17);
}

// The oracle is the library's own reader, which builds its value in another way.
TEST(Json, agrees_with_the_librarys_reader_on_random_values) {
  std::mt19937 random(5);
  const std::function<Json(int)> make = [&](int depth) -> Json {
    switch (random() % (depth > 4 ? 5 : 7)) {
      case 0:
        return nullptr;
      case 1:
        return random() % 2 == 0;
      case 2:
        return static_cast<std::int64_t>(random()) - (1LL << 31);
      case 3:
        return std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 600) - 300);
      case 4:
        return std::string(random() % 9, static_cast<char>('a' + random() % 26)) + "\"\\\t";
      case 5: {
        Json array = Json::array();
        for (std::size_t i = random() % 5; i > 0; --i) {
          array.push_back(make(depth + 1));
        }
        return array;
      }
      default: {
        Json object = Json::object();
        for (std::size_t i = random() % 5; i > 0; --i) {
          object["k" + std::to_string(random() % 1000)] = make(depth + 1);
        }
        return object;
      }
    }
  };
  for (int i = 0; i < 2000; ++i) {
    const Json value = make(0);
    const std::string text = value.dump(static_cast<int>(random() % 4) - 1);
    ASSERT_EQ(parse_json(text, "x"), value) << text;
    ASSERT_EQ(parse_json(json_line(value), "x"), value);
  }
}

TEST(Json, names_file_and_byte_of_what_it_refuses) {
  EXPECT_NE(refusal("{\"a\": tru }").find("file.json: at byte 10: not JSON"), std::string::npos)
      << refusal("{\"a\": tru }");
  EXPECT_EQ(refusal("{\"a\": [1, 2"), "file.json: at byte 11: the JSON ends before it is complete");
  EXPECT_EQ(refusal(""), "file.json: at byte 0: the JSON ends before it is complete");
  EXPECT_EQ(refusal("{\"a\":1,\"b\":{\"a\":2},\"a\":3}"),
            "file.json: at byte 22: the key \"a\" is repeated");
  EXPECT_NE(refusal("[1] 2").find("at byte 5"), std::string::npos);
  EXPECT_NE(refusal("1e999").find("out of range"), std::string::npos);
  for (const char* const text : {"nan", "Infinity", "01", "1.", "\"\xFF\"", "\"\\ud800\"", "{1:2}",
                                 "[1,]", "{\"a\":1,}", "'a'", "//", "\"a\nb\""}) {
    EXPECT_EQ(refusal(text).rfind("file.json: at byte ", 0), 0U) << text << ": " << refusal(text);
  }
  // The library takes a NUL for the end of the text.
  EXPECT_EQ(refusal(std::string("[1]\0x", 5)), "file.json: at byte 3: not JSON, a NUL byte");
}

TEST(Json, refuses_nesting_deeper_than_256) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(refusal(nested(256)), "no error");
  EXPECT_EQ(refusal(nested(257)), "file.json: at byte 257: nested deeper than 256 levels");
  EXPECT_NE(refusal(std::string(5000000, '[')).find("nested deeper"), std::string::npos);
}

// A search through all earlier keys at every key would take minutes.
TEST(Json, reads_an_object_of_many_keys_in_linear_time) {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i) {
    text += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":" + std::to_string(i);
  }
  text += "}";
  const std::clock_t start = std::clock();
  const Json value = parse_json(text, "x");
  EXPECT_EQ(value.size(), 200000U);
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 10.0);
}

TEST(Json, refuses_a_long_document_cut_anywhere) {
  const std::string text = R"({"a":[1,2,{"b":"c"}],"d":-1.5e3,"e":[[],{}]})";
  for (std::size_t end = 0; end < text.size(); ++end) {
    EXPECT_NE(refusal(text.substr(0, end)), "no error") << end;
  }
}

TEST(JsonLine, numbers_come_back_as_the_same_bits) {
  std::mt19937_64 random(6);
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t bits = random();
    double number = 0;
    std::memcpy(&number, &bits, sizeof(number));
    if (std::isfinite(number)) {
      ASSERT_EQ(parse_json(json_line(Json(number)), "x").get<double>(), number);
    }
  }
  EXPECT_EQ(json_line(Json(0.1)), "0.1");
}

TEST(JsonLine, refuses_what_is_not_finite_and_names_it) {
  Json line;
  line["step"] = 3;
  line["part"]["loss"] = std::nan("");
  EXPECT_NE(message<NumericError>([&] { static_cast<void>(json_line(line)); }).find("part.loss is"),
            std::string::npos);
  line["part"]["loss"] = HUGE_VAL;
  EXPECT_THROW(static_cast<void>(json_line(line)), NumericError);
}

TEST(JsonLine, is_one_line_of_utf8) {
  const std::string line = json_line(Json("a\nb\xFFz"));
  EXPECT_EQ(line, "\"a\\nb\xEF\xBF\xBDz\"");
}

TEST(JsonMembers, are_read_by_type) {
  const Json object = parse_json(
      R"({"i":7,"big":9223372036854775808,"min":-9223372036854775808,"d":1.0,"b":true,"s":"x","n":null})",
      "m");
  EXPECT_EQ(json_int(object, "i", "m"), 7);
  EXPECT_EQ(json_int(object, "min", "m"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(json_number(object, "i", "m"), 7.0);
  EXPECT_EQ(json_number(object, "d", "m"), 1.0);
  EXPECT_TRUE(json_bool(object, "b", "m"));
  EXPECT_EQ(json_string(object, "s", "m"), "x");
  const auto int_message = [&](const char* key) {
    return message<DataError>([&] { static_cast<void>(json_int(object, key, "m")); });
  };
  EXPECT_EQ(int_message("none"), "m: none: expected an integer, found nothing");
  EXPECT_EQ(int_message("d"), "m: d: expected an integer, found 1.0");
  EXPECT_EQ(int_message("big"),
            "m: big: expected an integer below 2^63, found 9223372036854775808");
  EXPECT_EQ(int_message("b"), "m: b: expected an integer, found true");
  EXPECT_EQ(json_count(object, "i", "m"), 7);
  EXPECT_EQ(message<DataError>([&] { static_cast<void>(json_count(object, "min", "m")); }),
            "m: min: expected a count, found -9223372036854775808");
  EXPECT_THROW(static_cast<void>(json_number(object, "s", "m")), DataError);
  EXPECT_THROW(static_cast<void>(json_bool(object, "i", "m")), DataError);
  EXPECT_THROW(static_cast<void>(json_string(object, "n", "m")), DataError);
  EXPECT_THROW(static_cast<void>(json_string(Json::array(), "n", "m")), DataError);
}

}  // namespace
}  // namespace mt
