#include <mpi.h>

#include <array>

#include "base/error.h"
#include "comm/communicator.h"

namespace mt {

std::string mpi_version() {
  // One of the few calls that MPI allows before it is started.
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) {
    throw EnvironmentError("MPI_Get_library_version failed");
  }
  const std::string version = text.data();  // Open MPI counts the final NUL in the length
  return version.substr(0, version.find('\n'));
}

}  // namespace mt
