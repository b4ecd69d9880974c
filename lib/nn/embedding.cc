#include "nn/embedding.h"

#include "nn/positions.h"
#include "tensor/ops.h"

namespace mt {

VocabParallelEmbedding::VocabParallelEmbedding(const EmbeddingSizes& sizes, const LayerSetup& setup)
    : tp_(&setup.tp),
      sliced_(holds_slices(setup.layout, setup.tp)),
      range_(owned_range(sizes.vocabulary, setup.tp)),
      dropout_(sizes.dropout),
      words_(make_parameter(setup.pool,
                            {{.name = "embedding.word_embeddings.weight",
                              .global_shape = {sizes.vocabulary, sizes.hidden},
                              .offset = {range_.begin, 0},
                              .extent = {range_.size(), sizes.hidden}}},
                            setup.gradient, Init::kNormal, setup.init_std, setup.numbers)),
      positions_(make_parameter(setup.pool,
                                {{.name = "embedding.position_embeddings.weight",
                                  .global_shape = {sizes.positions, sizes.hidden},
                                  .offset = {0, 0},
                                  .extent = {sizes.positions, sizes.hidden}}},
                                setup.gradient, Init::kNormal, setup.init_std, setup.numbers)) {}

Tensor VocabParallelEmbedding::forward(const Tensor& tokens, const Tensor& position_ids,
                                       const MicroBatch& micro, Saved* saved) const {
  Tensor y(words_.value.pool(), {tokens.dim(0), tokens.dim(1), words_.value.dim(1)}, DType::kF32,
           MemoryKind::kActivations);
  // A token's row is zero on all ranks but its owner's; the first rank adds the positions, so that
  // the sum holds them once.
  const bool carries = tp_->rank() == 0;
  embedding(tokens, position_ids, words_.value, range_.begin, carries ? positions_.value : Tensor(),
            y);
  if (sliced_) {
    y = scatter_positions(y, *tp_);
  } else {
    tp_->all_reduce(y, ReduceOp::kSum);
  }
  const Dropout dropout = micro.dropout(dropout_, 0, DropoutSite::kEmbedding);
  if (dropout.probability > 0) dropout_add(y, {}, y, dropout);
  if (saved != nullptr) *saved = {.tokens = tokens, .position_ids = position_ids};
  return y;
}

void VocabParallelEmbedding::backward(const Tensor& dy, const MicroBatch& micro, const Saved& saved,
                                      RowGradient* apart) {
  const Dropout dropout = micro.dropout(dropout_, 0, DropoutSite::kEmbedding);
  if (dropout.probability > 0) dropout_add(dy, {}, dy, dropout);
  const Tensor all = sliced_ ? gather_positions(dy, *tp_) : dy;
  if (apart == nullptr) {
    embedding_backward(saved.tokens, saved.position_ids, all, range_.begin,
                       words_.grad_apart.defined() ? words_.grad_apart : words_.grad,
                       positions_.grad);
    return;
  }
  const Tensor places = apart->places(saved.tokens);
  embedding_backward(places, saved.position_ids, all, 0, apart->rows(), positions_.grad);
}

void VocabParallelEmbedding::collect(std::vector<Parameter*>& out) {
  out.push_back(&words_);
  out.push_back(&positions_);
}

}  // namespace mt
