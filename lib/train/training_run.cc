#include "train/training_run.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <iomanip>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "ckpt/grid_content.h"
#include "ckpt/parameters.h"
#include "train/replicas.h"

namespace mt {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::int64_t minor_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

std::string digits(double value, int precision) {
  TextStream out;
  out << std::setprecision(precision) << value;
  return out.str();
}

TrainerSettings trainer_settings(const TrainingStart& start) {
  return {.micro_batch_size = start.options.run.micro_batch_size,
          .global_batch_size = start.options.run.global_batch_size,
          .seq_length = start.options.data.seq_length,
          .seed = static_cast<std::uint32_t>(start.options.run.seed),
          .end_of_document = start.data->shard().end_of_document(),
          .packing = start.options.data.packing,
          .norms = start.options.run.norms};
}

}  // namespace

TrainingRun::TrainingRun(TrainingStart start, const Communicator& world, Pool& pool,
                         std::function<int()> stop_requested)
    : start_(std::move(start)),
      world_(world),
      grid_(world, start_.grid),
      pool_(pool),
      stop_requested_(std::move(stop_requested)),
      model_(start_.options.model, start_.options.parallel, grid_, pool),
      sync_(grid_, model_.chunks(),
            {.distributed_optimizer = start_.options.parallel.use_distributed_optimizer}, pool),
      optimizer_(start_.options.adam, sync_.parameters(), sync_.slices(), pool),
      trainer_(trainer_settings(start_), grid_, model_, sync_, optimizer_),
      watch_(start_.options.run.loss_spike_sigmas) {
  if (start_.checkpoint) {
    load();
  } else {
    model_.initialize(static_cast<std::uint32_t>(start_.options.run.seed));
  }
  for (const Communicator* group :
       {&world_, &grid_.tensor(), &grid_.data(), &grid_.pipeline(), &model_.backward_pipeline(),
        &grid_.model(), &grid_.embedding()}) {
    if (group->size() > 1) ledgers_.emplace_back(group, group->ledger());
  }
  const RunOptions& run = start_.options.run;
  if (world.rank() == 0 && run.save.empty())
    log_warning("no --save: the trained weights will not be kept");
  const bool leads = world.rank() == 0;
  // Sweeps what dead savers left.
  if (leads && !run.save.empty()) retain_checkpoints(run.save, 0);
  if (leads && !run.metrics.empty()) {
    const bool resumed = !run.load.empty() && !run.finetune;
    metrics_ =
        MetricsLog(run.metrics, resumed ? MetricsLog::Start::kResume : MetricsLog::Start::kNew,
                   start_.state.iteration);
  }
  if (!run.save.empty()) {
    const auto before = [this](const CheckpointContent& saved) {
      metrics_.synchronise();
      if (const std::string name = find_not_finite(saved.weights); !name.empty()) {
        throw NumericError(cat("iteration ", saved.iteration, ": weight ", name,
                               " is not finite; this iteration is not saved"));
      }
    };
    saver_ = std::make_unique<RunSaver>(
        RunSaver::Settings{.run = run.save, .keep = run.keep, .before = before}, world_);
    if (run.async_save) saver_->reserve(content(), pool_);
  }
  log_info(start_.data->summary());
  log_info(cat(
      start_.options.model.parameter_count(), " parameters, global batch ", run.global_batch_size,
      " (", run.global_batch_size / run.micro_batch_size, " x ", run.micro_batch_size, ") of ",
      start_.options.data.seq_length, " tokens, ", run.length.in_unit(), " ",
      run.length.unit() == RunUnit::kIterations ? "iterations" : unit_name(run.length.unit()), ", ",
      predicted_memory(start_.options, start_.grid), " bytes of memory predicted"));
}

