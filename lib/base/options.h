// One table of options drives the command line, the configuration file (--config FILE, same names),
// --help, --print-config and the check of the man page. Command line over file over default.
// Underscores are accepted for dashes; unknown names are refused with the nearest known one, and an
// option that takes one value is refused when one source gives it twice. A value that begins with
// -- needs the form --name=value; words after -- are never options.
//
// A configuration file has lines `name = value`; # begins a comment; words with spaces or odd bytes
// stand in double quotes with the escapes \" \\ \n \t \xNN; a list's words are separated by spaces.
//
// Components own their option structs and register each field once:
//   void AdamOptions::add_to(Options& options) {
//     options.add("adam-beta1", &beta1, "F", "decay of the first moment");
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace mt {

class Options {
 public:
  // `usage` follows "usage: PROGRAM " on the first line of --help; `description` is one paragraph.
  Options(std::string program, std::string usage, std::string description);
  ~Options();
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

  // A heading for the options that follow in --help.
  void section(const std::string& title);

  // Registers --name. The value that *field has now is the default that --help shows. The field
  // must outlive parse(). bool is a flag (--name, and --name=false or `name = false` in a file);
  // others take one value; a vector takes one or more words up to the next option, and may be
  // repeated. Counts accept the suffixes k, M, G (powers of 1000) and Ki, Mi, Gi.
  void add(const std::string& name, bool* field, const std::string& help);
  void add(const std::string& name, std::int64_t* field, const std::string& value_name,
           const std::string& help);
  void add(const std::string& name, double* field, const std::string& value_name,
           const std::string& help);
  void add(const std::string& name, std::string* field, const std::string& value_name,
           const std::string& help);
  void add(const std::string& name, std::vector<std::string>* field, const std::string& value_name,
           const std::string& help);
  // A string that must be one of the choices.
  void add_choice(const std::string& name, std::string* field,
                  const std::vector<std::string>& choices, const std::string& help);
  // Words that are not options. At most `most` are taken; value_name stands in --help.
  void add_positional(std::vector<std::string>* field, const std::string& value_name,
                      std::size_t most, const std::string& help);
  // Another spelling of an option; with `value` the alias is a flag that sets that value (--bf16
  // for --precision bf16).
  void add_alias(const std::string& alias, const std::string& name, const std::string& value = "");

  // What became of the command line: kRun, or a wish that was fulfilled on `out` (--help,
  // --version, --print-config).
  enum class Parsed { kRun, kDone };
  // Also handles --config, --print-config, --help, --version, --quiet, --verbose, which every
  // program has. `version` is, or makes, the text for --version. Throws UsageError; for a
  // configuration file with file name and line.
  [[nodiscard]] Parsed parse(int argc, const char* const* argv,
                             const std::function<std::string()>& version, std::ostream& out);
  [[nodiscard]] Parsed parse(int argc, const char* const* argv, const std::string& version,
                             std::ostream& out);

  // True if the option was given on the command line or in the file, so that its value is a wish
  // and not a default.
  [[nodiscard]] bool given(const std::string& name) const;
  // --quiet and --verbose, which every program has. With both, --quiet wins.
  [[nodiscard]] bool quiet() const;
  [[nodiscard]] bool verbose() const;
  // The long names, in the order of registration, without dashes: for the test of the stored list.
  [[nodiscard]] std::vector<std::string> names() const;
  // (long name, words of its value joined by spaces) of every option that a file may hold.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> values() const;
  // Lines "name = value" that, as a --config file, reproduce the options as they stand; those that
  // were not given are behind a #, so that given() comes out the same.
  [[nodiscard]] std::string config_text() const;

  struct Table;  // base/options_table.h

 private:
  std::unique_ptr<Table> table_;
};

}  // namespace mt
