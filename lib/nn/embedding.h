// Token embedding with its rows cut over the vocabulary (Shoeybi et al., arXiv:1909.08053, section
// 3) plus learned positions. Rank i of t owns the true rows floor(i V / t) to floor((i + 1) V / t).
#pragma once

#include <vector>

#include "nn/linear.h"
#include "nn/micro_batch.h"
#include "nn/row_gradient.h"

namespace mt {

struct EmbeddingSizes {
  std::int64_t vocabulary = 0, positions = 0, hidden = 0;
  double dropout = 0;
};

class VocabParallelEmbedding {
 public:
  struct Saved {
    Tensor tokens, position_ids;  // i32 [b, s]
  };

  // Parameters embedding.word_embeddings.weight [V, h] and embedding.position_embeddings.weight
  // [positions, h].
  VocabParallelEmbedding(const EmbeddingSizes& sizes, const LayerSetup& setup);

  // i32 [b, s] each -> [b, s, h], under sequence parallelism [b, s/t, h]. Ids must lie inside the
  // tables. Collective over tp (one all-reduce, or one reduce-scatter).
  [[nodiscard]] Tensor forward(const Tensor& tokens, const Tensor& position_ids,
                               const MicroBatch& micro, Saved* saved) const;
  // Adds into the gradients, that of the words into grad_apart if there is one; with apart, it goes
  // there. dy's buffer is overwritten. Local; under sequence parallelism collective over tp (one
  // all-gather of dy, so that every rank has the whole gradient of the positions).
  void backward(const Tensor& dy, const MicroBatch& micro, const Saved& saved,
                RowGradient* apart = nullptr);

  // The words' parameter, which a tied head shares.
  [[nodiscard]] const Parameter& words() const { return words_; }
  [[nodiscard]] OwnedRange range() const { return range_; }
  [[nodiscard]] Parameter& words() { return words_; }
  void collect(std::vector<Parameter*>& out);

 private:
  const Communicator* tp_;
  bool sliced_;  // under sequence parallelism
  OwnedRange range_;
  double dropout_;
  Parameter words_, positions_;
};

}  // namespace mt
