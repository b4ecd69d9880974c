#include "train/training_state.h"

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

  Resumption(const Options& options, const std::string& where, bool override_given)
      : options_(options), where_(where), override_(override_given) {}

  template <typename T>
  void take(const char* option, const T& stored, T& wished, May may) const {
    if (!options_.given(option)) {
      wished = stored;
    } else {
      check(option, stored, wished, may);
    }
  }

  template <typename T>
  void check(const char* option, const T& stored, const T& wished, May may) const {
    if (wished == stored || (may == May::kBeOverridden && override_)) return;
    throw UsageError(cat("--", option, " ", std::boolalpha, wished, ": checkpoint ", where_,
                         " was trained with ", stored, "; ",
                         may == May::kBeOverridden
                             ? "--override-opt_param-scheduler changes it"
                             : "--finetune starts a new run from its weights"));
  }

 private:
  const Options& options_;
  const std::string& where_;
  bool override_;
};

using May = Resumption::May;

// The decay and the length of the run, which depend on each other.
void take_length(const TrainingState& stored, const std::string& where, const Options& options,
                 const Resumption& resumption, TrainOptions& wished) {
  std::int64_t& decay = wished.schedule.lr_decay_iters;
  const bool overridden = wished.run.override_opt_param_scheduler;
  const bool decay_given = options.given("lr-decay-iters") && decay != 0;
  if (!options.given("train-iters")) wished.run.train_iters = stored.train_iters;
  const bool other_length = wished.run.train_iters != stored.train_iters;
  if (decay_given) {
    resumption.check("lr-decay-iters", stored.schedule.lr_decay_iters, decay, May::kBeOverridden);
    return;
  }
  if (!other_length || wished.schedule.lr_decay_style == "constant" ||
      stored.schedule.lr_decay_iters != stored.train_iters) {
    decay = stored.schedule.lr_decay_iters;
    return;
  }
  if (overridden) {
    decay = 0;  // over the new length
    return;
  }
  throw UsageError(cat("--train-iters ", wished.run.train_iters, ": checkpoint ", where,
                       " was trained with ", stored.train_iters,
                       ", and its rate decays over as many; --lr-decay-iters ",
                       stored.schedule.lr_decay_iters,
                       " keeps that, --override-opt_param-scheduler decays over the new length"));
}

}  // namespace

Json TrainingState::to_json() const {
  return {{"iteration", iteration},
          {"consumed_samples", consumed_samples},
          {"last_validation", last_validation},
          {"train_iters", train_iters},
          {"global_batch_size", global_batch_size},
          {"seq_length", seq_length},
          {"seed", seed},
          {"hidden_dropout", hidden_dropout},
          {"attention_dropout", attention_dropout},
          {"schedule",
           {{"lr", schedule.lr},
            {"min_lr", schedule.min_lr},
            {"lr_decay_style", schedule.lr_decay_style},
            {"lr_warmup_iters", schedule.lr_warmup_iters},
            {"lr_decay_iters", schedule.lr_decay_iters}}},
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
          {"data", data.to_json()}};
}

TrainingState TrainingState::from_json(const Json& json, const std::string& where) {
  TrainingState state;
  state.iteration = json_count(json, "iteration", where);
  state.consumed_samples = json_count(json, "consumed_samples", where);
  state.last_validation = json_count(json, "last_validation", where);
  state.train_iters = json_count(json, "train_iters", where);
  state.global_batch_size = json_count(json, "global_batch_size", where);
  state.seq_length = json_count(json, "seq_length", where);
  state.seed = json_count(json, "seed", where);
  state.hidden_dropout = json_number(json, "hidden_dropout", where);
  state.attention_dropout = json_number(json, "attention_dropout", where);
  const Json& schedule = member(json, "schedule", where);
  state.schedule.lr = json_number(schedule, "lr", where);
  state.schedule.min_lr = json_number(schedule, "min_lr", where);
  state.schedule.lr_decay_style = json_string(schedule, "lr_decay_style", where);
  state.schedule.lr_warmup_iters = json_count(schedule, "lr_warmup_iters", where);
  state.schedule.lr_decay_iters = json_count(schedule, "lr_decay_iters", where);
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
  state.data = DataIdentity::from_json(member(json, "data", where), where);
  return state;
}

void resume_options(const TrainingState& stored, const std::string& where, const Options& options,
                    TrainOptions& wished) {
  const Resumption r(options, where, wished.run.override_opt_param_scheduler);
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
  const bool fraction = options.given("lr-warmup-fraction");
  if (!fraction) {
    r.take("lr-warmup-iters", stored.schedule.lr_warmup_iters, wished.schedule.lr_warmup_iters,
           May::kBeOverridden);
  }
  wished.schedule.check(wished.run.train_iters);
  if (fraction) {
    r.check("lr-warmup-iters", stored.schedule.lr_warmup_iters, wished.schedule.lr_warmup_iters,
            May::kBeOverridden);
  }
}

}  // namespace mt
