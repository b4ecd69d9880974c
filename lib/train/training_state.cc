#include "train/training_state.h"

#include <algorithm>

#include "base/error.h"

namespace mt {

namespace {

const Json& member(const Json& json, const std::string& key, const std::string& where) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_object()) {
    throw DataError(cat(where, ": ", key, ": expected an object"));
  }
  return *found;
}

// Brings the options of a command and the values of a checkpoint together.
class Resumption {
 public:
  enum class May { kNotDiffer, kBeOverridden };

  Resumption(const Options& options, const std::string& where, const RunOptions& run)
      : options_(options),
        where_(where),
        override_(run.override_opt_param_scheduler),
        stored_wins_(run.use_checkpoint_opt_param_scheduler) {}

  template <typename T>
  void take(const char* option, const T& stored, T& wished, May may) const {
    if (!options_.given(option) || (stored_wins_ && may == May::kBeOverridden)) {
      wished = stored;
    } else {
      check(option, stored, wished, may);
    }
  }

  template <typename T>
  void check(const char* option, const T& stored, const T& wished, May may) const {
    if (wished == stored) return;
    if (may == May::kBeOverridden && (override_ || stored_wins_)) return;
    throw UsageError(cat("--", option, " ", std::boolalpha, wished, ": checkpoint ", where_,
                         " was trained with ", stored, "; ",
                         may == May::kBeOverridden
                             ? "--override-opt_param-scheduler changes it"
                             : "--finetune starts a new run from its weights"));
  }

 private:
  const Options& options_;
  const std::string& where_;
  bool override_, stored_wins_;
};

using May = Resumption::May;

void take_ramp(const TrainingState& stored, const Options& options, const Resumption& resumption,
               RunOptions& wished) {
  const BatchRamp& ramp = stored.ramp;
  const std::vector<std::string> words =
      ramp.start == 0
          ? std::vector<std::string>{}
          : std::vector<std::string>{cat(ramp.start), cat(ramp.increment), cat(ramp.samples)};
  if (!options.given("rampup-batch-size")) {
    wished.rampup_batch_size = words;
    return;
  }
  const auto joined = [](const std::vector<std::string>& parts) {
    std::string text;
    for (const std::string& part : parts) text += (text.empty() ? "" : " ") + part;
    return text.empty() ? std::string("none") : text;
  };
  resumption.check("rampup-batch-size", joined(words), joined(wished.rampup_batch_size),
                   May::kBeOverridden);
  if (wished.use_checkpoint_opt_param_scheduler) wished.rampup_batch_size = words;
}

// The decay and the length of the run, which depend on each other.
void take_length(const TrainingState& stored, const std::string& where, const Options& options,
                 const Resumption& resumption, TrainOptions& wished) {
  const RunUnit unit = stored.length.unit();
  const bool given = options.given("train-iters") || options.given("train-samples") ||
                     options.given("train-tokens");
  if (!given) wished.run.length = stored.length;
  if (wished.run.length.unit() != unit) {
    throw UsageError(cat("--train-", unit_name(wished.run.length.unit()), ": checkpoint ", where,
                         " counts in ", unit_name(unit),
                         "; --finetune starts a new run from its weights"));
  }
  const std::string name = unit_name(unit);
  const std::int64_t before = stored.schedule.decay.in(unit);
  std::int64_t& decay = wished.schedule.decay.in(unit);
  if (options.given("lr-decay-" + name) && decay != 0) {
    resumption.check(("lr-decay-" + name).c_str(), before, decay, May::kBeOverridden);
    return;
  }
  const bool other_length = wished.run.length != stored.length;
  if (!other_length || wished.schedule.lr_decay_style == "constant" ||
      before != stored.length.in_unit() || wished.run.use_checkpoint_opt_param_scheduler) {
    decay = before;
    return;
  }
  if (wished.run.override_opt_param_scheduler) {
    decay = 0;  // over the new length
    return;
  }
  throw UsageError(cat("--train-", name, " ", wished.run.length.in_unit(), ": checkpoint ", where,
                       " was trained with ", stored.length.in_unit(),
                       ", and its rate decays over as many; --lr-decay-", name, " ", before,
                       " keeps that, --override-opt_param-scheduler decays over the new length"));
}

