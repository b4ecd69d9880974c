// Processes as ranks. Inside a node everything but letters goes through shared memory; between
// nodes the same order of sums is made of messages.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <optional>
#include <vector>

#include "base/error.h"
#include "comm/combine.h"
#include "comm/communicator.h"
#include "comm/mpi_calls.h"
#include "comm/mpi_session.h"
#include "comm/shared_segments.h"

namespace mt {
namespace {

constexpr std::int64_t kChunk = std::int64_t{1} << 20;   // bytes of a message in a reduction
constexpr std::int64_t kLetter = std::int64_t{1} << 30;  // MPI counts in int
constexpr int kLetterTag = 1, kReduceTag = 2;

int as_int(std::int64_t bytes) {
  MT_ASSERT(bytes <= kLetter);
  return static_cast<int>(bytes);
}

bool power_of_two(int n) {
  return (n & (n - 1)) == 0;
}

// A communicator of MPI's. It is given back only in good times: freeing is collective.
class Handle {
 public:
  explicit Handle(MPI_Comm comm) : comm_(comm) {
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  ~Handle() {
    if (comm_ != MPI_COMM_NULL && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  [[nodiscard]] MPI_Comm get() const { return comm_; }

 private:
  MPI_Comm comm_;
};

// True if all ranks stand on one node, `node` being this one's. Collective.
bool on_one_node(MPI_Comm comm, int node) {
  std::array<int, 2> lowest{node, -node};
  check(MPI_Allreduce(MPI_IN_PLACE, lowest.data(), 2, MPI_INT, MPI_MIN, comm), "MPI_Allreduce");
  return lowest[0] == -lowest[1];
}

// The window behind SharedSegments.
class Window {
 public:
  explicit Window(MPI_Comm comm) {
    const int ranks = size_of(comm), me = rank_in(comm);
    const std::int64_t piece = SharedSegments::piece_bytes(ranks);
    void* own = nullptr;
    check(MPI_Win_allocate_shared(SharedSegments::bytes(piece), 1, MPI_INFO_NULL, comm, &own,
                                  &window_),
          "MPI_Win_allocate_shared");
    std::memset(own, 0, sizeof(SharedSegments::Segment));
    check(MPI_Barrier(comm), "MPI_Barrier");
    std::vector<std::byte*> base;
    for (int r = 0; r < ranks; ++r) {
      MPI_Aint bytes = 0;
      int unit = 0;
      void* memory = nullptr;
      check(MPI_Win_shared_query(window_, r, &bytes, &unit, &memory), "MPI_Win_shared_query");
      base.push_back(static_cast<std::byte*>(memory));
    }
    // A rank that waits here may owe another the rest of a letter: MPI moves only when it is
    // called.
    const auto progress = [comm] {
      int flag = 0;
      check(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &flag, MPI_STATUS_IGNORE), "MPI_Iprobe");
    };
    segments_.emplace(std::move(base), me, piece, progress);
  }
  ~Window() {
    if (std::uncaught_exceptions() == 0) MPI_Win_free(&window_);
  }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  [[nodiscard]] SharedSegments& segments() { return *segments_; }

 private:
  MPI_Win window_ = MPI_WIN_NULL;
  std::optional<SharedSegments> segments_;
};

class MpiCommunicator : public Communicator {
 public:
  // node: of this rank.
  MpiCommunicator(MPI_Comm comm, MpiSession::Carrier carrier, int node, const std::string& name)
      : Communicator(rank_in(comm), size_of(comm), name),
        comm_(comm),
        carrier_(carrier),
        node_(node) {
    if (size() > 1 && carrier == MpiSession::Carrier::kSharedMemory && on_one_node(comm, node)) {
      window_ = std::make_unique<Window>(comm);
    }
  }

  ~MpiCommunicator() override { publish_end(); }  // the members wait
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

 private:
  void reduce_all(const Elements& x, ReduceOp op) const override {
    if (window_) return window_->segments().reduce_all(x, op);
    const std::int64_t width = element_bytes(x.kind), step = kChunk / width;
    std::vector<std::byte> other(static_cast<std::size_t>(std::min(kChunk, x.bytes())));
    for (std::int64_t begin = 0; begin < x.count; begin += step) {
      const Elements piece{.data = static_cast<std::byte*>(x.data) + begin * width,
                           .count = std::min(step, x.count - begin),
                           .kind = x.kind};
      if (power_of_two(size())) {
        double_up(piece, op, other.data());
      } else {
        climb_down(piece, op, other.data());
      }
    }
  }

  // Recursive doubling: after step 2^k every rank holds the sum of its 2^(k+1) neighbours.
  void double_up(const Elements& x, ReduceOp op, void* other) const {
    const int bytes = as_int(x.bytes());
    for (int step = 1; step < size(); step *= 2) {
      const int partner = rank() ^ step;
      check(MPI_Sendrecv(x.data, bytes, MPI_BYTE, partner, kReduceTag, other, bytes, MPI_BYTE,
                         partner, kReduceTag, comm_.get(), MPI_STATUS_IGNORE),
            "MPI_Sendrecv");
      combine(x.kind, op, x.data, other, x.count);
    }
  }

  // The same tree for any number of ranks: up to rank 0, and the result down again.
  void climb_down(const Elements& x, ReduceOp op, void* other) const {
    const int bytes = as_int(x.bytes());
    for (int step = 1; step < size(); step *= 2) {
      if (rank() % (2 * step) == step) {
        check(MPI_Send(x.data, bytes, MPI_BYTE, rank() - step, kReduceTag, comm_.get()),
              "MPI_Send");
        break;
      }
      if (rank() + step < size()) {
        check(MPI_Recv(other, bytes, MPI_BYTE, rank() + step, kReduceTag, comm_.get(),
                       MPI_STATUS_IGNORE),
              "MPI_Recv");
        combine(x.kind, op, x.data, other, x.count);
      }
    }
    check(MPI_Bcast(x.data, bytes, MPI_BYTE, 0, comm_.get()), "MPI_Bcast");
  }

  void scatter_sum(const Elements& whole, const Elements& part) const override {
    if (window_) return window_->segments().scatter_sum(whole, part);
    if (power_of_two(size())) {
      halve(whole, part);
    } else {
      reduce_all(whole, ReduceOp::kSum);
    }
    const std::byte* const own = static_cast<std::byte*>(whole.data) + rank() * part.bytes();
    if (own != part.data) std::memcpy(part.data, own, static_cast<std::size_t>(part.bytes()));
  }

  // Recursive halving in the order of the tree: step 2^k gives away the parts of the ranks that
  // differ in bit k, so that neighbours add first.
  void halve(const Elements& whole, const Elements& part) const {
    const std::int64_t width = element_bytes(whole.kind), step = kChunk / width;
    std::vector<std::byte> other(static_cast<std::size_t>(std::min(kChunk, part.bytes())));
    const auto at = [&](int r, std::int64_t begin) {
      return static_cast<std::byte*>(whole.data) + (r * part.count + begin) * width;
    };
    for (int bit = 1; bit < size(); bit *= 2) {
      const int partner = rank() ^ bit;
      for (int r = 0; r < size(); ++r) {
        // r is mine in this step if it agrees with me in all bits up to this one.
        if (((r ^ rank()) & (2 * bit - 1)) != 0) continue;
        for (std::int64_t begin = 0; begin < part.count; begin += step) {
          const std::int64_t count = std::min(step, part.count - begin);
          check(MPI_Sendrecv(at(r ^ bit, begin), as_int(count * width), MPI_BYTE, partner,
                             kReduceTag, other.data(), as_int(count * width), MPI_BYTE, partner,
                             kReduceTag, comm_.get(), MPI_STATUS_IGNORE),
                "MPI_Sendrecv");
          combine(whole.kind, ReduceOp::kSum, at(r, begin), other.data(), count);
        }
      }
    }
  }

  void gather_all(const Elements& part, const Elements& whole) const override {
    if (window_) return window_->segments().gather_all(part, whole);
    std::byte* const own = static_cast<std::byte*>(whole.data) + rank() * part.bytes();
    if (own != part.data) std::memcpy(own, part.data, static_cast<std::size_t>(part.bytes()));
    for (int r = 0; r < size(); ++r) {
      spread(
          {.data = static_cast<std::byte*>(whole.data) + r * part.bytes(), .count = part.bytes()},
          r);
    }
  }

  void spread(const Elements& x, int root) const {
    for (std::int64_t begin = 0; begin < x.bytes(); begin += kLetter) {
      check(MPI_Bcast(static_cast<std::byte*>(x.data) + begin,
                      as_int(std::min(kLetter, x.bytes() - begin)), MPI_BYTE, root, comm_.get()),
            "MPI_Bcast");
    }
  }

  void broadcast_from(const Elements& x, int root) const override {
    if (window_) return window_->segments().broadcast(x, root);
    spread(x, root);
  }

  void wait_for_all() const override {
    if (window_) return window_->segments().barrier();
    check(MPI_Barrier(comm_.get()), "MPI_Barrier");
  }

  void send_to(const Tensor& x, int to) const override {
    // What is already sent gives its buffer back.
    std::erase_if(outbox_, [](Letter& letter) {
      int done = 0;
      check(MPI_Test(&letter.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      return done != 0;
    });
    for (std::int64_t begin = 0; begin < x.bytes(); begin += kLetter) {
      Letter letter{.request = MPI_REQUEST_NULL, .content = x};
      check(MPI_Isend(static_cast<const std::byte*>(x.data()) + begin,
                      as_int(std::min(kLetter, x.bytes() - begin)), MPI_BYTE, to, kLetterTag,
                      comm_.get(), &letter.request),
            "MPI_Isend");
      outbox_.push_back(std::move(letter));
    }
  }

  void receive_from(const Elements& x, int from) const override {
    for (std::int64_t begin = 0; begin < x.bytes(); begin += kLetter) {
      const int bytes = as_int(std::min(kLetter, x.bytes() - begin));
      MPI_Status status;
      check(MPI_Recv(static_cast<std::byte*>(x.data) + begin, bytes, MPI_BYTE, from, kLetterTag,
                     comm_.get(), &status),
            "MPI_Recv");
      int got = 0;
      check(MPI_Get_count(&status, MPI_BYTE, &got), "MPI_Get_count");
      MT_ASSERT(got == bytes);
    }
  }

  void wait_for_sends() const override {
    for (Letter& letter : outbox_) {
      check(MPI_Wait(&letter.request, MPI_STATUS_IGNORE), "MPI_Wait");
    }
    outbox_.clear();
  }

  [[nodiscard]] std::unique_ptr<Communicator> split_group(int color, int key,
                                                          const std::string& name) const override {
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(comm_.get(), color, key, &part), "MPI_Comm_split");
    return std::make_unique<MpiCommunicator>(part, carrier_, node_, name);
  }

  struct Letter {
    MPI_Request request;
    Tensor content;
  };

  Handle comm_;
  MpiSession::Carrier carrier_;
  int node_;
  std::unique_ptr<Window> window_;
  mutable std::vector<Letter> outbox_;
};

}  // namespace

std::unique_ptr<Communicator> MpiSession::world(Carrier carrier) const {
  MPI_Comm comm = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  const int node = hosts().at(static_cast<std::size_t>(rank_in(comm))).node;
  auto world = std::make_unique<MpiCommunicator>(comm, carrier, node, "world");
  world->publish_to(board().pulse());
  return world;
}

}  // namespace mt
