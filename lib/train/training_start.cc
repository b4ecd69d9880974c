#include "train/training_start.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <limits>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "comm/texts.h"
#include "train/rank_memory.h"

namespace mt {

namespace {

bool same_path(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const auto whole = [](const std::string& path) {
    std::error_code error;
    auto resolved = std::filesystem::weakly_canonical(path, error);
    if (error) throw EnvironmentError(cat("cannot look at ", path, ": ", error.message()));
    return resolved;
  };
  return whole(a) == whole(b);
}

std::string gib(double bytes) {
  TextStream out;
  out << std::fixed << std::setprecision(bytes < 1024.0 * (1U << 30) ? 2 : 0) << bytes / (1U << 30)
      << " GiB";
  return out.str();
}

void find_weights(TrainingStart& start, const Communicator& world) {
  const RunOptions& run = start.options.run;
  if (run.load.empty()) return;
  const bool anew = !run.save.empty() && same_path(run.save, run.load);
  // Rank 0 chooses: another rank might see an older state of the folder.
  FoundCheckpoint found;
  if (world.rank() == 0) found = find_checkpoint(run.load);
  found.directory = broadcast_text(world, found.absent ? "" : found.directory);
  found.absent = found.directory.empty();
  if (found.absent) {
    if (!anew || run.finetune) {
      throw EnvironmentError(
          cat("--load ", run.load, ": holds no checkpoint",
              run.finetune || run.save.empty() ? "" : "; to start anew, give the same as --save"));
    }
    log_info(cat("--load ", run.load, ": no checkpoint yet, starting anew"));
    return;
  }
  start.same_folder = anew && !run.finetune;
  start.checkpoint.emplace(found.directory);
}

// The state of the checkpoint and the options that follow from it.
void resume(TrainingStart& start, const Options& given) {
  const CheckpointReader& reader = *start.checkpoint;
  const std::string& where = reader.directory();
  if (reader.training().is_null()) {
    throw DataError(cat("--load ", where,
                        ": holds weights and no state of training; --finetune starts from them"));
  }
  start.state = TrainingState::from_json(reader.training(), cat(where, "/manifest.json: training"));
  if (start.state.iteration != reader.iteration()) {
    throw DataError(cat(where, ": training state of iteration ", start.state.iteration,
                        " in a checkpoint of iteration ", reader.iteration()));
  }
  resume_options(start.state, where, given, start.options);
  const RunLength& length = start.options.run.length;
  const std::int64_t done = length.step(start.state.iteration, start.state.consumed_samples,
                                        start.options.data.seq_length);
  if (length.in_unit() < done) {
    throw UsageError(cat("--train-", unit_name(length.unit()), " ", length.in_unit(),
                         ": checkpoint ", where, " has done ", done, " already"));
  }
}

void take_model(TrainingStart& start, const Options& given) {
  ModelConfig& model = start.options.model;
  if (!start.checkpoint) {
    if (!given.given("max-position-embeddings")) {
      model.max_position_embeddings = start.options.data.seq_length;
    }
    return;
  }
  const std::string where = start.checkpoint->directory() + "/manifest.json: model";
  const double hidden_dropout = model.hidden_dropout;
  const double attention_dropout = model.attention_dropout;
  model = reconcile(ModelConfig::from_json(start.checkpoint->model(), where), model, given);
  model.hidden_dropout = hidden_dropout;  // these belong to training
  model.attention_dropout = attention_dropout;
}

// The sizes of the model against the data.
void check_fit(TrainingStart& start) {
  ModelConfig& model = start.options.model;
  const TokenShardReader& shard = start.data->shard();
  if (start.checkpoint) {
    const std::string& where = start.checkpoint->directory();
    const std::string digest = to_hex(shard.tokenizer_digest());
    const std::string& carried = start.checkpoint->tokenizer_digest();
    if (!carried.empty() && carried != digest) {
      throw DataError(cat(shard.path(), ": made with tokenizer ", digest, ", but checkpoint ",
                          where, " with ", carried));
    }
    if (shard.vocab_size() > model.vocab_size) {
      throw DataError(cat(shard.path(), ": has a vocabulary of ", shard.vocab_size(),
                          ", but checkpoint ", where, " of ", model.vocab_size));
    }
  } else {
    model.vocab_size = shard.vocab_size();
  }
  model.check();
  if (start.options.data.seq_length > model.max_position_embeddings) {
    throw UsageError(cat("--seq-length ", start.options.data.seq_length,
                         ": longer than --max-position-embeddings ",
                         model.max_position_embeddings));
  }
}

// Ranks of the world on the node of this one.
int ranks_here(const Communicator& world) {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  const auto hosts = gather_texts(world, name.data());
  return static_cast<int>(std::count(hosts.begin(), hosts.end(), std::string(name.data())));
}

void check_memory(const TrainOptions& options, const GridShape& grid, const Communicator& world) {
  const std::int64_t micro = options.run.micro_batch_size;
  const std::int64_t length = options.data.seq_length;
  const int here = ranks_here(world);
  constexpr double kHostBytesPerToken = 28;  // five arrays of a batch, and the window
  const double needed =
      here * (static_cast<double>(predicted_memory(options, grid)) +
              kHostBytesPerToken * static_cast<double>(options.run.global_batch_size / grid.data) *
                  static_cast<double>(length));
  // One answer for all: ranks of a node see its memory at different times.
  auto available = -static_cast<double>(available_memory());
  world.all_reduce(&available, 1, ReduceOp::kMax);
  available = -available;
  if (needed <= available) return;
  throw UsageError(cat("this run needs about ", gib(needed),
                       here > 1 ? cat(" for ", here, " ranks of a node") : "", " (",
                       options.model.parameter_count(), " parameters, --micro-batch-size ", micro,
                       ", --global-batch-size ", options.run.global_batch_size, ", --seq-length ",
                       length, options.run.async_save ? ", --async-save" : "", "), but ",
                       gib(available), " of memory are available"));
}

// The shards of the command, with how far they were read.
void take_sources(TrainingStart& start) {
  std::vector<TrainingState::Source> sources;
  const auto& identities = start.data->identities();
  for (std::size_t i = 0; i < identities.size(); ++i) {
    sources.push_back(
        {.identity = identities[i], .weight = start.data->train().sources()[i].weight});
  }
  if (start.checkpoint && !start.options.run.finetune) {
    std::string change;
    try {
      change = resume_sources(start.state.sources, start.checkpoint->directory(), sources);
    } catch (const DataError& error) {
      throw DataError(cat(start.data->shard().path(), ": ", error.what()));
    }
    if (!change.empty()) log_info(change);
  }
  start.state.sources = std::move(sources);
}

// A save that cannot work shall fail now and not in an hour. One fixed name, so that a process that
// dies here leaves at most one such file, and the next job removes it.
void probe_folder(const std::string& save) {
  const std::string path = save + "/.probe";
  constexpr std::string_view kBytes = "written and removed when a job starts\n";
  FileDescriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!file.valid()) {
    throw EnvironmentError(cat("--save ", save, ": cannot write: ", std::strerror(errno)));
  }
  try {
    write_fully(file.get(), kBytes.data(), kBytes.size(), path);
    sync_file(file.get(), path);
    file.close(path);
  } catch (const EnvironmentError&) {
    ::unlink(path.c_str());
    throw;
  }
  if (::unlink(path.c_str()) != 0) {
    throw EnvironmentError(cat(path, ": cannot remove: ", std::strerror(errno)));
  }
}

void prepare_folder(TrainingStart& start) {
  const std::string& save = start.options.run.save;
  if (!start.lock) {
    make_directories(save);
    start.lock.emplace(save);
  }
  const std::int64_t newest = newest_iteration(save);
  if (newest > start.state.iteration && !start.same_folder) {
    throw UsageError(
        cat("--save ", save, ": holds iteration ", newest,
            start.options.run.load.empty() || start.options.run.finetune
                ? " of another run; --load goes on from it"
                : cat(", later than ", start.state.iteration, " of --load ",
                      start.checkpoint ? start.checkpoint->directory() : start.options.run.load)));
  }
  probe_folder(save);
}

// What a checkpoint of this run will say.
void fill_state(TrainingStart& start) {
  const TrainOptions& options = start.options;
  TrainingState& state = start.state;
  state.length = options.run.length;
  state.ramp = options.run.ramp;
  state.global_batch_size = options.run.global_batch_size;
  state.seq_length = options.data.seq_length;
  state.seed = options.run.seed;
  state.hidden_dropout = options.model.hidden_dropout;
  state.attention_dropout = options.model.attention_dropout;
  state.schedule = options.schedule;
  state.adam = options.adam;
  state.packing = options.data.packing;
}

}  // namespace

