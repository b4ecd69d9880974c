#include "convert/grid_plan.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "ckpt/checkpoint_files.h"
#include "ckpt/grid_content.h"
#include "model/gpt.h"
#include "optim/zero1.h"

namespace mt {
namespace {

// One rank of a tensor group whose others are not here: it tells layers what is theirs, and nothing
// can be sent.
class AbsentGroup : public Communicator {
 public:
  AbsentGroup(int rank, int size) : Communicator(rank, size, "tensor") {}

 private:
  [[noreturn]] static void never() { throw Error(ExitStatus::kInternal, "a rank is not here"); }
  void reduce_all(const Elements& /*x*/, ReduceOp /*op*/) const override { never(); }
  void scatter_sum(const Elements& /*whole*/, const Elements& /*part*/) const override { never(); }
  void gather_all(const Elements& /*part*/, const Elements& /*whole*/) const override { never(); }
  void broadcast_from(const Elements& /*x*/, int /*root*/) const override { never(); }
  void wait_for_all() const override { never(); }
  void send_to(const Tensor& /*x*/, int /*to*/) const override { never(); }
  void receive_from(const Elements& /*x*/, int /*from*/) const override { never(); }
  void wait_for_sends() const override { never(); }
  [[nodiscard]] std::unique_ptr<Communicator> split_group(
      int /*color*/, int /*key*/, const std::string& /*name*/) const override {
    never();
  }
};

// A device of shapes without data: every block is the same few bytes, which nobody may touch.
Device shape_device() {
  alignas(64) static constexpr std::byte kNothing[64] = {};
  static constexpr DeviceRuntime kRuntime{
      .name = "shapes",
      .allocate = [](std::size_t) -> void* { return const_cast<std::byte*>(kNothing); },
      .release = [](void*, std::size_t) {},
      .copy = [](void*, const void*, std::size_t) {},
      .fill_zero = [](void*, std::size_t) {},
      .synchronize = [] {}};
  return {.runtime = &kRuntime, .kernels = nullptr};
}

void check_divides(std::int64_t size, std::int64_t whole, const char* of, const char* option) {
  if (whole % size == 0) return;
  throw UsageError(cat(option, " ", size, ": ", of, " ", whole, " is not a multiple of it"));
}

void check_layout(const CheckpointLayout& layout, const ModelConfig& model) {
  const char* const tensor = "--tensor-model-parallel-size";
  check_divides(layout.tensor, model.num_attention_heads, "the number of attention heads", tensor);
  check_divides(layout.tensor, model.ffn_hidden_size, "the inner width of the MLP", tensor);
  if (model.vocab_size < layout.tensor) {
    throw UsageError(
        cat(tensor, " ", layout.tensor, ": more than the vocabulary of ", model.vocab_size));
  }
  check_divides(layout.pipeline, model.num_layers, "the number of layers",
                "--pipeline-model-parallel-size");
}

class Planner {
 public:
  Planner(const TensorSource& from, const CheckpointLayout& layout, bool weights_only,
          std::optional<DType> weights)
      : from_(from), layout_(layout), weights_only_(weights_only), weights_(weights) {}

  ReshardFiles one_rank();
  ReshardFiles grid();

 private:
  void add_stage(const ModelConfig& model, GridPlace place);
  void add(const std::string& file, const std::vector<Box>& boxes, bool optimizer);
  [[nodiscard]] DType type_of(const TensorSource::TensorInfo& info) const {
    return info.optimizer ? info.dtype : weights_.value_or(info.dtype);
  }
  void check_all_taken() const;

  const TensorSource& from_;
  CheckpointLayout layout_;
  bool weights_only_;
  std::optional<DType> weights_;
  std::set<std::string> taken_;
  ReshardFiles files_;
};

ReshardFiles Planner::one_rank() {
  for (const auto& [name, info] : from_.tensors()) {
    if (info.optimizer && weights_only_) continue;
    files_[info.optimizer ? optimizer_file_name({}) : model_file_name({})].push_back(
        {name, info.shape, Shape(info.shape.size(), 0), info.shape, type_of(info), info.optimizer});
  }
  return std::move(files_);
}

void Planner::add(const std::string& file, const std::vector<Box>& boxes, bool optimizer) {
  for (const Box& box : boxes) {
    const auto found = from_.tensors().find(box.name);
    if (found == from_.tensors().end() || found->second.optimizer != optimizer) {
      throw DataError(cat(from_.directory(), ": tensor ", box.name, ": there is none"));
    }
    const auto& info = found->second;
    if (info.shape != box.global_shape) {
      throw DataError(cat(from_.directory(), ": tensor ", box.name, ": expected ",
                          shape_text(box.global_shape), ", found ", shape_text(info.shape)));
    }
    files_[file].push_back(
        {box.name, box.global_shape, box.offset, box.extent, type_of(info), optimizer});
    taken_.insert(box.name);
  }
}

void Planner::add_stage(const ModelConfig& model, GridPlace place) {
  const std::int64_t layers = model.num_layers / layout_.pipeline;
  const StageRange range{.first_layer = place.pipeline * layers,
                         .last_layer = (place.pipeline + 1) * layers,
                         .first = place.pipeline == 0,
                         .last = place.pipeline == layout_.pipeline - 1};
  const AbsentGroup group(place.tensor, static_cast<int>(layout_.tensor));
  Pool pool(shape_device());
  GptStage stage(model, range, group, pool, Use::kInference);
  const GridShape shape{.tensor = static_cast<int>(layout_.tensor),
                        .pipeline = static_cast<int>(layout_.pipeline),
                        .data = static_cast<int>(layout_.data)};
  const bool moments =
      !weights_only_ && std::any_of(from_.tensors().begin(), from_.tensors().end(),
                                    [](const auto& each) { return each.second.optimizer; });
  for (place.data = 0; place.data < layout_.data; ++place.data) {
    const GridContent role(shape, place, layout_.distributed_optimizer);
    CheckpointContent content;
    role.add_weights(stage.parameters(), content);
    for (const Parameter* parameter : stage.parameters()) {
      if (!moments) break;
      const RowRange rows = zero1_rows(parameter->value.shape(), shape.data, place.data);
      for (const char* const suffix : {"exp_avg", "exp_avg_sq"}) {
        role.add_moment(*parameter, parameter->value.rows(rows.begin, rows.end), rows.begin, suffix,
                        content);
      }
    }
    add(model_file_name(place), content.weights, false);
    add(optimizer_file_name(place), content.optimizer, true);
  }
}

void Planner::check_all_taken() const {
  for (const auto& [name, info] : from_.tensors()) {
    if (taken_.contains(name) || (info.optimizer && weights_only_)) continue;
    throw DataError(cat(from_.directory(), ": tensor ", name, ": the model has no place for it"));
  }
}

ReshardFiles Planner::grid() {
  const ModelConfig model =
      ModelConfig::from_json(from_.model(), from_.directory() + "/manifest.json: model");
  check_layout(layout_, model);
  for (GridPlace place; place.pipeline < layout_.pipeline; ++place.pipeline) {
    for (place.tensor = 0; place.tensor < layout_.tensor; ++place.tensor) add_stage(model, place);
  }
  check_all_taken();
  return std::move(files_);
}

}  // namespace

ReshardFiles plan_grid(const TensorSource& from, const CheckpointLayout& layout, bool weights_only,
                       std::optional<DType> weights) {
  Planner planner(from, layout, weights_only, weights);
  return layout == CheckpointLayout{} ? planner.one_rank() : planner.grid();
}

}  // namespace mt
