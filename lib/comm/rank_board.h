// What the ranks of one node tell each other beside their work, in memory that they share: where
// each of them is (pulse.h), and, when the job fails, which of them says why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/pulse.h"

namespace mt {

class RankBoard {
 public:
  // memory: bytes(ranks.size()) bytes, zero at first, that all ranks of the node share and that
  // must outlive the board. ranks: theirs in the world, ascending; me: this one's index in it.
  RankBoard(std::byte* memory, std::vector<int> ranks, std::size_t me);
  [[nodiscard]] static std::int64_t bytes(std::size_t ranks);

  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }
  [[nodiscard]] std::size_t me() const { return me_; }
  [[nodiscard]] RankSlot& slot(std::size_t i) const;
  [[nodiscard]] Pulse pulse() const { return Pulse(&slot(me_)); }

  // Cores for this rank: those that it may run on, divided among the ranks of the node that may
  // run on the same; 0 if not known. Every rank of the node must have called note_cores().
  [[nodiscard]] int share_of_cores() const;
  void note_cores() const;

  // True for the first rank of the node that asks, ever: it says why the job ends.
  [[nodiscard]] bool take_voice() const;

  // For a rank that has failed with `status` and an error of this text: decides in at most
  // some seconds who says it. All ranks of the node fail alike (bad options): the lowest says it
  // for all. Else the first does, for itself; one that only lost a peer (kPeer) leaves the others
  // time. The node of rank 0 goes before other nodes.
  enum class Voice { kSilent, kForItself, kForAll };
  [[nodiscard]] Voice ask_for_voice(int status, const std::string& text) const;

 private:
  struct Head;
  [[nodiscard]] Head& head() const;

  std::byte* memory_;
  std::vector<int> ranks_;
  std::size_t me_;
};

}  // namespace mt
