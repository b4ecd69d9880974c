// What a GptStage is made of; for its own sources only.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "model/gpt.h"
#include "nn/block.h"
#include "nn/embedding.h"
#include "nn/gradient_parts.h"
#include "nn/layernorm.h"
#include "nn/loss.h"
#include "nn/positions.h"
#include "nn/row_gradient.h"

namespace mt {

struct GptStage::Saved {
  MicroBatch micro;
  VocabParallelEmbedding::Saved embedding;
  std::vector<Block::Saved> blocks;
  LayerNorm::Saved final_norm;
  Tensor d_normed;  // like activations: gradient of the final norm's result, made in forward
};

struct GptStage::Cache {
  std::vector<Tensor> layers;  // [slots, capacity, 2 h/t] each
  std::int64_t capacity = 0;
  std::vector<std::int64_t> lengths;  // a slot: positions held
};

struct GptStage::Parts {
  Parts(const ModelConfig& model, const StageRange& stage, const Communicator& group, Pool& memory,
        Use what_for, DType numbers, const LayerLayout& cuts);

  // Checks ids and sizes. `start`: position of the first token where no ids are given.
  void check(const GptInput& input, std::int64_t start) const;
  void check_labels(const GptInput& input) const;
  [[nodiscard]] Tensor upload_i32(const std::int32_t* values, const GptInput& input) const;
  [[nodiscard]] MicroBatch micro_batch(const GptInput& input, std::uint32_t dropout_seed) const;
  // What lies between the layers: [b, s, h], under sequence parallelism [b, s/t, h].
  [[nodiscard]] Shape activation_shape(const GptInput& input) const;
  // All positions of x, which has that shape. Collective over tp under sequence parallelism.
  [[nodiscard]] Tensor all_positions(const Tensor& x) const;
  // Activations after the embedding.
  [[nodiscard]] Tensor embed(const GptInput& input, std::int64_t start, const MicroBatch& micro,
                             VocabParallelEmbedding::Saved* saved) const;
  // What this stage makes, without dropout, of the tokens (first stage) or of the activations of
  // the one before: activations [b, s, h], or on the last stage the final norm's result. A trace
  // gets what comes after the embedding and after each block.
  [[nodiscard]] Tensor run(const GptInput& input, const Tensor& activations = {},
                           std::vector<Tensor>* trace = nullptr) const;
  [[nodiscard]] const Tensor& head_weight() const;
  [[nodiscard]] Parameter& head_parameter();  // whose gradient the head writes
  // Of x [rows, h] after the final norm, a label a row: see VocabParallelHead::nll.
  void label_nll(const Tensor& x, const std::vector<std::int32_t>& labels, float* nll,
                 std::uint8_t* greedy) const;
  // The final norm, logits and loss, with the gradients of the head. The loss is added to
  // loss_before.
  [[nodiscard]] double train_loss(const GptInput& input, const Tensor& x, double gradient_scale,
                                  Saved& saved, double loss_before);
  // Of the constructor: the layers in order, the two parts of a tied head's gradient, the counters
  // of sample shards.
  void add_layers(const Communicator& group, DType numbers);
  void add_tied_gradients();
  void add_gradient_parts();

  ModelConfig config;
  StageRange range;
  LayerLayout layout;
  const Communicator* tp;
  bool sliced;  // training under sequence parallelism
  Pool* pool;
  Use use;
  std::optional<VocabParallelEmbedding> embedding;
  std::deque<Block> blocks;  // a deque: parameters stay where they are
  std::optional<LayerNorm> final_norm;
  std::optional<VocabParallelHead> head;
  Parameter output_weight;                        // of heads that share no weight of this stage
  Tensor head_gradient;                           // of the head's weight
  std::optional<RowGradient> embedding_gradient;  // with a tied head: see finish_gradients
  std::vector<Parameter*> parameters;
  bool sums_parts = false;  // a pass leaves the gradients of a part of the samples only
  std::vector<std::size_t> first_of_block;      // of parameters; one more: behind the last block
  GradientParts forward_parts, backward_parts;  // of what each pass adds: see close_part
};

}  // namespace mt
