#include "io/input_list.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "base/commit.h"
#include "base/error.h"
#include "base/log.h"

namespace mt {
namespace {

bool ends_with_any(const std::string& name, const std::vector<std::string>& endings) {
  return std::any_of(endings.begin(), endings.end(), [&](const std::string& ending) {
    return name.size() > ending.size() && name.ends_with(ending);
  });
}

// Collects the files below one folder.
class Folder {
 public:
  Folder(std::string root, const std::vector<std::string>& endings)
      : root_(std::move(root)), endings_(&endings) {}

  std::vector<std::string> files() {
    // A stack of our own: the depth of folders is not ours to choose.
    std::vector<std::string> waiting;
    look_at(root_, root_, waiting);
    while (!waiting.empty()) {
      const std::string folder = std::move(waiting.back());
      waiting.pop_back();
      for (const std::string& name : names_in(folder)) {
        if (name.front() == '.') continue;
        look_at(folder + (folder.back() == '/' ? "" : "/") + name, name, waiting);
      }
    }
    std::sort(found_.begin(), found_.end());
    if (found_.empty()) {
      std::string kinds;
      for (const std::string& ending : *endings_) kinds += (kinds.empty() ? "*" : ", *") + ending;
      throw EnvironmentError(
          cat("--input ", printable(root_), ": the folder has no file of ", kinds));
    }
    return std::move(found_);
  }

 private:
  void look_at(const std::string& path, const std::string& name,
               std::vector<std::string>& waiting) {
    struct stat status {};
    const bool wanted = ends_with_any(name, *endings_);
    if (::stat(path.c_str(), &status) != 0) {
      // A link that leads nowhere is an error only under a name that was asked for.
      if (!wanted && (errno == ENOENT || errno == ELOOP)) return;
      throw EnvironmentError(cat("cannot open ", printable(path), ": ", std::strerror(errno)));
    }
    if (S_ISDIR(status.st_mode)) {
      if (seen_.emplace(status.st_dev, status.st_ino).second) waiting.push_back(path);
    } else if (wanted) {
      found_.push_back(path);
    }
  }

  std::string root_;
  const std::vector<std::string>* endings_;
  std::set<std::pair<dev_t, ino_t>> seen_;
  std::vector<std::string> found_;
};

std::vector<std::string> matches(const std::string& pattern) {
  glob_t result{};
  const auto unreadable = [](const char*, int error) {
    return static_cast<int>(error != ENOENT && error != ENOTDIR);
  };
  const int rc = ::glob(pattern.c_str(), GLOB_NOSORT, unreadable, &result);
  std::vector<std::string> names(result.gl_pathv,
                                 result.gl_pathv + (rc == 0 ? result.gl_pathc : 0));
  ::globfree(&result);
  if (rc == GLOB_NOSPACE) throw EnvironmentError("out of memory for the names of --input");
  if (rc == GLOB_ABORTED) {
    throw EnvironmentError(
        cat("--input ", printable(pattern), ": cannot read a folder: ", std::strerror(errno)));
  }
  if (names.empty()) {
    throw EnvironmentError(cat("--input ", printable(pattern), ": no file matches the pattern"));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::vector<std::string> expand_inputs(const std::vector<std::string>& arguments,
                                       const std::vector<std::string>& endings) {
  std::vector<std::string> files;
  const auto add = [&](const std::string& name) {
    struct stat status {};
    if (::stat(name.c_str(), &status) != 0) {
      throw EnvironmentError(cat("cannot open ", printable(name), ": ", std::strerror(errno)));
    }
    if (!S_ISDIR(status.st_mode)) {
      files.push_back(name);
      return;
    }
    const std::vector<std::string> below = Folder(name, endings).files();
    files.insert(files.end(), below.begin(), below.end());
  };
  for (const std::string& argument : arguments) {
    struct stat status {};
    const bool pattern = argument.find_first_of("*?[") != std::string::npos;
    if (argument == "-") {
      files.push_back(argument);
    } else if (pattern && ::lstat(argument.c_str(), &status) != 0) {
      for (const std::string& name : matches(argument)) add(name);
    } else {
      add(argument);
    }
  }
  return files;
}

}  // namespace mt
