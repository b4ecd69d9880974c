// A group of ranks and what it can do together. A class receives the one communicator it uses. In a
// group of one every operation is the trivial one, and callers do not test for it.
//
// Sums and maxima are taken in one order whatever the transport, the number of bytes and the call:
// the balanced binary tree over the ranks, ((0 + 1) + (2 + 3)) + ..., where a missing partner
// leaves a part as it is. So a sum over 2^k ranks is the upper end of a tree whose lower end each
// rank has computed for itself. A maximum of something that is not a number is not a number.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "comm/ledger.h"
#include "comm/pulse.h"
#include "tensor/tensor.h"

namespace mt {

enum class ReduceOp { kSum, kMax };

// Elements as a transport sees them.
enum class ElementKind : std::uint8_t { kF32, kF64, kI32, kByte };
struct Elements {
  void* data = nullptr;
  std::int64_t count = 0;
  ElementKind kind = ElementKind::kByte;
  [[nodiscard]] std::int64_t bytes() const;
};

// Every operation but send and receive is collective over the group: all ranks call it, in one
// order, with shapes that fit. Tensors are f32 or i32 where something is reduced, of any type where
// bytes are moved. Throws Error with status kPeer when a rank of the group was lost; the group is
// of no use then. Not shared between threads.
class Communicator {
 public:
  // Collective: a group ends where all its ranks end it.
  virtual ~Communicator() { pulse_.leave(); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  // "world", "tensor", ...: for messages and metrics.
  [[nodiscard]] const std::string& name() const { return name_; }
  // What this rank asked for since the start. A group of one counts nothing: nothing moves.
  [[nodiscard]] const Ledger& ledger() const { return ledger_; }

  // x = reduction over the ranks: overwritten, the same bits on every rank.
  void all_reduce(const Tensor& x, ReduceOp op) const;
  void all_reduce(double* x, std::int64_t count, ReduceOp op) const;
  // part [n] = this rank's n elements of the sum of whole [size * n], the bits of all_reduce. whole
  // is left undefined, but for part where it lies in its place in whole.
  void reduce_scatter(const Tensor& whole, const Tensor& part) const;
  // whole [size * n] = the parts [n] in the order of the ranks. part may lie in its place in whole.
  void all_gather(const Tensor& part, const Tensor& whole) const;
  void broadcast(const Tensor& x, int root) const;
  // The same for memory of the host.
  void all_gather(const void* part, std::int64_t bytes, void* whole) const;
  void broadcast(void* x, std::int64_t bytes, int root) const;
  void barrier() const;

  // Between two ranks, in order. send returns at once and keeps x's buffer until it is sent: its
  // content must not change before finish_sends(). receive overwrites x and waits.
  void send(const Tensor& x, int to) const;
  void receive(const Tensor& x, int from) const;
  void finish_sends() const;

  // The group of those that give one color, in the order of (key, rank). Collective. The result
  // must not outlive this communicator.
  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key,
                                                    const std::string& name) const;

  // Tells the watchdog of the job, if there is one, that this rank goes on, and with what
  // ("training", "saving"; 15 bytes are kept). For work that may take long while others wait.
  void progress(std::int64_t step, std::string_view activity) const {
    pulse_.progress(step, activity);
  }
  // From here on this group and those split from it publish what they wait in.
  void publish_to(const Pulse& pulse) { pulse_ = pulse; }

 protected:
  Communicator(int rank, int size, std::string name)
      : rank_(rank), size_(size), name_(std::move(name)), short_name_(short_text(name_)) {}
  // For a destructor that waits for the other ranks.
  void publish_end() const { pulse_.enter(Wait::kEnd, short_name_, 0, -1); }

 private:
  class Waiting;  // publishes while it lives

  // Called with size() > 1 only.
  virtual void reduce_all(const Elements& x, ReduceOp op) const = 0;
  virtual void scatter_sum(const Elements& whole, const Elements& part) const = 0;
  virtual void gather_all(const Elements& part, const Elements& whole) const = 0;
  virtual void broadcast_from(const Elements& x, int root) const = 0;
  virtual void wait_for_all() const = 0;
  virtual void send_to(const Tensor& x, int to) const = 0;
  virtual void receive_from(const Elements& x, int from) const = 0;
  virtual void wait_for_sends() const = 0;
  [[nodiscard]] virtual std::unique_ptr<Communicator> split_group(
      int color, int key, const std::string& name) const = 0;

  void count(CommCall call, std::int64_t bytes) const { ledger_.add(call, bytes); }

  int rank_, size_;
  std::string name_;
  ShortText short_name_;
  Pulse pulse_;
  mutable Ledger ledger_;
};

// A group of one.
[[nodiscard]] std::unique_ptr<Communicator> make_single_communicator();

// Threads of this process as ranks, for tests: calls body(world) once a rank, each on a thread of
// its own, and returns when all have ended. The first exception of a rank is thrown again here, and
// ranks that wait for the others get an Error with status kPeer.
using RankBody = std::function<void(const Communicator& world)>;
void run_local_ranks(int size, const RankBody& body);

// What the environment that a launcher sets (mpirun, srun, PMI, PMIx) says of this process; size 1
// without a launcher. Read before MPI is started, which a single process never does. Throws
// UsageError if a variable is no number.
struct Launch {
  int size = 1;
  int rank = 0;
  // For tests, of MT_RANKS_PER_NODE: each so many ranks count as a node of their own; 0: the
  // system is asked.
  int ranks_per_node = 0;
};
[[nodiscard]] Launch find_launch();

// "Open MPI v4.1.4 ...": the library in use. Does not start MPI.
[[nodiscard]] std::string mpi_version();

}  // namespace mt
