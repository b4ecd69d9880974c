// What a communicator moved, counted where it is asked to: calls and payload bytes of this rank.
// Not the traffic that an algorithm makes of them, so that a count is the same over every transport
// and can be held against the formulas of the papers (Narayanan et al., arXiv:2104.04473, section
// 3).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace mt {

enum class CommCall : std::uint8_t {
  kAllReduce,      // bytes of the tensor
  kReduceScatter,  // bytes of the whole
  kAllGather,      // bytes of the whole
  kBroadcast,      // bytes of the tensor
  kSend,
  kReceive,
  kBarrier,
};
constexpr std::size_t kCommCalls = 7;

// "all_reduce", ...: the name in metrics.
[[nodiscard]] constexpr const char* comm_call_name(CommCall call) {
  constexpr std::array<const char*, kCommCalls> names{
      "all_reduce", "reduce_scatter", "all_gather", "broadcast", "send", "receive", "barrier"};
  return names.at(static_cast<std::size_t>(call));
}

struct Ledger {
  std::array<std::int64_t, kCommCalls> calls{}, bytes{};

  void add(CommCall call, std::int64_t moved) {
    ++calls.at(static_cast<std::size_t>(call));
    bytes.at(static_cast<std::size_t>(call)) += moved;
  }
  [[nodiscard]] std::int64_t calls_of(CommCall call) const {
    return calls.at(static_cast<std::size_t>(call));
  }
  [[nodiscard]] std::int64_t bytes_of(CommCall call) const {
    return bytes.at(static_cast<std::size_t>(call));
  }
};

}  // namespace mt
