// The log: lines to stderr only, each "program: level: text" (level left out for plain information,
// rank added when it is not 0). The one mutable global of the project is the logger's level and
// prefix.
#pragma once

#include <string>

namespace mt {

enum class LogLevel { kQuiet, kWarning, kInfo, kDebug };

// Sets what every line begins with. rank < 0 means not started as a rank.
void set_log(const std::string& program, LogLevel level, int rank = -1);

void log_info(const std::string& text);
void log_warning(const std::string& text);
void log_debug(const std::string& text);

// Prints an error line whatever the level.
void log_error(const std::string& text);

// The same for an end that may have come from a lack of memory: where there is none for the line,
// it is written without (bytes outside ASCII as ?). The line is the two texts, joined.
void log_failure(const char* text, const char* more = "") noexcept;

// Sets what lines begin with unless set_log() has.
void name_log(const char* program) noexcept;

// A progress line that redraws itself ten times a second, on a terminal only; elsewhere nothing. An
// empty text ends the line, which then shows the last text.
void progress(const std::string& text);

// Replaces control characters (terminal escapes, newlines) by visible \xNN, so that a name from
// outside cannot forge a line or steer a terminal.
[[nodiscard]] std::string printable(const std::string& text);

}  // namespace mt
