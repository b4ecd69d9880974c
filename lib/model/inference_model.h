// What evaluation and generation ask of a model, wherever its parts are: likelihoods of tokens, and
// logits of the next token with a cache of keys and values. Everything is in the host's memory, and
// the numbers are the same bits in whatever company a sequence is computed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/gpt.h"
#include "nn/prefix_tree.h"

namespace mt {

// Keys and values of several slots: see GptStage::make_cache. Must not outlive its model.
class InferenceCache {
 public:
  virtual ~InferenceCache() = default;
  InferenceCache(const InferenceCache&) = delete;
  InferenceCache& operator=(const InferenceCache&) = delete;

  [[nodiscard]] virtual std::int64_t cached(std::int64_t slot) const = 0;
  // Forgets what a slot holds beyond its first `positions`.
  virtual void truncate(std::int64_t slot, std::int64_t positions) = 0;
  // Slot `to` gets the first `positions` positions of slot `from`.
  virtual void fork(std::int64_t from, std::int64_t to, std::int64_t positions) = 0;
  // Appends input.sequence tokens to slot slots[i] for each row i of the input and returns the
  // logits of the last position of each row, [b, V] over the true vocabulary: the cache's until the
  // next call. The input has tokens alone. Throws as GptStage::next_logits.
  [[nodiscard]] virtual const float* next_logits(const GptInput& input,
                                                 const std::vector<std::int64_t>& slots) = 0;

 protected:
  InferenceCache() = default;
};

class InferenceModel {
 public:
  virtual ~InferenceModel() = default;
  InferenceModel(const InferenceModel&) = delete;
  InferenceModel& operator=(const InferenceModel&) = delete;

  [[nodiscard]] virtual const ModelConfig& config() const = 0;
  // See GptStage::evaluate. The input has tokens and labels alone.
  virtual void token_nll(const GptInput& input, float* nll, const std::int64_t* counted) = 0;
  // See GptStage::evaluate_trees.
  virtual void tree_nll(const std::vector<PrefixTree>& trees,
                        const std::vector<std::int32_t>& tokens,
                        const std::vector<std::int32_t>& labels, float* nll,
                        std::uint8_t* greedy) = 0;
  [[nodiscard]] virtual std::unique_ptr<InferenceCache> open_cache(std::int64_t slots,
                                                                   std::int64_t capacity) = 0;

 protected:
  InferenceModel() = default;
};

// A whole model in this process.
class WholeModel : public InferenceModel {
 public:
  // The stage has all layers and must outlive the model.
  explicit WholeModel(GptStage& stage) : stage_(stage) {}

  [[nodiscard]] const ModelConfig& config() const override { return stage_.config(); }
  void token_nll(const GptInput& input, float* nll, const std::int64_t* counted) override;
  void tree_nll(const std::vector<PrefixTree>& trees, const std::vector<std::int32_t>& tokens,
                const std::vector<std::int32_t>& labels, float* nll, std::uint8_t* greedy) override;
  [[nodiscard]] std::unique_ptr<InferenceCache> open_cache(std::int64_t slots,
                                                           std::int64_t capacity) override;

 private:
  GptStage& stage_;
};

}  // namespace mt
