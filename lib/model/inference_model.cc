#include "model/inference_model.h"

namespace mt {
namespace {

class WholeCache : public InferenceCache {
 public:
  WholeCache(GptStage& stage, std::int64_t slots, std::int64_t capacity)
      : stage_(stage), cache_(stage.make_cache(slots, capacity)) {}

  [[nodiscard]] std::int64_t cached(std::int64_t slot) const override {
    return GptStage::cached(*cache_, slot);
  }
  void truncate(std::int64_t slot, std::int64_t positions) override {
    GptStage::truncate(*cache_, slot, positions);
  }
  void fork(std::int64_t from, std::int64_t to, std::int64_t positions) override {
    GptStage::fork(*cache_, from, to, positions);
  }
  [[nodiscard]] const float* next_logits(const GptInput& input,
                                         const std::vector<std::int64_t>& slots) override {
    logits_ = {};  // its buffer serves for the next
    logits_ = stage_.next_logits(input, *cache_, slots);
    return logits_.as<float>();
  }

 private:
  GptStage& stage_;
  std::unique_ptr<GptStage::Cache, GptStage::Release> cache_;
  Tensor logits_;
};

}  // namespace

void WholeModel::token_nll(const GptInput& input, float* nll, const std::int64_t* counted) {
  stage_.token_nll(input, nll, counted);
}

void WholeModel::tree_nll(const std::vector<PrefixTree>& trees,
                          const std::vector<std::int32_t>& tokens,
                          const std::vector<std::int32_t>& labels, float* nll,
                          std::uint8_t* greedy) {
  stage_.tree_nll(trees, tokens, labels, nll, greedy);
}

std::unique_ptr<InferenceCache> WholeModel::open_cache(std::int64_t slots, std::int64_t capacity) {
  return std::make_unique<WholeCache>(stage_, slots, capacity);
}

}  // namespace mt
