// What one rank of a grid holds of the model: the chunks of its pipeline stage, and the pipeline
// through all stages. A grid of one is the whole model.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/grid.h"
#include "model/gpt.h"
#include "train/parallel_options.h"
#include "train/pipeline.h"

namespace mt {

class GridModel {
 public:
  // options must have been checked; grid and pool must outlive it. Collective over the grid.
  // Parameters are uninitialised until initialize() or a load.
  GridModel(const ModelConfig& model, const ParallelOptions& options, const ProcessGrid& grid,
            Pool& pool);

  [[nodiscard]] const ModelConfig& config() const { return chunks_.front()->config(); }
  [[nodiscard]] const std::vector<GptStage*>& chunks() const { return chunks_; }
  // Of all chunks, in their order.
  [[nodiscard]] const std::vector<Parameter*>& parameters() const { return parameters_; }
  // This rank computes losses.
  [[nodiscard]] bool has_head() const { return has_head_; }
  // See GptStage::initialize.
  void initialize(std::uint32_t seed);
  // See GptStage::reserve_gradients.
  void reserve_gradients(std::int64_t tokens);
  [[nodiscard]] Pipeline& pipeline() { return *pipeline_; }
  // The ranks of grid.pipeline(), for gradients.
  [[nodiscard]] const Communicator& backward_pipeline() const { return *back_; }

 private:
  std::vector<std::unique_ptr<GptStage>> owned_;
  std::vector<GptStage*> chunks_;
  std::vector<Parameter*> parameters_;
  bool has_head_;
  std::unique_ptr<Communicator> back_;
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace mt
