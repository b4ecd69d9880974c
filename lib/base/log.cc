#include "base/log.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <exception>
#include <mutex>
#include <string_view>

#include "base/error.h"

namespace mt {

namespace {

struct LogState {
  std::mutex writing;  // a save in the background warns, too
  std::string prefix;
  LogLevel level = LogLevel::kInfo;
  bool progress_shown = false;
  std::string progress_withheld;
  std::chrono::steady_clock::time_point progress_time;
};

// The one mutable global of the project.
LogState& state() {
  static LogState log;
  return log;
}

// One write(2) a line, so that lines of several processes do not mix. A stderr that takes nothing
// is no reason to stop.
void write_stderr(std::string_view bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::write(STDERR_FILENO, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      return;
    }
    done += static_cast<std::size_t>(n);
  }
}

void line(const char* level, const std::string& text) {
  LogState& log = state();
  const std::lock_guard<std::mutex> lock(log.writing);
  std::string bytes = log.progress_shown ? "\r\x1b[K" : "";
  log.progress_shown = false;
  log.progress_withheld.clear();
  bytes += log.prefix;
  bytes += level;
  bytes += printable(text);
  bytes += '\n';
  write_stderr(bytes);
}

struct Character {
  std::uint32_t code = 0;
  std::size_t length = 0;  // 0: not UTF-8
};

Character next_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) {
    return {first, 1};
  }
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) {
    return {};
  }
  std::uint32_t code = first & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) {
      return {};
    }
    code = code << 6 | (byte(i) & 0x3FU);
  }
  const std::uint32_t smallest = length == 4 ? 0x10000U : length == 3 ? 0x800U : 0x80U;
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return code < smallest || code > 0x10FFFF || surrogate ? Character{} : Character{code, length};
}

// Controls of ASCII and Latin-1, line and paragraph separators, and the overrides of direction.
bool steers_a_terminal(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x2028 || code == 0x2029 ||
         (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

void set_log(const std::string& program, LogLevel level, int rank) {
  state().prefix = rank > 0 ? cat(program, ": rank ", rank, ": ") : program + ": ";
  state().level = level;
}

void name_log(const char* program) noexcept {
  if (!state().prefix.empty()) return;
  try {
    set_log(program, LogLevel::kInfo);
  } catch (const std::exception&) {  // the line says what it says without a name
  }
}

void log_info(const std::string& text) {
  if (state().level >= LogLevel::kInfo) {
    line("", text);
  }
}

void log_warning(const std::string& text) {
  if (state().level != LogLevel::kQuiet) {
    line("warning: ", text);
  }
}

void log_debug(const std::string& text) {
  if (state().level == LogLevel::kDebug) {
    line("debug: ", text);
  }
}

void log_error(const std::string& text) {
  line("error: ", text);
}

void log_failure(const char* text, const char* more) noexcept {
  LogState& log = state();
  std::array<char, 4096> bytes;
  std::size_t size = 0;
  bool plain = true;  // the line is in `bytes`, and such as line() would make it
  const auto append = [&](const char* part, bool ours) {
    for (; *part != '\0'; ++part) {
      const bool printable = ours || (*part >= ' ' && *part < '\x7f');
      plain = plain && printable && size + 1 < bytes.size();
      if (size + 1 < bytes.size()) bytes[size++] = printable ? *part : '?';
    }
  };
  append(log.progress_shown ? "\r\x1b[K" : "", true);
  append(log.prefix.c_str(), true);
  append("error: ", true);
  append(text, false);
  append(more, false);
  bytes[size++] = '\n';
  if (!plain) {
    try {
      log_error(std::string(text) + more);
      return;
    } catch (const std::exception&) {  // the plain line has to do
    }
  }
  write_stderr({bytes.data(), size});
  log.progress_shown = false;
}

void progress(const std::string& text) {
  LogState& log = state();
  if (log.level < LogLevel::kInfo || ::isatty(STDERR_FILENO) == 0) {
    return;
  }
  const std::lock_guard<std::mutex> lock(log.writing);
  const auto now = std::chrono::steady_clock::now();
  const bool soon = log.progress_shown && now - log.progress_time < std::chrono::milliseconds(100);
  if (soon && !text.empty()) {
    log.progress_withheld = text;
    return;
  }
  if (text.empty()) {
    if (!log.progress_withheld.empty()) {
      write_stderr("\r\x1b[K" + printable(log.progress_withheld));
    }
    if (log.progress_shown) {
      write_stderr("\n");
    }
  } else {
    write_stderr("\r\x1b[K" + printable(text));
    log.progress_time = now;
  }
  log.progress_shown = !text.empty();
  log.progress_withheld.clear();
}

std::string printable(const std::string& text) {
  const char* const digits = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  std::string_view rest = text;
  while (!rest.empty()) {
    const Character character = next_character(rest);
    const bool keep = character.length > 0 && !steers_a_terminal(character.code);
    const std::size_t length = character.length > 0 ? character.length : 1;
    for (const char c : rest.substr(0, length)) {
      const auto byte = static_cast<unsigned char>(c);
      if (keep) {
        out += c;
      } else {
        out += "\\x";
        out += digits[byte >> 4];
        out += digits[byte & 15];
      }
    }
    rest.remove_prefix(length);
  }
  return out;
}

}  // namespace mt
