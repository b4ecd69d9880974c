#include "train/rank_memory.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "nn/loss.h"

namespace mt {

namespace {

// In doubles, which hold what no machine has.
constexpr double kFloat = sizeof(float);

double part(double whole, double ranks) {
  return std::ceil(whole / ranks);
}

// Of the first stage on one tensor rank.
double stage_parameters(const ModelConfig& model, const GridShape& grid) {
  const auto h = static_cast<double>(model.hidden_size);
  const auto f = static_cast<double>(model.ffn_hidden_size);
  const double t = grid.tensor;
  const double layer = (3 * h * (h + 1) + h * h + f * (h + 1) + f * h) / t + 6 * h;
  const double words = part(static_cast<double>(model.vocab_size), t) * h;
  double sum = layer * static_cast<double>(model.num_layers) / grid.pipeline + words +
               static_cast<double>(model.max_position_embeddings) * h;
  if (grid.pipeline == 1) {
    sum += 2 * h + (model.untie_embeddings_and_output_weights ? words : 0);
  }
  return sum;
}

// Floats a token that a layer keeps.
double layer_floats(const ModelConfig& model, const LayerLayout& layout, double t) {
  const auto h = static_cast<double>(model.hidden_size);
  const auto f = static_cast<double>(model.ffn_hidden_size);
  const double slice = layout.sequence_parallel ? t : 1;
  const double statistics = 4 / slice + static_cast<double>(model.num_attention_heads) / t;
  switch (layout.recompute) {
    case Recompute::kFull:
      return h / slice;
    case Recompute::kSelective:
      return 2 * h / slice + (4 * h + f) / t + statistics;
    case Recompute::kNone:
      break;
  }
  return 4 * h / slice + (4 * h + 2 * f) / t + statistics;
}

}  // namespace

RankMemory first_rank_memory(const ModelConfig& model, const ParallelOptions& options,
                             const ParallelOptions::Sizes& sizes, const GridShape& grid) {
  const double t = grid.tensor;
  const auto h = static_cast<double>(model.hidden_size);
  const auto f = static_cast<double>(model.ffn_hidden_size);
  const LayerLayout layout = options.layout(grid);
  const double parameters = stage_parameters(model, grid);
  const double share = static_cast<double>(sizes.global_batch_size) / grid.data;
  const auto micro = static_cast<double>(sizes.micro_batch_size);
  const double tokens = micro * static_cast<double>(sizes.seq_length);

  const bool tied_here = grid.pipeline == 1 && !model.untie_embeddings_and_output_weights;
  const double words = part(static_cast<double>(model.vocab_size), t);
  const bool tree = options.tree();
  // The tied embedding's part apart: in tree mode whole, else a row for each token of a step.
  const double apart =
      !tied_here
          ? 0
          : h * (tree ? words : std::min(words, share * static_cast<double>(sizes.seq_length)));
  const double buffers = tree ? 1 + std::log2(layout.sample_shards) : 1;

  const ScheduleShape shape = options.schedule(model, static_cast<int>(share / micro));
  const ScheduleTrace trace = trace_schedule(shape, 1, 2);
  const double chunk_layers = static_cast<double>(model.num_layers) / shape.stages / shape.chunks;
  const double slice = layout.sequence_parallel ? t : 1;
  const double kept = chunk_layers * layer_floats(model, layout, t);
  const double ends = grid.pipeline == 1 ? h / slice + 6 : 3;

  const double block_rows = std::max(1.0, std::floor(kLogitsBlockBytes / (words * kFloat)));
  const double logits = std::min(tokens, block_rows) * (words + 3);
  const double dropped = model.hidden_dropout > 0 ? h : 0;
  double working = tokens * (h + f / t + dropped);
  if (grid.pipeline == 1) working = std::max(working, tokens * h + logits);
  if (layout.recompute == Recompute::kFull) {
    LayerLayout whole = layout;
    whole.recompute = Recompute::kNone;
    working += tokens * layer_floats(model, whole, t);
  }

  const auto bytes = [](double floats) {
    const double all = kFloat * floats;
    if (all > 9e18) throw UsageError("training this model would need more than 2^63 bytes a rank");
    return static_cast<std::int64_t>(all);
  };
  return {.weights = bytes(parameters),
          .gradients = bytes((parameters + apart) * buffers),
          .moments = bytes(2 * parameters / (options.use_distributed_optimizer ? grid.data : 1)),
          .activations = bytes(tokens * (kept + ends) * trace.most_in_flight.at(0)),
          .working = bytes(working)};
}

}  // namespace mt