std::int64_t predicted_memory(const TrainOptions& options, const GridShape& grid) {
  const RunOptions& run = options.run;
  const bool alone = grid.tensor * grid.pipeline * grid.data == 1 && !options.parallel.tree() &&
                     options.parallel.recompute_granularity == "none";
  RankMemory rank;
  if (!alone) {
    rank = first_rank_memory(options.model, options.parallel,
                             {.micro_batch_size = run.micro_batch_size,
                              .global_batch_size = run.global_batch_size,
                              .seq_length = options.data.seq_length,
                              .ramp = run.ramp},
                             grid);
  }
  const std::int64_t bytes =
      alone ? options.model.training_bytes_estimate(run.micro_batch_size, options.data.seq_length,
                                                    run.global_batch_size)
            : rank.total();
  if (!run.async_save) return bytes;
  // It copies weights and moments.
  return bytes + (alone ? 12 * options.model.parameter_count() : rank.weights + rank.moments);
}

std::int64_t available_memory() {
  auto available = static_cast<double>(std::numeric_limits<std::int64_t>::max());
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  double kibibytes = 0;
  while (meminfo >> key >> kibibytes) {
    if (key == "MemAvailable:") available = kibibytes * 1024;
    meminfo.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  double limit = 0;
  double used = 0;
  std::ifstream group_limit("/sys/fs/cgroup/memory.max");  // "max" where there is no limit
  std::ifstream group_use("/sys/fs/cgroup/memory.current");
  if (group_limit >> limit && group_use >> used) available = std::min(available, limit - used);
  return available >= 9e18 ? std::numeric_limits<std::int64_t>::max()
                           : static_cast<std::int64_t>(std::max(available, 0.0));
}

TrainingStart start_training(const TrainOptions& options, const Options& given,
                             const Communicator& world) {
  TrainingStart start;
  start.options = options;
  const RunOptions& run = start.options.run;
  start.options.data.check();
  run.check_options();
  options.adam.check();
  // Before the checkpoint is chosen, so that no other job adds one behind our back.
  const bool saves = !run.save.empty() && !run.bench_gemm;
  const bool leads = world.rank() == 0;
  if (saves && exists(run.save) && is_checkpoint(run.save)) {
    throw UsageError(cat("--save ", run.save,
                         ": is a checkpoint; expected a folder in which checkpoints appear"));
  }
  if (leads && saves && exists(run.save)) start.lock.emplace(run.save);
  find_weights(start, world);
  if (start.checkpoint && !run.finetune) resume(start, given);
  start.options.run.check_sizes(start.options.data.seq_length);
  if (!start.checkpoint || run.finetune) {
    if (start.options.schedule.lr <= 0) {
      throw UsageError(cat("--lr ", start.options.schedule.lr, ": must be given, above 0"));
    }
    start.options.schedule.check(run.length.in_unit(), run.length.unit());
  }
  if (start.options.data.seq_length <= 0) {
    throw UsageError(
        cat("--seq-length ", start.options.data.seq_length, ": must be given, at least 1"));
  }
  take_model(start, given);
  const bool validates = run.eval_iters > 0 || start.options.data.full_validation;
  start.data = std::make_unique<TrainingData>(
      start.options.data, static_cast<std::uint32_t>(run.seed),
      validates ? TrainingData::Validation::kNeeded : TrainingData::Validation::kNone,
      given.given("split"));
  check_fit(start);
  start.grid = start.options.parallel.check(start.options.model,
                                            {.micro_batch_size = run.micro_batch_size,
                                             .global_batch_size = run.global_batch_size,
                                             .seq_length = start.options.data.seq_length,
                                             .ramp = run.ramp},
                                            world.size());
  check_memory(start.options, start.grid, world);
  take_sources(start);
  if (leads && saves) prepare_folder(start);
  fill_state(start);
  return start;
}

}  // namespace mt
