// A program of several ranks, one of which ends badly: how, and in which phase, its options say.
// Every rank adds up its number again and again, and each time tells the watchdog.
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <new>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "cmd/run_main.h"
#include "tensor/tensor.h"

namespace {

struct Plan {
  std::string how = "no", phase = "computing", start;
  std::int64_t rank = 1, rounds = 3;
  double hang_timeout = 0, compute = 0;
};

void end_badly(const std::string& how, int rank) {
  volatile int* nowhere = nullptr;
  if (how == "throw") throw mt::DataError("shard.h5: expected 1, found 2");
  if (how == "environment") throw mt::EnvironmentError("disk full");
  if (how == "alike") throw mt::UsageError("--rounds 3: expected 4");
  if (how == "each") throw mt::NumericError(mt::cat("rank ", rank, " found no number"));
  if (how == "memory") throw std::bad_alloc();
  if (how == "bug") throw std::logic_error("vector");
  if (how == "lost") throw mt::Error(mt::ExitStatus::kPeer, "a rank was lost");
  if (how == "exit") std::exit(0);
  if (how == "_exit") ::_exit(3);
  if (how == "abort") std::abort();
  if (how == "kill") std::raise(SIGKILL);
  if (how == "segfault") *nowhere = 1;
  if (how == "stop") std::raise(SIGSTOP);
  if (how == "loop") {
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

int run(const Plan& plan, const mt::RunContext& context) {
  const mt::Communicator& world = *context.world;
  context.watch(plan.hang_timeout);
  mt::log_info("information");
  mt::Pool pool(mt::cpu_device("", 1));
  const bool all = plan.rank < 0;
  const bool bad = all || world.rank() == plan.rank;
  const auto sibling = world.split(world.rank() % 2, world.rank(), "sibling");
  for (std::int64_t round = 1; round <= plan.rounds; ++round) {
    world.progress(round, "adding");
    double sum = 1;
    const bool now = bad && round == plan.rounds;
    if (now && plan.phase == "computing") end_badly(plan.how, world.rank());
    if (now && plan.phase == "barrier") world.barrier();  // where the others add
    std::this_thread::sleep_for(std::chrono::duration<double>(plan.compute));
    world.all_reduce(&sum, 1, mt::ReduceOp::kSum);
    if (sum != world.size()) throw mt::NumericError("a wrong sum");
    const mt::Tensor letter =
        mt::Tensor::zero(pool, {4}, mt::DType::kF32, mt::MemoryKind::kWorkspace);
    const int next = (world.rank() + 1) % world.size();
    const int last = (world.rank() + world.size() - 1) % world.size();
    world.send(letter, next);
    if (now && plan.phase == "letter") end_badly(plan.how, world.rank());
    world.receive(letter, last);
    world.finish_sends();
  }
  if (bad && plan.phase == "end") end_badly(plan.how, world.rank());
  if (world.rank() == 0) std::cout << world.size() << " ranks, " << context.threads << " threads\n";
  return plan.how == "requeue" ? 75 : 0;
}

}  // namespace

int main(int argc, char** argv) try {
  Plan plan;
  return mt::run_main(
      {.name = "mt-probe",
       .usage = "[options]",
       .description = "Tests.",
       .add_options =
           [&](mt::Options& table) {
             table.add("how", &plan.how, "HOW", "the bad end");
             table.add("phase", &plan.phase, "PHASE", "where it comes");
             table.add("rank", &plan.rank, "N", "whose; -1: of all");
             table.add("rounds", &plan.rounds, "N", "rounds");
             table.add("hang-timeout", &plan.hang_timeout, "SECONDS", "the watchdog's limit");
             table.add("compute", &plan.compute, "SECONDS", "that each round takes");
             table.add("start", &plan.start, "HOW",
                       "the bad end of rank 1 before MPI starts there");
             const std::string word = argc == 3 ? argv[1] : "";
             if (word == "--start" && mt::find_launch().rank == 1) end_badly(argv[2], 1);
           },
       .run = [&](const mt::Options&, const mt::RunContext& context) { return run(plan, context); },
       .ranks = mt::Ranks::kMany},
      argc, argv);
} catch (...) {
  return mt::status_of_failure("mt-probe");
}
