#include "train/grid_model.h"

namespace mt {

GridModel::GridModel(const ModelConfig& model, const ParallelOptions& options,
                     const ProcessGrid& grid, Pool& pool)
    : has_head_(grid.place().pipeline == grid.shape().pipeline - 1),
      back_(grid.pipeline().split(0, grid.pipeline().rank(), "pipeline_backward")) {
  // Every step says how many micro-batches it has.
  const ScheduleShape shape = options.schedule(model, grid.shape().pipeline);
  const LayerLayout layout = options.layout(grid.shape());
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    owned_.push_back(std::make_unique<GptStage>(
        model, chunk_range(model.num_layers, shape, grid.place().pipeline, chunk), grid.tensor(),
        pool, Use::kTraining, DType::kF32, layout));
    chunks_.push_back(owned_.back().get());
    const auto& more = owned_.back()->parameters();
    parameters_.insert(parameters_.end(), more.begin(), more.end());
  }
  pipeline_ = std::make_unique<Pipeline>(chunks_, shape, grid.pipeline(), *back_, pool);
}

void GridModel::initialize(std::uint32_t seed) {
  for (GptStage* chunk : chunks_) chunk->initialize(seed);
}

void GridModel::reserve_gradients(std::int64_t tokens) {
  for (GptStage* chunk : chunks_) chunk->reserve_gradients(tokens);
}

}  // namespace mt
