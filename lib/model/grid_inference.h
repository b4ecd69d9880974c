// A model whose parts are on the ranks of a grid, asked by rank 0: each call there is a command
// that all ranks get (one small broadcast) and compute together, activations going from stage to
// stage. The other ranks do nothing but serve it. Numbers are those of one rank: bitwise if the
// grid cuts stages alone or if sums are cut into virtual shards (LayerLayout), else within
// rounding.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "comm/grid.h"
#include "model/inference_command.h"
#include "model/inference_model.h"

namespace mt {

class GridInference : private InferenceModel {
 public:
  // stage: this rank's part of the model (stage_range of model/inference_grid.h). The grid has no
  // data axis; all must outlive this.
  GridInference(const ProcessGrid& grid, GptStage& stage, Pool& pool);

  // Calls work on rank 0, with the model, while the other ranks serve it until work has returned.
  // What work throws goes on at once: the other ranks then wait for rank 0, and whoever catches it
  // ends them. What a command throws is thrown on all ranks that come to it. Collective over the
  // grid's world.
  void run(const std::function<void(InferenceModel&)>& work);

 private:
  class Cache;
  using StageCache = std::unique_ptr<GptStage::Cache, GptStage::Release>;

  // InferenceModel, on rank 0.
  [[nodiscard]] std::unique_ptr<InferenceCache> open_cache(std::int64_t slots,
                                                           std::int64_t capacity) override;
  void tree_nll(const std::vector<PrefixTree>& trees, const std::vector<std::int32_t>& tokens,
                const std::vector<std::int32_t>& labels, float* nll, std::uint8_t* greedy) override;
  void token_nll(const GptInput& input, float* nll, const std::int64_t* counted) override;
  [[nodiscard]] const ModelConfig& config() const override { return stage_.config(); }

  // Rank 0: sends the command to all and computes its part. Its result, if it has one.
  Tensor ask(InferenceCommand command);
  // This rank's part of a command. The result on rank 0, undefined elsewhere. Collective over the
  // grid's world.
  Tensor execute(const InferenceCommand& command);
  Tensor execute_token_nll(const InferenceCommand& command);
  Tensor execute_tree_nll(const InferenceCommand& command);
  Tensor execute_next_logits(const InferenceCommand& command);

  // Activations [batch, sequence, h] of the stage before; undefined on the first.
  [[nodiscard]] Tensor receive_activations(std::int64_t batch, std::int64_t sequence) const;
  void pass_on(const Tensor& activations) const;
  // Rank 0 gets what the last stage made, of that shape.
  [[nodiscard]] Tensor deliver(const Tensor& made, const Shape& shape) const;
  [[nodiscard]] Tensor deliver(const std::vector<float>& made) const;
  // [begin, end) of parts of a command, which the stages work on one after the other.
  struct Piece {
    std::int64_t begin = 0, end = 0;
  };
  [[nodiscard]] std::vector<Piece> pieces(std::int64_t items, std::int64_t rows) const;

  const ProcessGrid& grid_;
  GptStage& stage_;
  Pool& pool_;
  std::map<std::int64_t, StageCache> caches_;  // by number
  std::int64_t next_cache_ = 0;
  std::vector<std::int64_t> closed_;  // rank 0: caches that the others do not know to be gone
};

// Calls work on rank 0 with the model whose parts the ranks have, each its stage: GridInference, or
// WholeModel for one rank.
void run_inference(const ProcessGrid& grid, GptStage& stage, Pool& pool,
                   const std::function<void(InferenceModel&)>& work);

}  // namespace mt
