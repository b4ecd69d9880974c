#include "ckpt/common_failure.h"

#include <algorithm>
#include <new>
#include <vector>

#include "base/error.h"
#include "comm/texts.h"

namespace mt {
namespace {

struct Failure {
  ExitStatus status = ExitStatus::kInternal;
  std::string message;
};

Failure describe(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return {known.status(), known.what()};
  } catch (const std::bad_alloc&) {
    return {ExitStatus::kEnvironment, "out of memory"};
  } catch (const std::exception& other) {
    return {ExitStatus::kInternal, other.what()};
  } catch (...) {
    return {ExitStatus::kInternal, "an exception of unknown kind"};
  }
}

[[noreturn]] void raise(const Failure& failure) {
  switch (failure.status) {
    case ExitStatus::kUsage:
      throw UsageError(failure.message);
    case ExitStatus::kData:
      throw DataError(failure.message);
    case ExitStatus::kEnvironment:
      throw EnvironmentError(failure.message);
    case ExitStatus::kNumeric:
      throw NumericError(failure.message);
    default:
      throw Error(failure.status, failure.message);
  }
}

}  // namespace

void agree(const Communicator& world, const std::exception_ptr& error) {
  if (world.size() == 1) {
    if (error) std::rethrow_exception(error);
    return;
  }
  double first = error ? -world.rank() : -world.size();
  world.all_reduce(&first, 1, ReduceOp::kMax);
  const int failed = static_cast<int>(-first);
  if (failed == world.size()) return;
  std::string text;
  if (failed == world.rank()) {
    const Failure mine = describe(error);
    text = cat(static_cast<int>(mine.status), " ", mine.message);
  }
  text = broadcast_text(world, text, failed);
  const std::size_t space = text.find(' ');
  raise({static_cast<ExitStatus>(std::stoi(text.substr(0, space))),
         cat("rank ", failed, ": ", text.substr(space + 1))});
}

}  // namespace mt