void TrainingRun::load() {
  const CheckpointReader& reader = *start_.checkpoint;
  const auto& parameters = model_.parameters();
  load_parameters(reader, parameters, world_.size() == 1);
  if (const std::string name = find_not_finite(parameters); !name.empty()) {
    throw NumericError(cat(reader.directory(), ": weight ", name, " is not finite"));
  }
  const RunOptions& run = start_.options.run;
  if (run.finetune || run.no_load_optim) {
    start_.state.optimizer_steps = 0;
  } else {
    std::vector<CheckpointReader::Request> requests;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::int64_t row = optimizer_.slices()[i].begin;
      append_row_requests(*parameters[i], optimizer_.exp_avg(i), row, "exp_avg", requests);
      append_row_requests(*parameters[i], optimizer_.exp_avg_sq(i), row, "exp_avg_sq", requests);
    }
    reader.read(requests);
    optimizer_.set_steps(start_.state.optimizer_steps);
  }
  if (start_.same_folder) saved_iteration_ = start_.state.iteration;
  log_info(cat(run.finetune ? "weights of " : "going on from ", reader.directory(),
               run.no_load_optim ? " with moments that start at zero" : ""));
  start_.checkpoint.reset();  // closes its files
}

bool TrainingRun::finished() const {
  const TrainingState& state = start_.state;
  return start_.options.run.length.finished(state.iteration, state.consumed_samples, batch_size(),
                                            start_.options.data.seq_length);
}

std::int64_t TrainingRun::batch_size() const {
  const RunOptions& run = start_.options.run;
  return batch_size_at(run.ramp, run.global_batch_size, start_.state.consumed_samples);
}

std::string TrainingRun::progress_text() const {
  const TrainingState& state = start_.state;
  const RunLength& length = start_.options.run.length;
  if (length.unit() == RunUnit::kIterations) {
    return cat("iteration ", state.iteration, "/", length.iters);
  }
  const std::int64_t step =
      length.step(state.iteration, state.consumed_samples, start_.options.data.seq_length);
  return cat("iteration ", state.iteration, " (", step, "/", length.in_unit(), " ",
             unit_name(length.unit()), ")");
}

bool TrainingRun::validation_due() const {
  const std::int64_t iteration = start_.state.iteration;
  return start_.data->validation() != nullptr && start_.state.last_validation != iteration &&
         (iteration % start_.options.run.eval_interval == 0 || finished());
}

int TrainingRun::run() {
  try {
    return train();
  } catch (const EnvironmentError& error) {  // of a save, the metrics, the data
    throw EnvironmentError(cat(error.what(), left()));
  }
}

int TrainingRun::train() {
  const RunOptions& run = start_.options.run;
  if (finished()) {
    log_info(cat(progress_text(), " is done"));
  }
  Stop stop = agree_on_stop();
  if (validation_due()) stop = validate();  // one that a stop had cut short
  while (!finished()) {
    if (stop.signal != 0) return this->stop(stop.signal);
    step();
    const std::int64_t iteration = start_.state.iteration;
    const std::int64_t interval = start_.options.parallel.check_replicas_interval;
    if (interval > 0 && iteration % interval == 0) compare_replicas();
    stop = agree_on_stop();
    if (stop.signal == 0 && validation_due()) stop = validate();
    if (stop.signal != 0 && (!finished() || validation_due())) return this->stop(stop.signal);
    const bool exit_here =
        stop.out_of_time || (run.exit_interval > 0 && iteration % run.exit_interval == 0);
    const bool save_here = run.save_interval > 0 && iteration % run.save_interval == 0;
    const bool last = exit_here || finished();
    if (save_here || last) save(last ? Chance::kLast : Chance::kMore);
    if (exit_here && !finished()) {
      log_info(cat("stopping at iteration ", iteration,
                   stop.out_of_time ? " (--exit-duration-in-mins)" : " (--exit-interval)", left()));
      metrics_.close();
      return static_cast<int>(ExitStatus::kRequeue);
    }
  }
  progress("");
  if (validation_due()) return this->stop(stop.signal);
  metrics_.close();
  return static_cast<int>(ExitStatus::kDone);
}