// The schedule's keys of a unit: "lr_decay_iters".
std::string key_of(const char* what, RunUnit unit) {
  return cat("lr_", what, "_", unit_name(unit));
}

Json sources_json(const std::vector<TrainingState::Source>& sources) {
  if (sources.size() == 1) return sources.front().identity.to_json();
  Json blend = Json::array();
  for (const TrainingState::Source& source : sources) {
    Json entry = source.identity.to_json();
    entry["weight"] = source.weight;
    entry["consumed_samples"] = source.consumed;
    entry["since_change"] = source.since;
    blend.push_back(std::move(entry));
  }
  return {{"blend", std::move(blend)}};
}

// A single shard has no entry of its own for what the whole run consumed.
std::vector<TrainingState::Source> sources_from(const Json& data, std::int64_t consumed,
                                                const std::string& where) {
  std::vector<TrainingState::Source> sources;
  const auto blend = data.find("blend");
  if (blend == data.end()) {
    sources.push_back({.identity = DataIdentity::from_json(data, where),
                       .weight = 1,
                       .consumed = consumed,
                       .since = consumed});
    return sources;
  }
  if (!blend->is_array() || blend->empty()) {
    throw DataError(cat(where, ": blend: expected a list of token shards"));
  }
  std::int64_t sum = 0;
  for (const Json& entry : *blend) {
    if (!entry.is_object()) throw DataError(cat(where, ": blend: expected objects"));
    sources.push_back({.identity = DataIdentity::from_json(entry, where),
                       .weight = json_number(entry, "weight", where),
                       .consumed = json_count(entry, "consumed_samples", where),
                       .since = json_count(entry, "since_change", where)});
    const TrainingState::Source& source = sources.back();
    if (source.consumed > consumed - sum || source.since > source.consumed) {
      throw DataError(cat(where, ": blend: the samples of its shards are more than the ", consumed,
                          " of the run"));
    }
    sum += source.consumed;
  }
  if (sum != consumed) {
    throw DataError(
        cat(where, ": blend: its shards gave ", sum, " samples, the run took ", consumed));
  }
  return sources;
}

}  // namespace

Json TrainingState::to_json() const {
  const RunUnit unit = length.unit();
  Json json = {{"iteration", iteration},
               {"consumed_samples", consumed_samples},
               {"last_validation", last_validation},
               {"train_iters", length.iters},
               {"global_batch_size", global_batch_size},
               {"seq_length", seq_length},
               {"seed", seed},
               {"hidden_dropout", hidden_dropout},
               {"attention_dropout", attention_dropout},
               {"schedule",
                {{"lr", schedule.lr},
                 {"min_lr", schedule.min_lr},
                 {"lr_decay_style", schedule.lr_decay_style},
                 {key_of("warmup", unit), schedule.warmup.in(unit)},
                 {key_of("decay", unit), schedule.decay.in(unit)}}},
               {"optimizer",
                {{"name", "adamw"},
                 {"steps", optimizer_steps},
                 {"adam_beta1", adam.adam_beta1},
                 {"adam_beta2", adam.adam_beta2},
                 {"adam_eps", adam.adam_eps},
                 {"weight_decay", adam.weight_decay},
                 {"clip_grad", adam.clip_grad}}},
               {"packing",
                {{"reset_position_ids", packing.reset_position_ids},
                 {"reset_attention_mask", packing.reset_attention_mask},
                 {"eod_mask_loss", packing.eod_mask_loss}}},
               {"data", sources_json(sources)}};
  // What a run by iterations has not is not there.
  if (unit == RunUnit::kSamples) json["train_samples"] = length.samples;
  if (unit == RunUnit::kTokens) json["train_tokens"] = length.tokens;
  if (ramp.start != 0) {
    json["rampup_batch_size"] = {ramp.start, ramp.increment, ramp.samples};
  }
  return json;
}

BlendPosition TrainingState::position(std::int64_t blend_sources) const {
  BlendPosition position;
  for (std::int64_t i = 0; i < blend_sources; ++i) {
    const Source& source = sources.at(static_cast<std::size_t>(i));
    position.consumed.push_back(source.consumed);
    position.since.push_back(source.since);
  }
  return position;
}

