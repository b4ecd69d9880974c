// A group of ranks and what it can do together. A class receives the one communicator it uses. In a
// group of one every operation is the trivial one, and callers do not test for it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tensor/tensor.h"

namespace mt {

enum class ReduceOp { kSum, kMax };

class Communicator {
 public:
  virtual ~Communicator() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  // x = reduction over the ranks: overwritten, the same bits on every rank. Collective over this
  // group.
  virtual void all_reduce(const Tensor& x, ReduceOp op) const = 0;
  virtual void all_reduce(double* x, int count, ReduceOp op) const = 0;
  // Collective over this group.
  virtual void broadcast(const Tensor& x, int root) const = 0;
  virtual void barrier() const = 0;
};

// A group of one.
[[nodiscard]] std::unique_ptr<Communicator> make_single_communicator();

// What the environment that a launcher sets (mpirun, srun, PMI, PMIx) says of this process; size 1
// without a launcher. Read before MPI is started, which a single process never does. Throws
// UsageError if a variable is no number.
struct Launch {
  int size = 1;
  int rank = 0;
};
[[nodiscard]] Launch find_launch();

// "Open MPI v4.1.4 ...": the library in use. Does not start MPI.
[[nodiscard]] std::string mpi_version();

}  // namespace mt
