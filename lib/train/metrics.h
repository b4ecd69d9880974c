// Metrics as JSON lines: one object a line, numbers that round-trip, appended with one write each.
#pragma once

#include <cstdint>
#include <string>

#include "base/commit.h"
#include "base/json.h"
#include "comm/ledger.h"

namespace mt {

class MetricsLog {
 public:
  // What an existing regular file means: a resumed run cuts it behind the last line whose "step" is
  // at most `iteration`, since the steps after it are done again, or sets it aside as FILE.1,
  // FILE.2,
  // ... if it holds no such line; a new run refuses it.
  enum class Start { kNew, kResume };

  // No lines.
  MetricsLog() = default;
  // path "-" is stdout. Devices and pipes are just written to. Throws UsageError for an existing
  // file with content (kNew), DataError for one that does not hold metrics, EnvironmentError, also
  // for a file that another job writes and for a FIFO without a reader for five seconds.
  MetricsLog(const std::string& path, Start start, std::int64_t iteration);

  [[nodiscard]] bool active() const { return file_.valid(); }
  // Appends a line. Throws EnvironmentError.
  void write(const Json& line);
  // Before a checkpoint is committed, so that no line before it is lost with the power.
  void synchronise();
  // Reports a late error of the system.
  void close();

 private:
  void set_aside();

  FileDescriptor file_;
  std::string path_;
  bool regular_ = false;
};

// What a communicator moved between two states of its ledger: {"all_reduce": {"calls": 4, "bytes":
// 65536}, ...}, without the calls that did not occur.
[[nodiscard]] Json ledger_json(const Ledger& now, const Ledger& before = {});

}  // namespace mt
