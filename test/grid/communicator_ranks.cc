// The cases of test/communicator_cases.h as one rank of an MPI job.
// usage: communicator_ranks shared|messages
#include <exception>
#include <iostream>
#include <string>

#include "comm/mpi_session.h"
#include "communicator_cases.h"

int main(int argc, char** argv) {
  using mt::MpiSession;
  if (argc != 2) return 2;
  MpiSession session;
  try {
    const auto world =
        session.world(std::string(argv[1]) == "messages" ? MpiSession::Carrier::kMessages
                                                         : MpiSession::Carrier::kSharedMemory);
    mt::check_communicator(*world);
    world->barrier();
    if (world->rank() == 0) std::cout << world->size() << " ranks: all cases hold\n" << std::flush;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    MpiSession::end_all_ranks(70);
  }
  return 0;
}