void TrainingState::set_position(const BlendPosition& position) {
  for (std::size_t i = 0; i < position.consumed.size(); ++i) {
    sources.at(i).consumed = position.consumed[i];
    sources.at(i).since = position.since[i];
  }
}

TrainingState TrainingState::from_json(const Json& json, const std::string& where) {
  TrainingState state;
  state.iteration = json_count(json, "iteration", where);
  state.consumed_samples = json_count(json, "consumed_samples", where);
  state.last_validation = json_count(json, "last_validation", where);
  state.length.iters = json_count(json, "train_iters", where);
  if (json.contains("train_samples")) {
    state.length.samples = json_count(json, "train_samples", where);
  }
  if (json.contains("train_tokens")) {
    state.length.tokens = json_count(json, "train_tokens", where);
  }
  if (const auto ramp = json.find("rampup_batch_size"); ramp != json.end()) {
    if (!ramp->is_array() || ramp->size() != 3) {
      throw DataError(cat(where, ": rampup_batch_size: expected three numbers"));
    }
    std::int64_t* const parts[] = {&state.ramp.start, &state.ramp.increment, &state.ramp.samples};
    for (std::size_t i = 0; i < 3; ++i) {
      if (!(*ramp)[i].is_number_integer() || (*ramp)[i].get<std::int64_t>() <= 0) {
        throw DataError(cat(where, ": rampup_batch_size: expected three numbers above 0"));
      }
      *parts[i] = (*ramp)[i].get<std::int64_t>();
    }
  }
  state.global_batch_size = json_count(json, "global_batch_size", where);
  state.seq_length = json_count(json, "seq_length", where);
  state.seed = json_count(json, "seed", where);
  state.hidden_dropout = json_number(json, "hidden_dropout", where);
  state.attention_dropout = json_number(json, "attention_dropout", where);
  const Json& schedule = member(json, "schedule", where);
  state.schedule.lr = json_number(schedule, "lr", where);
  state.schedule.min_lr = json_number(schedule, "min_lr", where);
  state.schedule.lr_decay_style = json_string(schedule, "lr_decay_style", where);
  const RunUnit unit = state.length.unit();
  state.schedule.unit = unit;
  state.schedule.warmup.in(unit) = json_count(schedule, key_of("warmup", unit), where);
  state.schedule.decay.in(unit) = json_count(schedule, key_of("decay", unit), where);
  const Json& optimizer = member(json, "optimizer", where);
  if (const std::string name = json_string(optimizer, "name", where); name != "adamw") {
    throw DataError(cat(where, ": optimizer: expected adamw, found ", name));
  }
  state.optimizer_steps = json_count(optimizer, "steps", where);
  state.adam.adam_beta1 = json_number(optimizer, "adam_beta1", where);
  state.adam.adam_beta2 = json_number(optimizer, "adam_beta2", where);
  state.adam.adam_eps = json_number(optimizer, "adam_eps", where);
  state.adam.weight_decay = json_number(optimizer, "weight_decay", where);
  state.adam.clip_grad = json_number(optimizer, "clip_grad", where);
  const Json& packing = member(json, "packing", where);
  state.packing.reset_position_ids = json_bool(packing, "reset_position_ids", where);
  state.packing.reset_attention_mask = json_bool(packing, "reset_attention_mask", where);
  state.packing.eod_mask_loss = json_bool(packing, "eod_mask_loss", where);
  state.sources = sources_from(member(json, "data", where), state.consumed_samples, where);
  return state;
}

