// For the two files that call MPI.
#pragma once

#include <mpi.h>

namespace mt {

// Throws Error with status kPeer and MPI's text unless code is MPI_SUCCESS.
void check(int code, const char* call);
[[nodiscard]] int rank_in(MPI_Comm comm);
[[nodiscard]] int size_of(MPI_Comm comm);

}  // namespace mt
