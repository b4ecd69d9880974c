// A training run's directory: its checkpoints by number, the newest sound one, and what is removed.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>

#include "base/commit.h"
#include "base/error.h"
#include "base/log.h"
#include "ckpt/checkpoint.h"
#include "ckpt/manifest.h"
#include "ckpt/stored_file.h"

namespace mt {
namespace {

constexpr const char* kPrefix = "iter_";
constexpr std::size_t kDigits = 7;  // at least
constexpr std::size_t kMostDigits = 18;
constexpr const char* kLatest = "latest";
constexpr const char* kLatestTemporary = ".latest.tmp";

// "iter_0000100" -> 100.
std::optional<std::int64_t> iteration_of(const std::string& name) {
  const std::string digits = name.starts_with(kPrefix) ? name.substr(5) : "";
  if (digits.size() < kDigits || digits.size() > kMostDigits ||
      digits.find_first_not_of("0123456789") != std::string::npos ||
      (digits.size() > kDigits && digits.front() == '0')) {
    return std::nullopt;
  }
  return std::stoll(digits);
}

using Iterations = std::map<std::int64_t, std::string, std::greater<>>;  // newest first

Iterations iterations_in(const std::string& run) {
  Iterations found;
  for (const std::string& name : names_in(run)) {
    if (const auto iteration = iteration_of(name)) {
      found[*iteration] = run + "/" + name;
    }
  }
  return found;
}

// Why a checkpoint cannot be used; nothing if it can. A system that fails (no descriptors, no
// permission) says nothing about the checkpoint: its EnvironmentError passes.
std::optional<std::string> fault_of(const std::string& directory) {
  // A link that leads nowhere, or removed since it was listed.
  if (std::error_code error; !std::filesystem::exists(directory, error) && !error) {
    return cat("cannot read ", printable(directory), ": it is missing");
  }
  try {
    const CheckpointReader reader(directory);
    return std::nullopt;
  } catch (const DataError& error) {
    return error.what();
  }
}

void rename_or_throw(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw EnvironmentError(cat("cannot rename ", from, " to ", to, ": ", std::strerror(errno)));
  }
}

// ".iter_0000100.tmp.PID-N": what a dead saver or remover left. ".iter_0000100.old.PID-N": a
// checkpoint that was moved aside while another took its name; if none has, it goes back.
void sweep(const std::string& run) {
  for (const std::string& name : names_in(run)) {
    const std::size_t end = name.find('.', 1);
    if (name.front() != '.' || end == std::string::npos || !iteration_of(name.substr(1, end - 1))) {
      continue;
    }
    const std::string path = run + "/" + name;
    const std::string target = run + "/" + name.substr(1, end - 1);
    const bool old = name.compare(end, 5, ".old.") == 0;
    if (old && !exists(target)) {
      rename_or_throw(path, target);
      sync_directory(run);
    } else if (old || name.compare(end, 5, ".tmp.") == 0) {
      remove_tree(path);
    }
  }
}

// A link for people and scripts; nothing here follows it.
void point_latest(const std::string& run, const std::string& directory) {
  const std::string target = directory.substr(run.size() + 1);
  const std::string link = run + "/" + kLatest;
  const std::string temporary = run + "/" + kLatestTemporary;
  std::error_code ignored;
  if (std::filesystem::read_symlink(link, ignored) == target) {
    return;
  }
  ::unlink(temporary.c_str());
  if (::symlink(target.c_str(), temporary.c_str()) != 0) {
    throw EnvironmentError(cat("cannot create ", temporary, ": ", std::strerror(errno)));
  }
  if (::rename(temporary.c_str(), link.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    throw EnvironmentError(
        cat("cannot rename ", temporary, " to ", link, ": ", std::strerror(error)));
  }
}

}  // namespace

std::string iteration_directory(const std::string& run, std::int64_t iteration) {
  MT_ASSERT(iteration >= 0);
  std::string digits = cat(iteration);
  digits.insert(0, kDigits - std::min(kDigits, digits.size()), '0');
  return cat(run, "/", kPrefix, digits);
}

std::int64_t newest_iteration(const std::string& run) {
  const Iterations iterations = iterations_in(run);
  return iterations.empty() ? -1 : iterations.begin()->first;
}

void retain_checkpoints(const std::string& run, std::int64_t keep) {
  sweep(run);
  std::int64_t sound = 0;
  std::vector<std::string> surplus;
  for (const auto& [iteration, directory] : iterations_in(run)) {
    // A damaged one does not count: what is newer than the last one kept stays too.
    if (keep > 0 && sound >= keep) {
      surplus.push_back(directory);
    } else if ((keep > 0 || sound == 0) && !fault_of(directory)) {
      if (sound++ == 0) {
        point_latest(run, directory);
      }
    }
  }
  for (const std::string& directory : surplus) {
    // Under a name that no reader takes for a checkpoint, while it goes.
    const std::string name = directory.substr(run.size() + 1);
    const std::string doomed = cat(run, "/.", name, ".tmp.", ::getpid(), "-removed");
    rename_or_throw(directory, doomed);
    sync_directory(run);
    remove_tree(doomed);
  }
}

bool is_checkpoint(const std::string& directory) {
  constexpr std::string_view kBegin = R"({"format":"mt-checkpoint",)";
  try {
    const FileDescriptor fd = OpenDirectory(directory).open(kManifestName);
    std::string begin(kBegin.size(), '\0');
    if (file_size(fd.get(), directory) < begin.size()) {
      return false;
    }
    read_fully_at(fd.get(), begin.data(), begin.size(), 0, directory + "/" + kManifestName);
    return begin == kBegin;
  } catch (const DataError&) {
    return false;
  }
}

FoundCheckpoint find_checkpoint(const std::string& path) {
  if (!exists(path)) {
    return {};
  }
  if (exists(path + "/" + kManifestName)) {
    return {false, path};
  }
  const Iterations iterations = iterations_in(path);
  for (const auto& [iteration, directory] : iterations) {
    const auto fault = fault_of(directory);
    if (!fault) {
      return {false, directory};
    }
    log_warning(cat("passing over ", directory, ": ", *fault));
  }
  if (!iterations.empty()) {
    throw DataError(cat(path, ": none of its ", iterations.size(), " checkpoints is sound"));
  }
  return {};
}

}  // namespace mt