void resume_options(const TrainingState& stored, const std::string& where, const Options& options,
                    TrainOptions& wished) {
  const Resumption r(options, where, wished.run);
  r.take("seed", stored.seed, wished.run.seed, May::kNotDiffer);
  r.take("seq-length", stored.seq_length, wished.data.seq_length, May::kNotDiffer);
  PackingOptions& packing = wished.data.packing;
  r.take("reset-position-ids", stored.packing.reset_position_ids, packing.reset_position_ids,
         May::kNotDiffer);
  r.take("reset-attention-mask", stored.packing.reset_attention_mask, packing.reset_attention_mask,
         May::kNotDiffer);
  r.take("eod-mask-loss", stored.packing.eod_mask_loss, packing.eod_mask_loss, May::kNotDiffer);
  r.take("global-batch-size", stored.global_batch_size, wished.run.global_batch_size,
         May::kBeOverridden);
  take_ramp(stored, options, r, wished.run);
  r.take("hidden-dropout", stored.hidden_dropout, wished.model.hidden_dropout, May::kBeOverridden);
  r.take("attention-dropout", stored.attention_dropout, wished.model.attention_dropout,
         May::kBeOverridden);
  r.take("adam-beta1", stored.adam.adam_beta1, wished.adam.adam_beta1, May::kBeOverridden);
  r.take("adam-beta2", stored.adam.adam_beta2, wished.adam.adam_beta2, May::kBeOverridden);
  r.take("adam-eps", stored.adam.adam_eps, wished.adam.adam_eps, May::kBeOverridden);
  r.take("weight-decay", stored.adam.weight_decay, wished.adam.weight_decay, May::kBeOverridden);
  r.take("clip-grad", stored.adam.clip_grad, wished.adam.clip_grad, May::kBeOverridden);
  r.take("lr", stored.schedule.lr, wished.schedule.lr, May::kBeOverridden);
  r.take("min-lr", stored.schedule.min_lr, wished.schedule.min_lr, May::kBeOverridden);
  r.take("lr-decay-style", stored.schedule.lr_decay_style, wished.schedule.lr_decay_style,
         May::kBeOverridden);
  take_length(stored, where, options, r, wished);
  const RunUnit unit = stored.length.unit();
  const std::string warmup = cat("lr-warmup-", unit_name(unit));
  const bool fraction = options.given("lr-warmup-fraction");
  if (!fraction) {
    r.take(warmup.c_str(), stored.schedule.warmup.in(unit), wished.schedule.warmup.in(unit),
           May::kBeOverridden);
  } else if (wished.run.use_checkpoint_opt_param_scheduler) {
    wished.schedule.lr_warmup_fraction = 0;
    wished.schedule.warmup = stored.schedule.warmup;
  }
  wished.schedule.check(wished.run.length.in_unit(), unit);
  if (fraction) {
    r.check(warmup.c_str(), stored.schedule.warmup.in(unit), wished.schedule.warmup.in(unit),
            May::kBeOverridden);
  }
}

std::string resume_sources(const std::vector<TrainingState::Source>& stored,
                           const std::string& where, std::vector<TrainingState::Source>& wished) {
  const auto find = [&](const DataIdentity& identity) {
    return std::find_if(stored.begin(), stored.end(),
                        [&](const auto& source) { return source.identity == identity; });
  };
  double stored_sum = 0, wished_sum = 0;
  for (const auto& source : stored) stored_sum += source.weight;
  for (const auto& source : wished) wished_sum += source.weight;
  std::size_t known = 0, fresh = 0, reweighted = 0, left = 0;
  for (auto& source : wished) {
    const auto before = find(source.identity);
    if (before == stored.end()) {
      ++fresh;
      continue;
    }
    ++known;
    source.consumed = before->consumed;
    source.since = before->since;
    if (before->weight / stored_sum != source.weight / wished_sum) ++reweighted;
  }
  if (known == 0) {
    const DataIdentity &found = wished.front().identity, &old = stored.front().identity;
    throw DataError(cat("the training part has ", found.tokens, " tokens in ", found.documents,
                        " documents, fingerprint ", found.fingerprint, ", but checkpoint ", where,
                        " was trained on ", old.tokens, " in ", old.documents, ", ",
                        old.fingerprint, "; --finetune starts a new run from its weights"));
  }
  const std::size_t sources = wished.size();
  for (const auto& source : stored) {
    const auto still = [&](const auto& other) { return other.identity == source.identity; };
    if (std::any_of(wished.begin(), wished.begin() + static_cast<std::ptrdiff_t>(sources), still)) {
      continue;
    }
    if (source.weight > 0) ++left;
    wished.push_back(source);
    wished.back().weight = 0;
  }
  if (fresh + reweighted + left == 0) return "";
  for (auto& source : wished) source.since = 0;
  return cat("another blend than that of ", where, ": ", fresh, " new shards, ", left,
             " left out, ", reweighted, " with another share; its proportions hold from here on");
}

}  // namespace mt
