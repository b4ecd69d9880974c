// Writes through base/commit.h what its arguments say, for the fault injection of fault/commit.sh:
//   commit_probe file|replace|directory TARGET
#include <unistd.h>

#include <string>

#include "base/commit.h"
#include "base/error.h"
#include "base/log.h"

namespace {

void put(const std::string& target, mt::PendingFile::Existing existing) {
  mt::PendingFile file(target, existing);
  file.write(std::string(5000, 'a'));
  file.write_at(5000, std::string(5000, 'b'));
  file.commit();
}

void put_directory(const std::string& target) {
  mt::PendingDirectory directory(target, mt::PendingFile::Existing::kReplace);
  put(directory.path() + "/one", mt::PendingFile::Existing::kRefuse);
  put(directory.path() + "/two", mt::PendingFile::Existing::kRefuse);
  directory.commit();
}

}  // namespace

int main(int argc, char** argv) {
  mt::set_log("commit_probe", mt::LogLevel::kInfo);
  try {
    MT_ASSERT(argc == 3);
    const std::string what = argv[1];
    if (what == "directory") {
      put_directory(argv[2]);
    } else {
      put(argv[2], what == "replace" ? mt::PendingFile::Existing::kReplace
                                     : mt::PendingFile::Existing::kRefuse);
    }
    return 0;
  } catch (const mt::Error& error) {
    mt::log_error(error.what());
    return static_cast<int>(error.status());
  }
}
