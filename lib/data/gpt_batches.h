// Sample i of a training run as a pure function: windows of s + 1 tokens over the stored stream, in
// an order drawn by a keyed Feistel permutation (no index files), with an epoch-dependent start
// offset. The position in the data is one number, the count of samples consumed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/token_shard.h"

namespace mt {

// A contiguous range of documents of a shard.
struct DocumentRange {
  std::int64_t first = 0, last = 0;  // [first, last)
};

// --split "969,30,1": weights of train, validation, test (missing ones are 0); whole documents in
// stored order. Megatron-LM's rule: each part has its share rounded (half to even), and what the
// sum is off by is taken from the first. Always three parts, which may come out empty. Throws
// UsageError for a malformed text.
[[nodiscard]] std::vector<DocumentRange> split_documents(std::int64_t documents,
                                                         const std::string& split);

// Windows over documents [first, last) of a shard, N tokens. The reader must outlive it.
//
// An epoch has n = max(1, floor((N - s) / s)) windows, at offset + k s for k < n; the offset is
// drawn for each epoch from what is left, [0, min(s, N - n s) - 1], and so is the order of k. All
// of it is a pure function of (seed, N, s, i): Philox with the seed and stream kDataOrder as key;
// the order is a Feistel network of 8 rounds on the smallest even number of bits that holds n,
// walked until the result is below n.
class GptDataset {
 public:
  // Throws UsageError if the range holds fewer than sequence + 1 tokens (says both numbers).
  GptDataset(const TokenShardReader& shard, DocumentRange range, std::int64_t sequence,
             std::uint32_t seed);
  [[nodiscard]] std::int64_t samples_per_epoch() const;
  // Sample i (from 0, any epoch): s + 1 tokens.
  void sample(std::int64_t i, std::int32_t* tokens) const;
  // The tokens of the shard that it is: [first, last).
  [[nodiscard]] DocumentRange window(std::int64_t i) const;
  // Windows in stored order, not permuted, not overlapping in targets: what --full-validation
  // visits. floor((N - 1) / s) of them; the last (N - 1) mod s tokens are no targets.
  [[nodiscard]] std::int64_t ordered_samples() const;
  void ordered_sample(std::int64_t i, std::int32_t* tokens) const;

 private:
  const TokenShardReader* shard_;
  std::int64_t begin_, end_, sequence_;
  std::uint32_t seed_;
};

// The micro-batch that a model takes. All arrays are [batch, sequence].
struct GptBatch {
  std::int64_t batch = 0, sequence = 0;
  std::vector<std::int32_t> tokens, labels, position_ids;
  // The first position of the row that a position attends to; empty unless attention is reset at
  // document ends.
  std::vector<std::int32_t> first_key;
  std::vector<float> loss_weight;     // 0 or 1 a position
  std::vector<std::int64_t> samples;  // [batch], global sample numbers, for dropout
  [[nodiscard]] double weight_sum() const;
};

// Megatron-LM's three switches for windows that hold several documents. An end-of-document token
// belongs to its document.
struct PackingOptions {
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
};

// From rows of sequence + 1 tokens. Buffers of `out` are reused.
void make_gpt_batch(const std::int32_t* windows, std::int64_t batch, std::int64_t sequence,
                    std::int32_t end_of_document, const PackingOptions& packing,
                    const std::int64_t* samples, GptBatch& out);

}  // namespace mt
