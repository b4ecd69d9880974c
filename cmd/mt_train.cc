// mt-train: token shards to checkpoints.
#include <memory>
#include <utility>

#include "base/signals.h"
#include "cmd/run_main.h"
#include "comm/communicator.h"
#include "tensor/tensor.h"
#include "train/training_run.h"
#include "train/training_start.h"

namespace {

int run(const mt::TrainOptions& options, const mt::Options& given, const mt::RunContext& context) {
  const mt::StopSignals signals;
  mt::TrainingStart start = mt::start_training(options, given);
  const auto world = mt::make_single_communicator();
  mt::Pool pool(mt::cpu_device(context.cpu_set, context.threads));
  mt::TrainingRun training(std::move(start), *world, pool, [&] { return signals.requested(); });
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
                  const mt::RunContext& context) { return run(options, given, context); }},
      argc, argv);
} catch (...) {
  return mt::status_of_failure("mt-train");
}
