#include "base/options.h"

#include <algorithm>
#include <boost/program_options/cmdline.hpp>
#include <boost/program_options/errors.hpp>
#include <boost/program_options/options_description.hpp>
#include <boost/program_options/parsers.hpp>
#include <boost/program_options/value_semantic.hpp>
#include <map>
#include <new>
#include <ostream>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/commit.h"
#include "base/error.h"
#include "base/log.h"
#include "base/option_text.h"
#include "base/options_table.h"

namespace mt {

namespace po = boost::program_options;

namespace {

constexpr const char* kGeneral = "General";
constexpr std::uint64_t kLargestFile = 1 << 20;  // bytes of a configuration file

std::string dashed(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

bool begins_with(const std::string& text, const char* prefix) {
  return text.rfind(prefix, 0) == 0;
}

}  // namespace

const OptionEntry* Options::Table::find(const std::string& name) const {
  const auto at = std::find_if(entries.begin(), entries.end(),
                               [&](const OptionEntry& entry) { return entry.name == name; });
  return at == entries.end() ? nullptr : &*at;
}

OptionEntry* Options::Table::find(const std::string& name) {
  return const_cast<OptionEntry*>(std::as_const(*this).find(name));
}

OptionEntry& Options::Table::add(const std::string& name, const std::string& value_name,
                                 const std::string& help,
                                 std::function<void(const std::string&, const std::string&)> set,
                                 std::function<std::string()> get) {
  MT_ASSERT(find(name) == nullptr && aliases.count(name) == 0 && name == dashed(name));
  OptionEntry entry;
  entry.name = name;
  entry.value_name = value_name;
  entry.help = help;
  entry.section = present_section;
  entry.initial = get();
  entry.set = [set = std::move(set)](const Words& words, const std::string& where) {
    set(words.at(0), where);
  };
  entry.get = [get = std::move(get)] { return Words{get()}; };
  entries.push_back(std::move(entry));
  return entries.back();
}

void Options::Table::refuse_unknown(const std::string& name, const std::string& shown,
                                    const std::string& where) const {
  Words known;
  for (const OptionEntry& entry : entries) {
    known.push_back(entry.name);
  }
  for (const auto& [alias, target] : aliases) {
    known.push_back(alias);
  }
  const std::string nearest = name.size() > 2 ? nearest_name(name, known) : "";
  const std::string hint =
      nearest.empty() ? "" : cat("; the nearest is ", where.empty() ? "--" : "", nearest);
  throw UsageError(cat(where, "unknown option ", printable(shown), hint));
}

void Options::Table::record(OptionSettings& settings, const std::string& name, Words words,
                            const std::string& where) {
  const OptionEntry& entry = *find(name);
  const auto [at, first] = settings.try_emplace(name, OptionSetting{where, {}});
  if (!first && entry.arity != OptionArity::kList && entry.arity != OptionArity::kRepeated) {
    throw UsageError(cat(where, ": given twice",
                         at->second.where == where ? "" : cat(", first as ", at->second.where)));
  }
  std::move(words.begin(), words.end(), std::back_inserter(at->second.words));
}

void Options::Table::apply(const OptionSettings& settings) {
  for (OptionEntry& entry : entries) {
    if (const auto at = settings.find(entry.name); at != settings.end()) {
      entry.set(at->second.words, at->second.where);
      entry.given = true;
    }
  }
}

Words Options::Table::normalised(const Words& words) {
  const std::map<std::string, std::string> letters = {
      {"-h", "--help"}, {"-q", "--quiet"}, {"-v", "--verbose"}};
  Words out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto letter = letters.find(words[i]);
    const std::string word = letter == letters.end() ? words[i] : letter->second;
    if (word == "--") {
      out.insert(out.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
      break;
    }
    if (begins_with(word, "--")) {
      const std::string* const next = i + 1 < words.size() ? &words[i + 1] : nullptr;
      i += normalise_option(word, next, out) ? 1 : 0;
    } else if (word.size() > 1 && word[0] == '-' && word.find_first_of("0123456789.", 1) != 1) {
      refuse_unknown(dashed(word), word + " (words that begin with a dash go after --)", "");
    } else {
      out.push_back(word);
    }
  }
  return out;
}

bool Options::Table::normalise_option(const std::string& word, const std::string* next,
                                      Words& out) const {
  const std::size_t equals = word.find('=');
  const bool has_value = equals != std::string::npos;
  const std::string shown = word.substr(0, equals);
  std::string name = dashed(shown.substr(2));
  std::string value = has_value ? word.substr(equals + 1) : "true";
  bool is_flag = false;
  if (const auto alias = aliases.find(name); alias != aliases.end()) {
    name = alias->second.name;
    is_flag = !alias->second.value.empty();
    if (is_flag && !parse_flag(value, shown)) {
      return false;
    }
    value = is_flag ? alias->second.value : value;
  }
  const OptionEntry* const entry = find(name);
  if (entry == nullptr) {
    refuse_unknown(name, shown, "");
  }
  is_flag = is_flag || entry->arity == OptionArity::kFlag;
  if ((has_value || is_flag) && !value.empty()) {
    out.push_back(cat("--", name, "=", value));
    return false;
  }
  const bool takes_next = !has_value && !is_flag;
  if (takes_next && (next == nullptr || begins_with(*next, "--"))) {
    throw UsageError(cat(shown, ": expected ", entry->value_name, ", found ",
                         next == nullptr ? "the end of the command line" : printable(*next)));
  }
  out.push_back("--" + name);
  out.push_back(takes_next ? *next : value);
  return takes_next;
}

OptionSettings Options::Table::read_command_line(const Words& words, Words& others) {
  OptionSettings settings;
  po::options_description description;
  for (const OptionEntry& entry : entries) {
    auto* const value = po::value<Words>();
    description.add_options()(entry.name.c_str(),
                              entry.arity == OptionArity::kList ? value->multitoken() : value, "");
    // The library cuts a name short where there is no memory for it.
    if (description.options().back()->long_name() != entry.name) throw std::bad_alloc();
  }
  try {
    namespace style = po::command_line_style;
    const auto parsed =
        po::command_line_parser(normalised(words))
            .options(description)
            .style(style::allow_long | style::long_allow_adjacent | style::long_allow_next)
            .run();
    for (const auto& option : parsed.options) {
      if (option.string_key.empty() || option.position_key >= 0) {
        others.insert(others.end(), option.value.begin(), option.value.end());
      } else {
        record(settings, option.string_key, option.value, "--" + option.string_key);
      }
    }
  } catch (const po::error& error) {
    throw UsageError(error.what());
  }
  return settings;
}

OptionSettings Options::Table::read_config(const std::string& file) {
  OptionSettings settings;
  for (ConfigLine& line : parse_config(read_file(file, kLargestFile), file)) {
    const std::string where = cat(file, ":", line.line, ": ");
    std::string name = dashed(line.name);
    if (const auto alias = aliases.find(name); alias != aliases.end()) {
      name = alias->second.name;
      if (!alias->second.value.empty()) {
        if (!parse_flag(line.value, where + line.name)) {
          continue;
        }
        line.value = alias->second.value;
      }
    }
    const OptionEntry* const entry = find(name);
    if (entry == nullptr) {
      refuse_unknown(name, line.name, where);
    }
    if (!entry->file) {
      throw UsageError(cat(where, line.name, " is for the command line only"));
    }
    record(settings, name, entry->arity == OptionArity::kList ? line.words : Words{line.value},
           where + line.name);
  }
  return settings;
}

Options::Options(std::string program, std::string usage, std::string description)
    : table_(std::make_unique<Table>()) {
  Table& table = *table_;
  table.program = std::move(program);
  table.usage = std::move(usage);
  table.description = std::move(description);
  section(kGeneral);
  add("config", &table.configs, "FILE",
      "read options from FILE, lines NAME = VALUE; the command line wins, a later FILE too");
  table.find("config")->arity = OptionArity::kRepeated;
  add("print-config", &table.print_config, "print a FILE for --config with all options, and end");
  add("quiet", &table.quiet, "log errors only (also -q)");
  add("verbose", &table.verbose, "log more (also -v)");
  add("help", &table.help, "print this text, and end (also -h)");
  add("version", &table.version, "print the version and what it was built with, and end");
  for (const char* const name : {"config", "print-config", "help", "version"}) {
    table.find(name)->file = false;
  }
  section("Options");
}

Options::~Options() = default;

void Options::section(const std::string& title) {
  table_->present_section = title;
}

void Options::add(const std::string& name, bool* field, const std::string& help) {
  table_
      ->add(
          name, "true or false", help,
          [field](const std::string& word, const std::string& where) {
            *field = parse_flag(word, where);
          },
          [field] { return std::string(*field ? "true" : "false"); })
      .arity = OptionArity::kFlag;
}

void Options::add(const std::string& name, std::int64_t* field, const std::string& value_name,
                  const std::string& help) {
  table_->add(
      name, value_name, help,
      [field](const std::string& word, const std::string& where) {
        *field = parse_count(word, where);
      },
      [field] { return cat(*field); });
}

void Options::add(const std::string& name, double* field, const std::string& value_name,
                  const std::string& help) {
  table_->add(
      name, value_name, help,
      [field](const std::string& word, const std::string& where) {
        *field = parse_number(word, where);
      },
      [field] { return number_text(*field); });
}

void Options::add(const std::string& name, std::string* field, const std::string& value_name,
                  const std::string& help) {
  table_->add(
      name, value_name, help,
      [field, value_name](const std::string& word, const std::string& where) {
        // Most likely a variable of a shell that is not set. A file may say so: it is the default.
        const bool path = value_name == "FILE" || value_name == "DIR";
        if (path && word.empty() && begins_with(where, "--")) {
          throw UsageError(cat(where, ": expected ", value_name, ", found \"\""));
        }
        *field = word;
      },
      [field] { return *field; });
}

void Options::add(const std::string& name, std::vector<std::string>* field,
                  const std::string& value_name, const std::string& help) {
  OptionEntry& entry = table_->add(
      name, value_name, help, [](const std::string&, const std::string&) {},
      [field] { return joined(*field, " "); });
  entry.arity = OptionArity::kList;
  entry.set = [field](const Words& words, const std::string& /*where*/) { *field = words; };
  entry.get = [field] { return *field; };
}

void Options::add_choice(const std::string& name, std::string* field,
                         const std::vector<std::string>& choices, const std::string& help) {
  table_->add(
      name, joined(choices, "|"), help,
      [field, choices](const std::string& word, const std::string& where) {
        if (std::find(choices.begin(), choices.end(), word) == choices.end()) {
          throw UsageError(cat(where, ": expected one of ", joined(choices, ", "), ", found \"",
                               printable(word), "\""));
        }
        *field = word;
      },
      [field] { return *field; });
}

void Options::add_positional(std::vector<std::string>* field, const std::string& value_name,
                             std::size_t most, const std::string& help) {
  MT_ASSERT(table_->positional == nullptr);
  table_->positional = field;
  table_->positional_name = value_name;
  table_->positional_help = help;
  table_->positional_most = most;
}

void Options::add_alias(const std::string& alias, const std::string& name,
                        const std::string& value) {
  OptionEntry* const entry = table_->find(name);
  MT_ASSERT(entry != nullptr && table_->find(alias) == nullptr && alias == dashed(alias));
  MT_ASSERT(table_->aliases.emplace(alias, OptionAlias{name, value}).second);
  entry->aliases.push_back("--" + alias);
}

Options::Parsed Options::parse(int argc, const char* const* argv, const std::string& version,
                               std::ostream& out) {
  return parse(
      argc, argv, [&version] { return version; }, out);
}

Options::Parsed Options::parse(int argc, const char* const* argv,
                               const std::function<std::string()>& version, std::ostream& out) {
  Table& table = *table_;
  Words others;
  const OptionSettings settings =
      table.read_command_line(Words(argv + std::min(argc, 1), argv + argc), others);
  if (settings.count("help") > 0) {
    table.write_help(out);
    return Parsed::kDone;
  }
  if (settings.count("version") > 0) {
    out << version() << '\n';
    return Parsed::kDone;
  }
  if (const auto configs = settings.find("config"); configs != settings.end()) {
    for (const std::string& file : configs->second.words) {
      table.apply(table.read_config(file));
    }
  }
  table.apply(settings);
  if (others.size() > table.positional_most) {
    throw UsageError(cat("unexpected argument \"", printable(others[table.positional_most]), "\""));
  }
  if (table.positional != nullptr && !others.empty()) {
    *table.positional = others;
  }
  if (table.print_config) {
    out << config_text();
    return Parsed::kDone;
  }
  return Parsed::kRun;
}

bool Options::given(const std::string& name) const {
  const OptionEntry* const entry = table_->find(dashed(name));
  MT_ASSERT(entry != nullptr);
  return entry->given;
}

bool Options::quiet() const {
  return table_->quiet;
}

bool Options::verbose() const {
  return table_->verbose && !table_->quiet;
}

std::vector<std::string> Options::names() const {
  Words names;
  for (const OptionEntry& entry : table_->entries) {
    names.push_back(entry.name);
  }
  return names;
}

}  // namespace mt