TrainingRun::Stop TrainingRun::agree_on_stop() {
  const double limit = start_.options.run.exit_duration_in_mins * 60;
  const bool late = world_.rank() == 0 && limit > 0 && seconds_since(began_) >= limit;
  double told[] = {static_cast<double>(stop_requested_()), late ? 1.0 : 0.0};
  world_.all_reduce(told, 2, ReduceOp::kMax);
  return {.signal = static_cast<int>(told[0]), .out_of_time = told[1] > 0};
}

int TrainingRun::stop(int signal) {
  progress("");
  save(Chance::kLast);
  metrics_.close();
  log_info(cat("stopped by signal ", signal, " at iteration ", start_.state.iteration, left()));
  const bool requeue = signal != SIGINT && !start_.options.run.save.empty();
  return requeue ? static_cast<int>(ExitStatus::kRequeue) : 128 + signal;
}

void TrainingRun::step() {
  take_save(Wait::kNo);
  TrainingState& state = start_.state;
  world_.progress(state.iteration + 1, "training");
  const auto begin = Clock::now();
  const std::int64_t faults = minor_faults();
  const TrainOptions& options = start_.options;
  const BlendedData& data = start_.data->train();
  BlendPosition position = state.position(data.blend().sources());
  const std::int64_t first = state.consumed_samples, size = batch_size();
  // Every rank walks the whole batch, and reads what is its own.
  places_.clear();
  for (std::int64_t i = 0; i < size; ++i) places_.push_back(data.blend().next(position));
  const auto window = [&](std::int64_t sample, std::int32_t* tokens) {
    data.sample(places_.at(static_cast<std::size_t>(sample - first)), tokens);
  };
  const std::int64_t at =
      options.run.length.step(state.iteration, state.consumed_samples, options.data.seq_length);
  const Trainer::Plan plan{.iteration = state.iteration,
                           .first_sample = first,
                           .batch_size = size,
                           .lr = learning_rate(options.schedule, at)};
  Trainer::Step done;
  try {
    done = trainer_.step(window, plan);
  } catch (const NumericError& error) {
    throw NumericError(cat(error.what(), left()));
  }
  ++state.iteration;
  state.consumed_samples += plan.batch_size;
  state.set_position(position);
  state.optimizer_steps = optimizer_.steps();
  report(done, plan, seconds_since(begin), minor_faults() - faults);
  if (watch_.is_spike(done.loss)) report_spike(done.loss, plan);
}

void TrainingRun::report_spike(double loss, const Trainer::Plan& plan) {
  constexpr std::size_t kShown = 8;
  const std::int64_t begin = plan.first_sample, end = begin + plan.batch_size;
  auto losses = trainer_.sample_losses();
  losses.resize(std::min(losses.size(), kShown));
  Json samples = Json::array();
  for (const Trainer::SampleLoss& each : losses) {
    Json sample = start_.data->origin(places_.at(static_cast<std::size_t>(each.sample - begin)));
    sample["sample"] = each.sample;
    sample["nll"] = finite_or_null(each.loss);
    samples.push_back(std::move(sample));
  }
  metrics_.write({{"step", start_.state.iteration},
                  {"spike_loss", loss},
                  {"spike_mean", watch_.mean()},
                  {"spike_deviation", watch_.deviation()},
                  {"spike_first_sample", begin},
                  {"spike_last_sample", end - 1},
                  {"spike_samples", samples}});
  std::string text = cat("iteration ", start_.state.iteration, ": loss spike: ", digits(loss, 5),
                         " after a mean of ", digits(watch_.mean(), 5), " (deviation ",
                         digits(watch_.deviation(), 3), "), samples ", begin, " to ", end - 1);
  if (!losses.empty()) {
    const Json& worst = samples.front();
    text +=
        cat("; the worst is sample ", losses.front().sample, " with ",
            digits(losses.front().loss, 5), ": ", worst["shard"].get<std::string>(), ", document ",
            worst["document"].get<std::int64_t>(), ", token ", worst["offset"].get<std::int64_t>());
  }
  log_warning(text);
}

