#include "comm/mpi_session.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <map>
#include <utility>

#include "base/error.h"
#include "comm/mpi_calls.h"

namespace mt {

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw Error(ExitStatus::kPeer, cat(call, ": ", text.data()));
}

int rank_in(MPI_Comm comm) {
  int rank = 0;
  check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  return rank;
}

int size_of(MPI_Comm comm) {
  int size = 0;
  check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  return size;
}

namespace {

constexpr std::size_t kHostBytes = 256;

std::vector<RankHost> find_hosts(const std::vector<int>& leaders) {
  std::array<char, kHostBytes> own{};
  ::gethostname(own.data(), own.size() - 1);
  std::vector<std::array<char, kHostBytes>> names(leaders.size());
  check(MPI_Allgather(own.data(), kHostBytes, MPI_BYTE, names.data(), kHostBytes, MPI_BYTE,
                      MPI_COMM_WORLD),
        "MPI_Allgather");
  std::map<int, int> node_of;  // by leader
  std::vector<RankHost> hosts;
  for (std::size_t r = 0; r < leaders.size(); ++r) {
    const int node = node_of.emplace(leaders[r], static_cast<int>(node_of.size())).first->second;
    hosts.push_back({.node = node, .name = names[r].data()});
  }
  return hosts;
}

}  // namespace

struct MpiSession::State {
  MPI_Comm node = MPI_COMM_NULL;  // the ranks of this rank's node
  MPI_Win memory = MPI_WIN_NULL;  // of the board
  std::vector<RankHost> hosts;
  std::unique_ptr<RankBoard> board;

  // The ranks of a node know it by the lowest of them, its leader.
  void find_nodes(int ranks_per_node) {
    const int rank = rank_in(MPI_COMM_WORLD);
    if (ranks_per_node > 0) {
      check(MPI_Comm_split(MPI_COMM_WORLD, rank / ranks_per_node, rank, &node), "MPI_Comm_split");
    } else {
      check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node),
            "MPI_Comm_split_type");
    }
    int leader = rank;
    check(MPI_Bcast(&leader, 1, MPI_INT, 0, node), "MPI_Bcast");
    std::vector<int> leaders(static_cast<std::size_t>(size_of(MPI_COMM_WORLD)));
    check(MPI_Allgather(&leader, 1, MPI_INT, leaders.data(), 1, MPI_INT, MPI_COMM_WORLD),
          "MPI_Allgather");
    hosts = find_hosts(leaders);
  }

  void make_board() {
    const int rank = rank_in(MPI_COMM_WORLD), me = rank_in(node);
    const int own = hosts.at(static_cast<std::size_t>(rank)).node;
    std::vector<int> ranks;
    for (std::size_t r = 0; r < hosts.size(); ++r) {
      if (hosts[r].node == own) ranks.push_back(static_cast<int>(r));
    }
    const std::int64_t bytes = RankBoard::bytes(ranks.size());
    void* base = nullptr;
    check(MPI_Win_allocate_shared(me == 0 ? bytes : 0, 1, MPI_INFO_NULL, node, &base, &memory),
          "MPI_Win_allocate_shared");
    MPI_Aint size = 0;
    int unit = 0;
    check(MPI_Win_shared_query(memory, 0, &size, &unit, &base), "MPI_Win_shared_query");
    if (me == 0) std::memset(base, 0, static_cast<std::size_t>(bytes));
    check(MPI_Barrier(node), "MPI_Barrier");
    board = std::make_unique<RankBoard>(static_cast<std::byte*>(base), std::move(ranks),
                                        static_cast<std::size_t>(me));
    board->note_cores();
    check(MPI_Barrier(node), "MPI_Barrier");
  }
};

MpiSession::MpiSession() : state_(std::make_unique<State>()) {
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
    throw EnvironmentError("MPI cannot start");
  }
  if (provided < MPI_THREAD_FUNNELED) {
    throw EnvironmentError("this MPI is not made for programs with threads");
  }
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  state_->find_nodes(find_launch().ranks_per_node);
  state_->make_board();
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() > 0) return;
  state_->board.reset();
  MPI_Win_free(&state_->memory);
  MPI_Comm_free(&state_->node);
  MPI_Finalize();
}

const std::vector<RankHost>& MpiSession::hosts() const {
  return state_->hosts;
}

const RankBoard& MpiSession::board() const {
  return *state_->board;
}

void MpiSession::end_all_ranks(int status) {
  MPI_Abort(MPI_COMM_WORLD, status);
  std::terminate();  // not reached
}

std::string mpi_version() {
  // One of the few calls that MPI allows before it is started.
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) {
    throw EnvironmentError("MPI_Get_library_version failed");
  }
  const std::string version = text.data();  // Open MPI counts the final NUL in the length
  return version.substr(0, version.find('\n'));
}

}  // namespace mt
