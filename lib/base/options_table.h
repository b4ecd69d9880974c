// The table behind Options, shared by the sources of base/options.h.
#pragma once

#include <functional>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "base/options.h"

namespace mt {

using Words = std::vector<std::string>;

enum class OptionArity { kFlag, kOne, kRepeated, kList };

struct OptionEntry {
  std::string name, value_name, help, section, initial;
  OptionArity arity = OptionArity::kOne;
  bool file = true;  // may stand in a configuration file
  bool given = false;
  // Stores the words of one source; `where` begins a message.
  std::function<void(const Words& words, const std::string& where)> set;
  std::function<Words()> get;
  Words aliases;
};

struct OptionAlias {
  std::string name, value;  // without a value: another spelling
};

// What one source says of one option.
struct OptionSetting {
  std::string where;
  Words words;
};
using OptionSettings = std::map<std::string, OptionSetting>;

// The words with the separator between them.
[[nodiscard]] std::string joined(const Words& words, const char* separator);

struct Options::Table {
  std::string program, usage, description, present_section = "Options";
  std::vector<OptionEntry> entries;
  std::map<std::string, OptionAlias> aliases;
  Words* positional = nullptr;
  std::string positional_name, positional_help;
  std::size_t positional_most = 0;
  bool quiet = false, verbose = false, help = false, version = false, print_config = false;
  Words configs;

  // Null if there is none of that name.
  OptionEntry* find(const std::string& name);
  [[nodiscard]] const OptionEntry* find(const std::string& name) const;
  // Registers an option whose `set` takes the one word and a beginning for its message.
  OptionEntry& add(const std::string& name, const std::string& value_name, const std::string& help,
                   std::function<void(const std::string&, const std::string&)> set,
                   std::function<std::string()> get);
  [[noreturn]] void refuse_unknown(const std::string& name, const std::string& shown,
                                   const std::string& where) const;
  // Adds one occurrence of a known option to the settings of its source.
  void record(OptionSettings& settings, const std::string& name, Words words,
              const std::string& where);
  void apply(const OptionSettings& settings);
  // The words with names in their canonical spelling: every option as --name=value or --name
  // followed by its words, flags with their value, aliases resolved.
  Words normalised(const Words& words);
  // Appends one option; true if it took the next word (null at the end) as its value.
  bool normalise_option(const std::string& word, const std::string* next, Words& out) const;
  // Adds the words that are no options to `others`.
  OptionSettings read_command_line(const Words& words, Words& others);
  OptionSettings read_config(const std::string& file);
  // The titles of --help, in its order.
  [[nodiscard]] Words sections() const;
  void write_help(std::ostream& out) const;
};

}  // namespace mt
