#include "base/options.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>

#include "base/error.h"
#include "base/option_text.h"

namespace mt {
namespace {

using Words = std::vector<std::string>;

// A program with an option of each kind.
struct Sample {
  bool force = false, tied = true;
  std::int64_t layers = 4, negative = -3;
  double lr = 1e-4;
  std::string prompt, precision = "fp32";
  Words data, files;
  Options options{"mt-x", "[options] FILE...", "Does it."};
  std::ostringstream out;

  Sample() {
    options.section("Model");
    options.add("force", &force, "replace what exists");
    options.add("tied", &tied, "tie the head");
    options.add("num-layers", &layers, "N", "number of layers");
    options.add("negative", &negative, "N", "a number");
    options.section("Training");
    options.add("lr", &lr, "X", "learning rate");
    options.add("prompt", &prompt, "TEXT", "text to continue");
    options.add_choice("precision", &precision, {"fp32", "bf16", "fp16"}, "type of numbers");
    options.add("data-path", &data, "FILE", "token shards");
    options.add_alias("bf16", "precision", "bf16");
    options.add_alias("learning-rate", "lr");
    options.add_alias("overwrite", "force");
    options.add_positional(&files, "FILE", 2, "inputs");
  }
  Options::Parsed parse(const Words& words) {
    std::vector<const char*> argv = {"mt-x"};
    for (const std::string& word : words) {
      argv.push_back(word.c_str());
    }
    return options.parse(static_cast<int>(argv.size()), argv.data(), "mt-x 1.2", out);
  }
};

// The message of the refusal of these words, or "no error".
std::string refusal(const Words& words) {
  Sample sample;
  try {
    static_cast<void>(sample.parse(words));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& content)
      : path_(testing::TempDir() + "options-" + std::to_string(::getpid()) + ".conf") {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~ConfigFile() { ::unlink(path_.c_str()); }
  ConfigFile(const ConfigFile&) = delete;
  ConfigFile& operator=(const ConfigFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string config_refusal(const std::string& content) {
  const ConfigFile file(content);
  std::string text = refusal({"--config", file.path()});
  const std::size_t at = text.find(file.path());
  return at == std::string::npos ? text : text.replace(at, file.path().size(), "FILE");
}

TEST(Options, reads_every_kind) {
  Sample s;
  EXPECT_EQ(s.parse({"--force", "--tied=false", "--num_layers", "12", "a", "--lr=2.5e-3",
                     "--prompt", "two words", "--precision", "bf16", "--data_path", "x", "y",
                     "--negative", "-5", "b"}),
            Options::Parsed::kRun);
  EXPECT_TRUE(s.force);
  EXPECT_FALSE(s.tied);
  EXPECT_EQ(s.layers, 12);
  EXPECT_EQ(s.negative, -5);
  EXPECT_EQ(s.lr, 2.5e-3);
  EXPECT_EQ(s.prompt, "two words");
  EXPECT_EQ(s.precision, "bf16");
  EXPECT_EQ(s.data, (Words{"x", "y"}));
  EXPECT_EQ(s.files, (Words{"a", "b"}));
  EXPECT_TRUE(s.options.given("num-layers") && s.options.given("num_layers"));
  EXPECT_FALSE(s.options.given("config"));
}

TEST(Options, keeps_defaults_when_nothing_is_given) {
  Sample s;
  EXPECT_EQ(s.parse({}), Options::Parsed::kRun);
  EXPECT_TRUE(!s.force && s.tied && s.layers == 4 && s.lr == 1e-4 && s.files.empty());
  EXPECT_FALSE(s.options.given("lr"));
}

TEST(Options, lists_end_at_the_next_option_and_may_be_repeated) {
  Sample s;
  static_cast<void>(s.parse(
      {"--data-path", "a", "-1", "b", "--force", "file", "--data-path", "c", "-", "--", "--last"}));
  EXPECT_EQ(s.data, (Words{"a", "-1", "b", "c", "-"}));
  EXPECT_EQ(s.files, (Words{"file", "--last"}));
}

TEST(Options, odd_values_arrive_unchanged) {
  for (const std::string value :
       {"", " ", "-", "-1", "-x", "a=b", "--x", "=", "\n", "\xFF", "#", "\""}) {
    Sample joined;
    static_cast<void>(joined.parse({"--prompt=" + value, "f"}));
    EXPECT_EQ(joined.prompt, value);
    EXPECT_EQ(joined.files, Words{"f"});
    if (value != "--x") {
      Sample apart;
      static_cast<void>(apart.parse({"--prompt", value, "f"}));
      EXPECT_EQ(apart.prompt, value);
      EXPECT_EQ(apart.files, Words{"f"});
    }
  }
}

TEST(Options, refuses_unknown_names_with_the_nearest_one) {
  EXPECT_EQ(refusal({"--num-layer", "3"}),
            "unknown option --num-layer; the nearest is --num-layers");
  EXPECT_EQ(refusal({"--pormpt=x"}), "unknown option --pormpt; the nearest is --prompt");
  EXPECT_EQ(refusal({"--overwrit"}), "unknown option --overwrit; the nearest is --overwrite");
  EXPECT_EQ(refusal({"--num", "3"}), "unknown option --num; the nearest is --num-layers");
  EXPECT_EQ(refusal({"--abc"}), "unknown option --abc");
  EXPECT_EQ(refusal({"--zzzzzzzzzzzzzzzzzzzzzz"}), "unknown option --zzzzzzzzzzzzzzzzzzzzzz");
  EXPECT_NE(refusal({"-x"}).find("unknown option -x"), std::string::npos);
  EXPECT_NE(refusal({"--=3"}), "no error");
  EXPECT_NE(refusal({"--\x1b[31m"}).find("--\\x1b[31m"), std::string::npos);
}

TEST(Options, refuses_what_is_missing_doubled_or_too_much) {
  EXPECT_EQ(refusal({"--lr"}), "--lr: expected X, found the end of the command line");
  EXPECT_EQ(refusal({"--prompt", "--force"}), "--prompt: expected TEXT, found --force");
  EXPECT_EQ(refusal({"--data-path", "--force"}), "--data-path: expected FILE, found --force");
  EXPECT_EQ(refusal({"--lr", "1", "--lr", "2"}), "--lr: given twice");
  EXPECT_EQ(refusal({"--lr", "1", "--learning-rate", "2"}), "--lr: given twice");
  EXPECT_EQ(refusal({"--bf16", "--precision", "fp32"}), "--precision: given twice");
  EXPECT_EQ(refusal({"a", "b", "c"}), "unexpected argument \"c\"");
}

TEST(Options, refuses_what_is_no_number) {
  for (const char* const text :
       {"", "x", "1x", "1.5", "1e3", " 1", "1 ", "0x10", "+1", "9223372036854775808",
        "9223372036854775807k", "1K", "1kk", "--", "1_000", "Ki"}) {
    EXPECT_EQ(
        refusal({std::string("--num-layers=") + text}).rfind("--num-layers: expected a whole", 0),
        0U)
        << text;
  }
  for (const char* const text :
       {"", "x", "1e-4x", "nan", "inf", "-inf", "1e999", "0x1p3", "1,5", " 1", "1 "}) {
    EXPECT_EQ(refusal({std::string("--lr=") + text}).rfind("--lr: expected a number", 0), 0U)
        << text;
  }
  EXPECT_EQ(refusal({"--force=maybe"}), "--force: expected true or false, found \"maybe\"");
  EXPECT_EQ(refusal({"--bf16=no"}), "--bf16: expected true or false, found \"no\"");
  EXPECT_EQ(refusal({"--precision", "fp8"}),
            "--precision: expected one of fp32, bf16, fp16, found \"fp8\"");
}

TEST(Options, counts_take_suffixes) {
  const auto count = [](const std::string& text) { return parse_count(text, "x"); };
  EXPECT_EQ(count("2k"), 2000);
  EXPECT_EQ(count("3M"), 3000000);
  EXPECT_EQ(count("4G"), 4000000000);
  EXPECT_EQ(count("2Ki"), 2048);
  EXPECT_EQ(count("-1Mi"), -(1 << 20));
  EXPECT_EQ(count("8Gi"), std::int64_t{8} << 30);
  EXPECT_EQ(count("-9223372036854775808"), std::numeric_limits<std::int64_t>::min());
}

TEST(Options, numbers_are_printed_so_that_they_come_back) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 10000; ++i) {
    const double value =
        std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 2000) - 1060);
    if (std::isfinite(value)) {
      ASSERT_EQ(parse_number(number_text(value), "x"), value);
    }
  }
}

TEST(Options, aliases_are_other_spellings_or_set_a_value) {
  Sample s;
  static_cast<void>(s.parse({"--bf16", "--learning_rate", "3", "--overwrite"}));
  EXPECT_EQ(s.precision, "bf16");
  EXPECT_EQ(s.lr, 3);
  EXPECT_TRUE(s.force && s.options.given("precision") && s.options.given("force"));
  Sample off;
  static_cast<void>(off.parse({"--bf16=false", "--overwrite=false"}));
  EXPECT_EQ(off.precision, "fp32");
  EXPECT_FALSE(off.force || off.options.given("precision"));
}

TEST(ConfigFile, is_read_and_the_command_line_wins) {
  const ConfigFile file(
      "\xEF\xBB\xBF# a comment\r\nnum_layers = 8   # eight\r\n\nlr=3e-4\nforce = true\n"
      "prompt = two words # and a comment\ndata-path = a \"b c\" d#e\ndata-path = f\nbf16 = true");
  Sample s;
  static_cast<void>(s.parse({"--config", file.path(), "--lr", "1"}));
  EXPECT_EQ(s.layers, 8);
  EXPECT_EQ(s.lr, 1);
  EXPECT_TRUE(s.force && s.options.given("num-layers"));
  EXPECT_EQ(s.prompt, "two words");
  EXPECT_EQ(s.data, (Words{"a", "b c", "d#e", "f"}));
  EXPECT_EQ(s.precision, "bf16");
  Sample over;
  static_cast<void>(over.parse({"--data-path", "z", "--config", file.path(), "--force=false"}));
  EXPECT_EQ(over.data, Words{"z"});
  EXPECT_FALSE(over.force);
}

TEST(ConfigFile, a_later_file_wins) {
  const ConfigFile file("lr = 3\nnum-layers = 7\n");
  const std::string second = file.path() + "2";
  std::ofstream(second) << "lr = 4\n";
  Sample s;
  static_cast<void>(s.parse({"--config", file.path(), "--config", second, "x"}));
  ::unlink(second.c_str());
  EXPECT_EQ(s.lr, 4);
  EXPECT_EQ(s.layers, 7);
  EXPECT_EQ(s.files, Words{"x"});
}

TEST(ConfigFile, errors_name_file_and_line) {
  EXPECT_EQ(config_refusal("\n\nnum-layer = 3\n"),
            "FILE:3: unknown option num-layer; the nearest is num-layers");
  EXPECT_EQ(config_refusal("lr = 1\nlr = 1e-4x\n").rfind("FILE:2: lr: given twice, first as", 0),
            0U);
  EXPECT_EQ(config_refusal("# x\nlr = 1e-4x\n"), "FILE:2: lr: expected a number, found \"1e-4x\"");
  EXPECT_EQ(config_refusal("lr =\n"), "FILE:1: lr: expected a number, found \"\"");
  EXPECT_EQ(config_refusal("lr 3\n"), "FILE:1: expected NAME = VALUE, found \"lr 3\"");
  EXPECT_EQ(config_refusal("[model]\n"), "FILE:1: expected NAME = VALUE, found \"[model]\"");
  EXPECT_EQ(config_refusal(std::string(81, 'x') + "\n"),
            cat("FILE:1: expected NAME = VALUE, found \"", std::string(80, 'x'), "...\""));
  EXPECT_EQ(config_refusal("= 3\n"), "FILE:1: expected NAME = VALUE, found \"= 3\"");
  EXPECT_EQ(config_refusal("config = other\n"), "FILE:1: config is for the command line only");
  EXPECT_EQ(config_refusal("help = true\n"), "FILE:1: help is for the command line only");
  EXPECT_NE(config_refusal("prompt = \"a\n").find("FILE:1: a word in double quotes"),
            std::string::npos);
  EXPECT_NE(config_refusal("prompt = \"a\\q\"\n").find("FILE:1: a word in double"),
            std::string::npos);
  EXPECT_NE(config_refusal("prompt = \"a\"b\n").find("FILE:1: a word in double"),
            std::string::npos);
  EXPECT_NE(config_refusal(std::string("prompt = a\0b\n", 13)).find("NUL"), std::string::npos);
  EXPECT_THROW(
      {
        Sample s;
        static_cast<void>(s.parse({"--config", "/nonexistent"}));
      },
      EnvironmentError);
}

TEST(PrintConfig, reproduces_the_options) {
  std::mt19937 random(8);
  for (int trial = 0; trial < 300; ++trial) {
    const auto word = [&] {
      std::string text(random() % 6, '\0');
      for (char& c : text) {
        c = " \t\n#\"\\=-ax\x7F\x80\xFF\xC3\xA9"[random() % 15];
      }
      return text;
    };
    Sample first;
    Words words = {"--print-config", "--prompt=" + word(), "--lr=" + number_text(random() * 1e-7),
                   "--bf16"};
    if (random() % 2 == 0) {
      words.insert(words.end(),
                   {"--data-path=" + word(), "--data-path=" + word(), "--tied=false", "--quiet"});
    }
    ASSERT_EQ(first.parse(words), Options::Parsed::kDone);
    const ConfigFile file(first.out.str());
    Sample second;
    ASSERT_EQ(second.parse({"--config", file.path()}), Options::Parsed::kRun);
    ASSERT_EQ(second.prompt, first.prompt) << first.out.str();
    ASSERT_EQ(second.data, first.data);
    ASSERT_EQ(second.lr, first.lr);
    ASSERT_EQ(second.tied, first.tied);
    ASSERT_EQ(second.precision, "bf16");
    ASSERT_EQ(second.options.quiet(), first.options.quiet());
    for (const std::string& name : first.options.names()) {
      if (name != "config" && name != "print-config") {
        ASSERT_EQ(second.options.given(name), first.options.given(name)) << name;
      }
    }
    ASSERT_EQ(second.options.config_text(), first.out.str());
  }
}

TEST(Help, shows_sections_defaults_and_aliases_within_100_columns) {
  Sample s;
  ASSERT_EQ(s.parse({"--help", "a", "b", "c"}), Options::Parsed::kDone);
  const std::string text = s.out.str();
  EXPECT_EQ(text.rfind("usage: mt-x [options] FILE...\n\nDoes it.\n", 0), 0U);
  EXPECT_NE(text.find("\nModel:\n"), std::string::npos);
  EXPECT_NE(text.find("  --num-layers N                  number of layers [4]\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("learning rate [1e-04] (also --learning-rate)\n"), std::string::npos);
  EXPECT_NE(text.find("--precision fp32|bf16|fp16"), std::string::npos);
  EXPECT_LT(text.find("Model:"), text.find("Training:"));
  EXPECT_LT(text.find("Training:"), text.find("General:"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100U) << line;
    EXPECT_TRUE(line.empty() || line.back() != ' ') << line;
  }
  for (const std::string& name : s.options.names()) {
    EXPECT_NE(text.find("  --" + name + " "), std::string::npos) << name;
  }
}

TEST(Help, every_program_answers_the_same_questions) {
  Sample s;
  const Words names = s.options.names();
  for (const char* const name : {"config", "print-config", "quiet", "verbose", "help", "version"}) {
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
  }
  EXPECT_EQ(s.parse({"--version"}), Options::Parsed::kDone);
  EXPECT_EQ(s.out.str(), "mt-x 1.2\n");
  Sample quiet;
  static_cast<void>(quiet.parse({"-q", "-v"}));
  EXPECT_TRUE(quiet.options.quiet() && !quiet.options.verbose());
}

}  // namespace
}  // namespace mt
