// Failures that one rank has and all are told, so that none is left waiting.
#pragma once

#include <exception>
#include <string>

#include "comm/communicator.h"

namespace mt {

// Collective: returns if no rank has an error. Otherwise every rank throws that of the lowest rank
// that has one, as an Error of the same kind whose message begins "rank R: " (in a group of one:
// the error itself).
void agree(const Communicator& world, const std::exception_ptr& error);

// Collective: body() runs on the root alone, and what it throws is thrown on all ranks, as above.
template <typename Body>
void run_on(int root, const Communicator& world, const Body& body) {
  std::exception_ptr error;
  try {
    if (world.rank() == root) body();
  } catch (...) {
    error = std::current_exception();
  }
  agree(world, error);
}

}  // namespace mt
