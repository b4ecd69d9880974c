// GPT-2's architecture as one pipeline stage: pre-LN blocks, learned positions, tanh GELU, tied or
// untied head (Radford et al. 2019; Shoeybi et al., arXiv:1909.08053, section 3). With one stage
// this is the whole model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "model/config.h"
#include "nn/linear.h"
#include "nn/prefix_tree.h"
#include "tensor/parameter.h"
#include "tensor/tensor.h"

namespace mt {

// One micro-batch on the host, [b, s] each; what is null is absent.
struct GptInput {
  std::int64_t batch = 0, sequence = 0;
  const std::int32_t* tokens = nullptr;
  const std::int32_t* position_ids = nullptr;  // null: 0 ... s - 1
  const std::int32_t* first_key = nullptr;     // null: attention to all earlier positions
  const std::int32_t* labels = nullptr;        // for the loss
  const float* loss_weight = nullptr;          // for the loss; null: 1
  const std::int64_t* samples =
      nullptr;  // [b] global sample numbers, for dropout; null: no dropout
};

// Which part of the model this rank builds.
struct StageRange {
  std::int64_t first_layer = 0, last_layer = 0;  // [first, last)
  bool first = true;                             // has the embedding
  bool last = true;                              // has final norm, head and loss
};

enum class Pass : std::uint8_t { kForward, kBackward };

enum class Use { kTraining, kInference };  // inference: no gradients are held

class GptStage {
 public:
  struct Saved;  // activations of one micro-batch; any number may be in flight
  struct Cache;  // keys and values of what was read, for inference
  struct Release {
    void operator()(Saved* saved) const;
    void operator()(Cache* cache) const;
  };

  // tp and pool must outlive the stage. Parameters are uninitialised until initialize() or a load.
  // numbers: what the parameters are rounded to (see Parameter); other than f32 for inference only.
  // Activations and caches are f32 whatever it is. A tied head on a stage without the embedding
  // holds a copy of its weights (Parameter::copy), whose gradient the caller adds to the
  // embedding's.
  GptStage(const ModelConfig& config, StageRange range, const Communicator& tp, Pool& pool, Use use,
           DType numbers = DType::kF32, const LayerLayout& layout = {});
  ~GptStage();

  // Initial weights as functions of (seed, tensor name, global index): N(0, init_method_std), for
  // products that feed the residual divided by sqrt(2 * num_layers); biases 0, gains 1.
  void initialize(std::uint32_t seed);
  // In one canonical order: embedding, layers, final norm, head. Pointers live as long as the
  // stage.
  [[nodiscard]] const std::vector<Parameter*>& parameters();
  [[nodiscard]] const ModelConfig& config() const;
  // What stages exchange: [b, s, h], in training under sequence parallelism this tensor rank's
  // slice [b, s/t, h] of the positions. (Stages for inference have whole positions always.)
  [[nodiscard]] Shape activation_shape(const GptInput& input) const;
  // The weights that embedding and head share, as this stage has them: the embedding's, or the
  // copy; null where there are none.
  [[nodiscard]] const Parameter* tied_weight() const;

  // Training: from tokens (first stage) or the previous stage's activations to
  // activations, or on the last stage to the loss. Dropout as the configuration says, drawn with
  // `seed`.
  struct ForwardResult {
    Tensor activations;  // undefined on the last stage
    double loss_sum =
        0;  // last stage: sum over positions of weight * negative log-likelihood (nats)
  };
  // The last stage adds its loss to loss_before, row after row: given the sum of what came before,
  // the result does not depend on how rows are put into micro-batches.
  // gradient_scale: factor of loss_sum in the function that backward differentiates (1 / weights of
  // the global batch). The last stage computes the gradient of its logits here, block by block, so
  // that they are never held whole.
  ForwardResult forward(const GptInput& input, const Tensor& activations,
                        std::uint32_t dropout_seed, double gradient_scale, Saved& saved,
                        double loss_before = 0);
  // Adds into the gradients of the parameters (the last stage's forward has added the head's).
  // d_activations comes from the next stage (undefined on the last); its buffer is
  // overwritten. Returns the gradient for the previous stage (undefined on the first). What was
  // saved is released on the way. Collective over tp.
  // complete(first), if given, is called whenever this pass has added all that it adds to the
  // gradients of parameters [first, ..), the last layer's first. Not with several sample_shards,
  // whose sum is taken after the pass.
  using Complete = std::function<void(std::size_t first)>;
  Tensor backward(const GptInput& input, const Tensor& d_activations, Saved& saved,
                  const Complete& complete = nullptr);
  [[nodiscard]] std::unique_ptr<Saved, Release> make_saved() const;
  // With --reduction tree the samples that a rank of the data axis takes in a step are
  // sample_shards() parts of equal size. To be called after the last micro-batch of each part went
  // through a pass: the gradients that this pass adds (forward: that of the head's weight;
  // backward: all others) begin a new part, and after the last part they are the sum over all, in a
  // balanced tree. Both passes, in the same number of parts each step. Nothing to do with one part.
  void close_part(Pass pass);
  [[nodiscard]] int sample_shards() const;
  // After the last micro-batch of a step and before the gradient norm: a tied embedding's gradient
  // has two parts (embedding, head) that are kept apart over all micro-batches; this adds the
  // embedding's, held for the tokens that occurred only, into Parameter::grad, where the head's is,
  // and clears it. Nothing to do without a tied head; calling it twice is harmless. With virtual
  // shards there is nothing to do here: the embedding's part is whole in Parameter::grad_apart, and
  // the caller adds it after the sums over the data axis, as it does collapse_gradient_shards().
  void finish_gradients();
  // Takes what steps of that many tokens (all micro-batches) need for the embedding's part at once.
  // Without it the first step with as many takes it.
  void reserve_gradients(std::int64_t tokens);

