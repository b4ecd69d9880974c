// Ranks that were started with different options, data or programs must not train together: their
// collectives would not fit, or worse, would.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace mt {

// (what, its value): "--seed", "1234". What ranks must have in common, in one order.
using Facts = std::vector<std::pair<std::string, std::string>>;

// Collective over world. Throws Error with status kPeer and one text on every rank if some rank's
// facts are not rank 0's: the first fact that differs, the ranks and hosts, expected and found.
// `host` is this rank's, for the message. Costs one small collective if all agree.
void check_agreement(const Communicator& world, const Facts& facts, const std::string& host);

// Version and digest of the running program's file. Throws EnvironmentError if it cannot be read.
[[nodiscard]] Facts program_facts();

}  // namespace mt
