// What the option table prints: --help and --print-config.
#include <algorithm>
#include <ostream>
#include <sstream>

#include "base/error.h"
#include "base/option_text.h"
#include "base/options_table.h"

namespace mt {

namespace {

constexpr std::size_t kWidth = 100;
constexpr std::size_t kColumn = 34;  // where help texts begin

// Writes `text` in lines that begin at `column`; the first line has been filled up to `at`.
void write_wrapped(std::ostream& out, const std::string& text, std::size_t at, std::size_t column) {
  std::size_t used = at;
  std::istringstream words(text);
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (!first && used + 1 + word.size() > kWidth) {
      out << '\n' << std::string(column, ' ');
      used = column;
    } else if (!first) {
      out << ' ';
      ++used;
    }
    out << word;
    used += word.size();
  }
  out << '\n';
}

}  // namespace

std::string joined(const Words& words, const char* separator) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : separator) + word;
  }
  return text;
}

// The general options, which were registered first, come last.
Words Options::Table::sections() const {
  Words titles;
  for (const OptionEntry& entry : entries) {
    if (std::find(titles.begin(), titles.end(), entry.section) == titles.end()) {
      titles.push_back(entry.section);
    }
  }
  std::rotate(titles.begin(), titles.begin() + 1, titles.end());
  return titles;
}

void Options::Table::write_help(std::ostream& out) const {
  out << "usage: " << program << " " << usage << "\n\n";
  write_wrapped(out, description, 0, 0);
  if (positional != nullptr) {
    out << "\n  " << positional_name << "  ";
    write_wrapped(out, positional_help, positional_name.size() + 4, kColumn);
  }
  for (const std::string& section : sections()) {
    out << '\n' << section << ":\n";
    for (const OptionEntry& entry : entries) {
      if (entry.section != section) {
        continue;
      }
      std::string left = "  --" + entry.name;
      if (entry.arity != OptionArity::kFlag) {
        left += " " + entry.value_name + (entry.arity == OptionArity::kList ? "..." : "");
      }
      left += "  ";
      out << left;
      if (left.size() > kColumn) {
        out << '\n';
        left.clear();
      }
      out << std::string(kColumn - left.size(), ' ');
      std::string text = entry.help;
      if (!entry.initial.empty() &&
          (entry.arity != OptionArity::kFlag || entry.initial == "true")) {
        text += cat(" [", entry.initial, "]");
      }
      if (!entry.aliases.empty()) {
        text += cat(" (also ", joined(entry.aliases, ", "), ")");
      }
      write_wrapped(out, text, kColumn, kColumn);
    }
  }
}

std::vector<std::pair<std::string, std::string>> Options::values() const {
  std::vector<std::pair<std::string, std::string>> values;
  for (const OptionEntry& entry : table_->entries) {
    if (!entry.file) continue;
    std::string value;
    for (const std::string& word : entry.get()) {
      value += (value.empty() ? "" : " ") + config_word(word);
    }
    values.emplace_back(entry.name, std::move(value));
  }
  return values;
}

std::string Options::config_text() const {
  std::string text =
      cat("# Options of ", table_->program, ". Those behind # have their default.\n");
  for (const std::string& section : table_->sections()) {
    text += cat("\n# ", section, "\n");
    for (const OptionEntry& entry : table_->entries) {
      if (!entry.file || entry.section != section) {
        continue;
      }
      text += cat(entry.given ? "" : "# ", entry.name, " =");
      for (const std::string& word : entry.get()) {
        text += " " + config_word(word);
      }
      text += '\n';
    }
  }
  return text;
}

}  // namespace mt
