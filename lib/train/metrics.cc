#include "train/metrics.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/log.h"

namespace mt {

namespace {

constexpr std::uint64_t kLargestMetricsFile = std::uint64_t{4} << 30;

EnvironmentError failed(const char* what, const std::string& path) {
  return EnvironmentError(cat("--metrics ", path, ": ", what, ": ", std::strerror(errno)));
}

// How many bytes of the file to keep: whole lines up to and including `iteration`.
std::uint64_t sound_bytes(const std::string& path, std::int64_t iteration) {
  const std::string text = read_file(path, kLargestMetricsFile);
  std::uint64_t kept = 0;
  std::int64_t number = 1;
  while (kept < text.size()) {
    const std::size_t end = text.find('\n', kept);
    const std::string where = cat("--metrics ", path, ": line ", number);
    if (end == std::string::npos) {  // a line that was cut when the process died
      if (text[kept] != '{') throw DataError(where + ": is no line of metrics");
      break;
    }
    const Json line = parse_json(std::string_view(text).substr(kept, end - kept), where);
    if (json_int(line, "step", where) > iteration) break;
    kept = end + 1;
    ++number;
  }
  return kept;
}

// A FIFO's reader may still be starting; for one that never comes nobody shall wait, least of all
// somebody who asks the job to stop.
FileDescriptor open_to_append(const std::string& path) {
  constexpr int kAttempts = 100;
  constexpr std::chrono::milliseconds kPause{50};
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
  for (int attempt = 1;; ++attempt) {
    FileDescriptor file(::open(path.c_str(), kFlags | O_NONBLOCK, 0666));
    if (file.valid()) {
      if (::fcntl(file.get(), F_SETFL, O_APPEND) != 0) throw failed("cannot open", path);
      return file;
    }
    if (errno != ENXIO) throw failed("cannot open", path);
    if (attempt == kAttempts) {
      throw EnvironmentError(cat("--metrics ", path, ": nobody reads this FIFO"));
    }
    std::this_thread::sleep_for(kPause);
  }
}

// Two jobs would cut and mix each other's lines. A filesystem without locks has to do without.
void lock(const FileDescriptor& file, const std::string& path) {
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw EnvironmentError(cat("--metrics ", path, ": another job is writing it"));
  }
}

}  // namespace

MetricsLog::MetricsLog(const std::string& path, Start start, std::int64_t iteration) : path_(path) {
  file_ = path == "-" ? FileDescriptor(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3))
                      : open_to_append(path);
  if (!file_.valid()) throw failed("cannot open", path);
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw failed("cannot inspect", path);
  regular_ = S_ISREG(status.st_mode) && path != "-";
  if (regular_) lock(file_, path);
  if (!regular_ || status.st_size == 0) return;
  if (start == Start::kNew) {
    throw UsageError(
        cat("--metrics ", path, ": exists and this run does not continue it; name another file"));
  }
  const std::uint64_t kept = sound_bytes(path, iteration);
  if (kept == 0) {
    set_aside();
  } else if (::ftruncate(file_.get(), static_cast<off_t>(kept)) != 0) {
    throw failed("cannot cut", path);
  }
}

// Lines of which this run continues none may be those of another run.
void MetricsLog::set_aside() {
  std::string name;
  for (int number = 1; name.empty() || exists(name); ++number) {
    name = cat(path_, ".", number);
  }
  if (::rename(path_.c_str(), name.c_str()) != 0)
    throw failed("cannot set the older file aside", path_);
  log_info(cat("the older ", printable(path_), " is now ", printable(name)));
  file_ = open_to_append(path_);
  lock(file_, path_);
}

void MetricsLog::write(const Json& line) {
  if (!active()) return;
  const std::string bytes = json_line(line) + "\n";
  write_fully(file_.get(), bytes.data(), bytes.size(), "--metrics " + path_);
}

void MetricsLog::synchronise() {
  if (active() && regular_) sync_file(file_.get(), path_);
}

void MetricsLog::close() {
  if (active()) file_.close("--metrics " + path_);
}

Json ledger_json(const Ledger& now, const Ledger& before) {
  Json json = Json::object();
  for (std::size_t i = 0; i < kCommCalls; ++i) {
    const auto call = static_cast<CommCall>(i);
    const std::int64_t calls = now.calls_of(call) - before.calls_of(call);
    if (calls == 0) continue;
    json[comm_call_name(call)] = {{"calls", calls},
                                  {"bytes", now.bytes_of(call) - before.bytes_of(call)}};
  }
  return json;
}

}  // namespace mt
