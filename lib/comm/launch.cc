// How a launcher tells a process that it is a rank: the one place of lib/ that reads the
// environment, because that is the only channel a launcher has before MPI is started.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/option_text.h"
#include "comm/communicator.h"

namespace mt {

namespace {

std::optional<int> number(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr || *text == '\0') {
    return std::nullopt;
  }
  const std::string where = cat("environment variable ", name);
  const std::int64_t value = parse_count(text, where);
  if (value < 0 || value > std::numeric_limits<int>::max() - 1) {
    throw UsageError(cat(where, ": expected a count of ranks, found ", value));
  }
  return static_cast<int>(value);
}

Launch launch_of_environment() {
  struct Launcher {
    const char *size, *rank;
  };
  // mpirun; PMI launchers, MPICH's among them; srun. SLURM_NTASKS is no sign: the shell of a batch
  // job has it too.
  for (const Launcher& launcher :
       {Launcher{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}, Launcher{"PMI_SIZE", "PMI_RANK"},
        Launcher{"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}}) {
    if (const std::optional<int> size = number(launcher.size)) {
      return {std::max(*size, 1), number(launcher.rank).value_or(0)};
    }
  }
  // PMIx gives no size here. Whoever starts ranks by it means several.
  if (const std::optional<int> rank = number("PMIX_RANK")) {
    return {std::max(*rank + 1, 2), *rank};
  }
  return {};
}

}  // namespace

Launch find_launch() {
  Launch launch = launch_of_environment();
  launch.ranks_per_node = number("MT_RANKS_PER_NODE").value_or(0);
  return launch;
}

}  // namespace mt
