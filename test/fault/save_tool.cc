// A saver small enough to be killed before each of its system calls.
//   save_tool save RUN ITERATION KEEP   saves a sample checkpoint as a trainer does
//   save_tool async RUN ITERATION KEEP  the same in the background
//   save_tool check RUN                 prints the iteration that a resumed job would load, after
//                                       reading all of it; "none" if there is none
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/commit.h"
#include "base/error.h"
#include "base/log.h"
#include "ckpt/async_save.h"
#include "test/fault/sample_checkpoint.h"

namespace {

int run(int argc, char** argv) {
  if (argc == 5 && std::strcmp(argv[1], "async") == 0) {
    const std::string directory = argv[2];
    if (!mt::exists(directory)) {
      mt::make_directories(directory);
    }
    const mt::DirectoryLock lock(directory);
    const auto world = mt::make_single_communicator();
    mt::Pool pool(mt::cpu_device("baseline", 1));
    mt::RunSaver saver({.run = directory, .keep = std::atoll(argv[4]), .before = {}}, *world);
    auto sample = mt::testing_data::sample_checkpoint(std::atoll(argv[3]));
    saver.start(sample.content, false, pool);
    for (const auto& values : sample.values) {  // training goes on with other numbers
      std::fill(values->begin(), values->end(), 0xEE);
    }
    const mt::RunSaver::Outcome outcome = saver.wait();
    if (!outcome.failure.empty()) {
      throw mt::EnvironmentError(outcome.failure);
    }
    return 0;
  }
  if (argc == 5 && std::strcmp(argv[1], "save") == 0) {
    const std::string directory = argv[2];
    const std::int64_t iteration = std::atoll(argv[3]);
    if (!mt::exists(directory)) {
      mt::make_directories(directory);
    }
    const mt::DirectoryLock lock(directory);
    const auto world = mt::make_single_communicator();
    const auto sample = mt::testing_data::sample_checkpoint(iteration);
    mt::save_checkpoint(mt::iteration_directory(directory, iteration), sample.content, *world,
                        false);
    mt::retain_checkpoints(directory, std::atoll(argv[4]));
    return 0;
  }
  if (argc == 3 && std::strcmp(argv[1], "check") == 0) {
    const mt::FoundCheckpoint found = mt::find_checkpoint(argv[2]);
    if (found.absent) {
      std::puts("none");
      return 0;
    }
    const std::int64_t iteration = mt::CheckpointReader(found.directory).iteration();
    mt::testing_data::check_sample(found.directory, iteration);
    std::printf("%lld\n", static_cast<long long>(iteration));
    return 0;
  }
  throw mt::UsageError("usage: save_tool save|async RUN ITERATION KEEP | check RUN");
}

}  // namespace

int main(int argc, char** argv) {
  mt::set_log("save_tool", mt::LogLevel::kInfo);
  try {
    return run(argc, argv);
  } catch (const mt::Error& error) {
    mt::log_error(error.what());
    return static_cast<int>(error.status());
  }
}