Json TrainingRun::moved() {
  Json json = Json::object();
  for (auto& [group, before] : ledgers_) {
    const Ledger now = group->ledger();
    Json calls = ledger_json(now, before);
    if (!calls.empty()) json[group->name()] = std::move(calls);
    before = now;
  }
  return json;
}

void TrainingRun::report(const Trainer::Step& step, const Trainer::Plan& plan, double seconds,
                         std::int64_t minor_faults) {
  const TrainOptions& options = start_.options;
  const TrainingState& state = start_.state;
  const std::int64_t length = options.data.seq_length;
  const double rate = static_cast<double>(plan.batch_size * length) / seconds;
  const double flops = rate * options.model.training_flops_per_token(length);
  if (metrics_.active()) {
    const MemoryUse memory = pool_.use();
    Json line = {{"step", state.iteration},
                 {"samples", state.consumed_samples},
                 {"tokens", state.consumed_samples * length},
                 {"batch", plan.batch_size},
                 {"loss", step.loss},
                 {"lr", step.lr},
                 {"grad_norm", step.grad_norm},
                 {"tokens_per_second", rate},
                 {"model_flops_per_second", flops},
                 {"peak_memory_bytes", memory.peak_total},
                 {"predicted_memory_bytes", predicted_memory(options, start_.grid)},
                 {"system_allocations", memory.system_allocations},
                 {"minor_faults", minor_faults}};
    add_layer_norms(step.layers, options.run.norms, line);
    if (world_.size() > 1) line["communication"] = moved();
    metrics_.write(line);
  }
  const std::int64_t now =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch())
          .count();
  const bool log = state.iteration % options.run.log_interval == 0 || finished();
  if (!log && now - progress_shown_ < 100) return;
  const std::string text =
      cat(progress_text(), ": loss ", digits(step.loss, 5), ", lr ", digits(step.lr, 4),
          ", gradient norm ", digits(step.grad_norm, 4), ", ", digits(seconds * 1e3, 4), " ms, ",
          static_cast<std::int64_t>(rate), " tokens/s, ", digits(flops * 1e-9, 4), " GFLOP/s",
          layer_norms_text(step.layers, options.run.norms));
  if (log) {
    log_info(text);
  } else {
    progress(text);
    progress_shown_ = now;
  }
}

TrainingRun::Stop TrainingRun::validate() {
  Stop stop;
  bool complete = evaluate_part("validation", *start_.data->validation(), stop);
  if (complete && finished() && start_.data->test() != nullptr) {
    complete = evaluate_part("test", *start_.data->test(), stop);
  }
  if (complete) start_.state.last_validation = start_.state.iteration;
  return stop;
}

bool TrainingRun::evaluate_part(const char* name, const BlendedData& data, Stop& told) {
  const auto stop = [&] {
    world_.progress(start_.state.iteration, "validating");
    told = agree_on_stop();
    return told.signal != 0;
  };
  Trainer::Evaluation result;
  try {
    result = start_.options.data.full_validation
                 ? trainer_.evaluate_all(data, stop)
                 : trainer_.evaluate(data, start_.options.run.eval_iters, stop);
  } catch (const NumericError& error) {
    throw NumericError(
        cat("iteration ", start_.state.iteration, ": ", name, " ", error.what(), left()));
  }
  if (!result.complete) return false;
  const std::string key = name;
  metrics_.write({{"step", start_.state.iteration},
                  {key + "_loss", result.loss},
                  {key + "_perplexity", finite_or_null(result.perplexity())},
                  {key + "_tokens", result.targets},
                  {key + "_samples", result.samples}});
  log_info(cat("iteration ", start_.state.iteration, ": ", name, " loss ", digits(result.loss, 6),
               ", perplexity ", digits(result.perplexity(), 6), " over ", result.targets,
               " tokens in ", result.samples, " samples"));
  return true;
}

