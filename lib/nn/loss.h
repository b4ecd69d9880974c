// The end of a language model: logits over a vocabulary that is cut over tp, and softmax cross
// entropy on them without any rank seeing a whole row (Shoeybi et al., arXiv:1909.08053, section 3:
// ranks exchange a maximum, a sum and a target a row instead of logits). Logits are made and used
// up in blocks of rows, so that no more than kLogitsBlockBytes of them exist at a time; block
// borders change no bit.
#pragma once

#include <vector>

#include "nn/linear.h"
#include "tensor/ops.h"

namespace mt {

constexpr std::int64_t kLogitsBlockBytes = std::int64_t{64} << 20;

// Softmax cross entropy of logits [rows, V/t].
class VocabParallelCrossEntropy {
 public:
  struct Saved {
    Tensor labels, sum;  // i32 and f32 [rows]
  };

  // tp must outlive it. Sums over the vocabulary are cut as LayerLayout::virtual_shards says.
  VocabParallelCrossEntropy(std::int64_t vocabulary, const Communicator& tp,
                            int virtual_shards = 1);

  // labels i32 [rows], global entries -> nll, the host's [rows], in nats: overwritten. With saved,
  // the logits are overwritten by their exponentials, which backward takes. Collective over tp
  // (three all-reduces of one number a row).
  void forward(const Tensor& logits, const Tensor& labels, float* nll, Saved* saved) const;
  // logits := gradient of sum(weight * nll); weight [rows]. Local.
  void backward(const Tensor& logits, const Tensor& weight, const Saved& saved) const;

 private:
  const Communicator* tp_;
  std::int64_t first_;
  std::vector<Interval> columns_;  // of the logits, by shard
};

// The product with the head's weight [V/t, h] (tied: the word embedding) and the loss on it.
class VocabParallelHead {
 public:
  // tp must outlive it. block_bytes: most bytes of logits at a time (one row at least). Sums over
  // the vocabulary, that of dx among them, are cut as LayerLayout::virtual_shards says.
  VocabParallelHead(std::int64_t vocabulary, const Communicator& tp,
                    std::int64_t block_bytes = kLogitsBlockBytes, int virtual_shards = 1);

  // Rows of logits that a block holds, the same on every rank.
  [[nodiscard]] std::int64_t block_rows() const;

  // x [rows, h] -> nll, the host's [rows]. Collective over tp. With greedy, the host's [rows] too:
  // 1 where the label has the largest logit of the whole row, the lowest entry of equals (two more
  // all-reduces of one number a row).
  void nll(const Tensor& x, const Tensor& weight, const Tensor& labels, float* nll,
           std::uint8_t* greedy = nullptr) const;
  // The same, and the gradient of sum(row_weight * nll): x := dx [rows, h], dweight += (added, a
  // chain over the rows). Collective over tp (one all-reduce of dx besides those of the loss). With
  // Dx::kPart the part of dx through this rank's entries, which the caller has to sum over tp.
  // first: what the first product does with dweight; the others add.
  enum class Dx { kSummed, kPart };
  void nll_and_gradients(const Tensor& x, const Tensor& weight, const Tensor& dweight,
                         const Tensor& labels, const Tensor& row_weight, float* nll,
                         Dx dx = Dx::kSummed, Output first = Output::kAdd) const;
  // [rows, h] -> logits [rows, V], whole on every rank. Collective over tp (one all-reduce).
  [[nodiscard]] Tensor logits(const Tensor& x, const Tensor& weight) const;

 private:
  const Communicator* tp_;
  std::int64_t vocabulary_, block_bytes_;
  OwnedRange range_;
  std::vector<Interval> columns_;  // of the logits, by shard
  VocabParallelCrossEntropy cross_entropy_;
};

}  // namespace mt