  // Evaluation, no dropout: the negative log-likelihood of every label, nll [b * s] in nats,
  // overwritten. Logits are never held whole. With counted [b], of sample i only the last
  // counted[i] labels are asked for: no logits are made for the others, and nll holds these alone,
  // sample after sample. Of one stage: activations are those of the stage before; the last one
  // fills nll and returns none, the others return activations for the next. Collective over tp.
  Tensor evaluate(const GptInput& input, const Tensor& activations, float* nll,
                  const std::int64_t* counted = nullptr);
  // The same through a whole model (one stage).
  void token_nll(const GptInput& input, float* nll, const std::int64_t* counted = nullptr);

  // The same for sequences that share beginnings (nn/prefix_tree.h), each shared part computed
  // once: tokens and labels have a value a row of the trees (a row's label is only looked at where
  // it is counted); activations are [1, rows, h]; nll and greedy hold the last `counted` labels of
  // each branch, in order. greedy: 1 where the label has the largest logit, the lowest entry of
  // equals. Bitwise what evaluate gives for each sequence alone. Throws as below for ids and for a
  // sequence longer than the positions.
  Tensor evaluate_trees(const std::vector<PrefixTree>& trees,
                        const std::vector<std::int32_t>& tokens,
                        const std::vector<std::int32_t>& labels, const Tensor& activations,
                        float* nll, std::uint8_t* greedy);
  // The same through a whole model.
  void tree_nll(const std::vector<PrefixTree>& trees, const std::vector<std::int32_t>& tokens,
                const std::vector<std::int32_t>& labels, float* nll, std::uint8_t* greedy);

  // All functions that take an input throw DataError, naming the place, for a token, label or
  // position outside the model's tables, and UsageError for a sequence longer than the positions
  // or, in training under sequence parallelism, not divisible by the tensor ranks.

  // Inference with a key/value cache of several slots, each with up to `capacity` positions of one
  // sequence and a length of its own: of this stage's layers.
  [[nodiscard]] std::unique_ptr<Cache, Release> make_cache(std::int64_t slots,
                                                           std::int64_t capacity) const;
  [[nodiscard]] static std::int64_t cached(const Cache& cache, std::int64_t slot = 0);
  // Forgets what a slot holds beyond its first `positions`.
  static void truncate(Cache& cache, std::int64_t slot, std::int64_t positions);
  // Slot `to` gets the first `positions` positions of slot `from`.
  static void fork(Cache& cache, std::int64_t from, std::int64_t to, std::int64_t positions);
  // Appends input.sequence positions to slot slots[i] for each row i of the input (none given: rows
  // and slots in order) and returns, on the last stage, the logits of the last position of each
  // row, [b, V] over the true vocabulary, whole on every rank of tp (the caller's until the next
  // call); on the others the activations for the next stage. `activations` are those of the stage
  // before. Bitwise what a forward without cache gives, whatever else is in the batch. Throws
  // UsageError when the positions of the model or the cache would be exceeded. Collective over tp.
  [[nodiscard]] Tensor next_logits(const GptInput& input, Cache& cache,
                                   const std::vector<std::int64_t>& slots = {},
                                   const Tensor& activations = {});
  // Logits of every position without a cache, [b, s, V]; for comparisons and small models.
  [[nodiscard]] Tensor all_logits(const GptInput& input);
  // Activations for comparisons: after the embedding, after each block, after the final norm. [b,
  // s, h] each.
  [[nodiscard]] std::vector<Tensor> all_activations(const GptInput& input);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace mt