CheckpointContent TrainingRun::content() {
  const auto& parameters = model_.parameters();
  CheckpointContent content;
  content.iteration = start_.state.iteration;
  content.model = start_.options.model.to_json();
  content.training = start_.state.to_json();
  const GridContent part(grid_.shape(), grid_.place(),
                         start_.options.parallel.use_distributed_optimizer);
  part.add_weights(parameters, content);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::int64_t row = optimizer_.slices()[i].begin;
    part.add_moment(*parameters[i], optimizer_.exp_avg(i), row, "exp_avg", content);
    part.add_moment(*parameters[i], optimizer_.exp_avg_sq(i), row, "exp_avg_sq", content);
  }
  const TokenizerFiles& tokenizer = start_.data->shard().tokenizer_files();
  if (!tokenizer.empty()) {
    content.files = {{"tokenizer/vocab.json", tokenizer.vocab},
                     {"tokenizer/merges.txt", tokenizer.merges}};
  }
  content.tokenizer_digest = to_hex(start_.data->shard().tokenizer_digest());
  return content;
}

void TrainingRun::compare_replicas() {
  try {
    check_replicas(grid_, model_.chunks());
  } catch (const NumericError& error) {
    throw NumericError(cat("iteration ", start_.state.iteration, ": ", error.what(), left()));
  }
}

void TrainingRun::save(Chance chance) {
  if (saver_ == nullptr) return;
  take_save(Wait::kYes);
  const std::int64_t iteration = start_.state.iteration;
  if (saved_iteration_ == iteration) return;
  world_.progress(iteration, "saving");
  compare_replicas();
  // What a failed save of this very iteration left may stand in the way.
  const bool replace = start_.same_folder || failed_iteration_ == iteration;
  if (start_.options.run.async_save && chance == Chance::kMore) {
    const auto begin = Clock::now();
    saver_->start(content(), replace, pool_);
    log_debug(cat("iteration ", iteration, ": copied in ", digits(seconds_since(begin), 3),
                  " s, to be saved"));
    return;
  }
  try {
    note_save(saver_->save(content(), replace), chance);
  } catch (const NumericError& error) {
    throw NumericError(cat(error.what(), left()));
  }
}

void TrainingRun::take_save(Wait wait) {
  if (saver_ == nullptr || !saver_->in_flight()) return;
  const bool waits = !saver_->finished();
  if (waits && wait == Wait::kNo) return;
  const auto begin = Clock::now();
  try {
    const RunSaver::Outcome outcome = saver_->wait();
    if (waits) {
      log_info(cat("waited ", digits(seconds_since(begin), 3), " s for the save of iteration ",
                   outcome.iteration));
    }
    note_save(outcome, Chance::kMore);
  } catch (const NumericError& error) {
    throw NumericError(cat(error.what(), left()));
  }
}

void TrainingRun::note_save(const RunSaver::Outcome& outcome, Chance chance) {
  if (outcome.committed) saved_iteration_ = outcome.iteration;
  if (outcome.failure.empty()) {
    failed_saves_ = 0;
    log_info(cat("saved ", outcome.directory, " in ", digits(outcome.seconds, 3), " s"));
    return;
  }
  failed_iteration_ = outcome.iteration;
  ++failed_saves_;
  const std::int64_t most = start_.options.run.save_failures;
  if (chance == Chance::kLast || failed_saves_ >= most) {
    throw EnvironmentError(outcome.failure);
  }
  log_warning(cat(outcome.failure, "; training goes on, and ends when ", most,
                  " saves in turn have failed (", failed_saves_, " so far)", left()));
}

std::string TrainingRun::left() {
  // Where a rank fails alone, the others do not wait with it.
  if (saver_ != nullptr && saver_->in_flight() && world_.size() == 1) {
    try {
      const RunSaver::Outcome outcome = saver_->wait();
      if (outcome.committed) saved_iteration_ = outcome.iteration;
      if (!outcome.failure.empty()) log_warning(outcome.failure);
    } catch (const Error& error) {
      log_warning(error.what());
    }
  }
  if (saved_iteration_ < 0) return "; no checkpoint of this run is left to resume from";
  return cat("; iteration ", saved_iteration_, " is left to resume from in ",
             iteration_directory(start_.options.run.save, saved_iteration_));
}

}  // namespace mt
