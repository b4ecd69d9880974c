// mt-train: token shards to checkpoints.
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "base/json.h"
#include "base/signals.h"
#include "base/threads.h"
#include "cmd/run_main.h"
#include "comm/agreement.h"
#include "comm/communicator.h"
#include "tensor/tensor.h"
#include "train/step_products.h"
#include "train/training_run.h"
#include "train/training_start.h"

namespace {

// What the products of a micro-batch take, a line each, and totals.
void bench_gemm(const mt::TrainOptions& options, mt::Pool& pool) {
  const auto list =
      mt::step_products(options.model, options.run.micro_batch_size, options.data.seq_length);
  const mt::ProductRunner runner(list, pool);
  constexpr int kRounds = 5;
  const auto line = [](mt::Json json, double seconds, double operations) {
    json["seconds"] = seconds;
    json["gflops"] = operations / seconds * 1e-9;
    std::cout << mt::json_line(json) << "\n" << std::flush;
  };
  struct Total {
    double seconds = 0, operations = 0;
  } forward, step;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const mt::StepProduct& p = list[i];
    constexpr const char* kKinds[] = {"NT", "NN", "TN"};
    const double seconds = runner.seconds(i, kRounds);
    line({{"product", p.name},
          {"pass", p.forward ? "forward" : "backward"},
          {"kind", kKinds[static_cast<int>(p.kind)]},
          {"m", p.m},
          {"n", p.n},
          {"k", p.k},
          {"batch", p.batch},
          {"count", p.count},
          {"share", p.share}},
         seconds, p.operations());
    for (Total* total : {&step, p.forward ? &forward : nullptr}) {
      if (total == nullptr) continue;
      total->seconds += seconds;
      total->operations += p.operations();
    }
  }
  const std::string set = pool.device().kernels->name;
  const auto total = [&](const char* name, const Total& t) {
    line({{"total", name}, {"kernels", set}, {"threads", mt::threads()}}, t.seconds, t.operations);
  };
  total("forward", forward);
  total("step", step);
}

// What ranks must find under the same paths.
mt::Facts data_facts(const mt::TrainingStart& start) {
  mt::Facts facts;
  for (const mt::DataIdentity& identity : start.data->identities()) {
    facts.emplace_back("the training data", mt::json_line(identity.to_json()));
  }
  facts.emplace_back("where the run stands", mt::json_line(start.state.to_json()));
  return facts;
}

int run(const mt::TrainOptions& options, const mt::Options& given, const mt::RunContext& context) {
  const mt::StopSignals signals;
  const mt::Communicator& world = *context.world;
  const mt::ParallelOptions& parallel = options.parallel;
  mt::check_placement(parallel.grid(world.size()), context.hosts, world.rank(),
                      parallel.strict_placement);
  mt::TrainingStart start = mt::start_training(options, given, world);
  const std::string& host = context.hosts.at(static_cast<std::size_t>(world.rank())).name;
  mt::check_agreement(world, data_facts(start), host);
  mt::Pool pool(mt::cpu_device(context.cpu_set, context.threads));
  if (options.run.bench_gemm) {
    if (world.rank() == 0) bench_gemm(start.options, pool);
    return 0;
  }
  context.watch(parallel.hang_timeout);
  mt::TrainingRun training(std::move(start), world, pool, [&] { return signals.requested(); });
  return training.run();
}

}  // namespace

int main(int argc, char** argv) try {
  mt::TrainOptions options;
  return mt::run_main(
      {.name = "mt-train",
       .usage = "--data-path SHARD --save DIR [OPTION]...",
       .description =
           "Trains a GPT-2 model on token shards that mt-preprocess made, reports the loss, "
           "validates, and saves checkpoints from which the same command goes on bit for bit. "
           "SIGTERM and SIGUSR1 end it after the step in progress and a checkpoint (status 75). "
           "Example: mt-train --config share/config/shakespeare.conf --train-data-path train.h5 "
           "--valid-data-path valid.h5 --save run --load run --save-interval 100 "
           "--metrics run.jsonl",
       .add_options = [&](mt::Options& table) { options.add_to(table); },
       .run = [&](const mt::Options& given,
                  const mt::RunContext& context) { return run(options, given, context); },
       .ranks = mt::Ranks::kMany},
      argc, argv);
} catch (...) {
  return mt::status_of_failure("mt-train");
}
