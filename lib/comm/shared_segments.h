// Memory that the ranks of a group on one node share, cut into one segment a rank, and what they
// wait for each other with. A big sum goes through it in pieces: each rank shows its piece, adds up
// its own slice of everybody's, and takes the slices of the others (ten times the rate of an
// MPI_Allreduce of the whole, measured with two ranks).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "comm/communicator.h"

namespace mt {

class SharedSegments {
 public:
  // What one rank shows the others.
  struct alignas(64) Segment {
    std::atomic<std::uint64_t> epoch{0};  // barriers that the rank has reached
    // What it reached the latest barriers for, two taking turns: nobody is two ahead.
    std::array<std::atomic<std::uint64_t>, 2> purpose{};
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  // base[r]: rank r's memory of bytes(piece) bytes, zero at first. `progress` is called now and
  // then while waiting; it may throw.
  SharedSegments(std::vector<std::byte*> base, int rank, std::int64_t piece,
                 std::function<void()> progress);
  [[nodiscard]] static std::int64_t bytes(std::int64_t piece);
  // Bytes of a piece for a group of `ranks`.
  [[nodiscard]] static std::int64_t piece_bytes(int ranks);

  // Collective each; semantics as in communicator.h. Throws Error with status kPeer and one text on
  // all ranks when they are not all in the same operation with as many bytes.
  void reduce_all(const Elements& x, ReduceOp op);
  void scatter_sum(const Elements& whole, const Elements& part);
  void gather_all(const Elements& part, const Elements& whole);
  void broadcast(const Elements& x, int root);
  void barrier();

 private:
  // Rank r's half of the memory for this piece; two halves take turns, so that a piece may be
  // written while a slow rank still reads the one before.
  [[nodiscard]] std::byte* half(std::size_t r) const;
  [[nodiscard]] Segment& segment(std::size_t r) const;
  void turn() { turn_ ^= 1U; }
  void wait_for_all();
  [[noreturn]] void differ() const;

  std::vector<std::byte*> base_;
  std::size_t rank_;
  std::int64_t piece_;
  std::function<void()> progress_;
  std::uint64_t epoch_ = 0;
  std::uint64_t purpose_ = 0;  // of the operation that goes on
  unsigned turn_ = 0;
};

}  // namespace mt
