#include "data/gpt_batches.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"

namespace mt {
namespace {

constexpr std::size_t kSplitParts = 3;

std::array<double, kSplitParts> parse_split(const std::string& text) {
  const auto fail = [&](const std::string& why) {
    throw UsageError(
        cat("--split ", text, ": ", why, "; expected up to three weights such as 969,30,1"));
  };
  std::array<double, kSplitParts> weights{};
  std::size_t count = 0;
  const char* p = text.data();
  const char* const end = p + text.size();
  for (;;) {
    if (count == kSplitParts) fail("more than three weights");
    const auto [after, error] = std::from_chars(p, end, weights[count]);
    if (error != std::errc() || (after != end && *after != ',')) fail("not a list of numbers");
    if (!std::isfinite(weights[count]) || weights[count] < 0)
      fail("a weight is negative or not finite");
    ++count;
    if (after == end) break;
    p = after + 1;
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (!(sum > 0) || !std::isfinite(sum)) fail("the weights must have a finite sum above 0");
  for (double& w : weights) w /= sum;
  return weights;
}

// A permutation of [0, n) that needs no memory: a Feistel network with Philox as round function on
// 2 * half bits, walked until it comes back below n (on average less than 4 times).
class Permutation {
 public:
  Permutation(std::uint64_t n, std::uint32_t seed, std::uint64_t epoch)
      : n_(n), seed_(seed), epoch_(epoch) {
    half_ = n <= 2 ? 1U : (static_cast<unsigned>(std::bit_width(n - 1)) + 1U) / 2U;
  }
  [[nodiscard]] std::uint64_t operator()(std::uint64_t i) const {
    do {
      i = once(i);
    } while (i >= n_);
    return i;
  }

 private:
  static constexpr std::uint32_t kRounds = 8;
  [[nodiscard]] std::uint64_t once(std::uint64_t i) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_) - 1;
    std::uint64_t left = i >> half_, right = i & mask;
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const PhiloxBlock f = philox4x32_10(
          {static_cast<std::uint32_t>(right), round, static_cast<std::uint32_t>(epoch_),
           static_cast<std::uint32_t>(epoch_ >> 32)},
          seed_, static_cast<std::uint32_t>(RandomStream::kDataOrder));
      left ^= f[0] & mask;
      std::swap(left, right);
    }
    return (left << half_) | right;
  }

  std::uint64_t n_;
  std::uint32_t seed_;
  std::uint64_t epoch_;
  unsigned half_ = 1;
};

// The second word of the counter for the offset of an epoch, where the order has its rounds.
constexpr std::uint32_t kOffsetDraw = 0xFFFFFFFFU;

std::uint64_t draw_offset(std::uint64_t choices, std::uint32_t seed, std::uint64_t epoch) {
  const PhiloxBlock f = philox4x32_10(
      {0, kOffsetDraw, static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(epoch >> 32)},
      seed, static_cast<std::uint32_t>(RandomStream::kDataOrder));
  return ((static_cast<std::uint64_t>(f[0]) << 32) | f[1]) % choices;
}

}  // namespace

std::vector<DocumentRange> split_documents(std::int64_t documents, const std::string& split) {
  const auto weights = parse_split(split);
  std::array<std::int64_t, kSplitParts + 1> cut{};
  for (std::size_t p = 0; p < kSplitParts; ++p) {
    // nearbyint rounds half to even, as Python's round() does.
    cut[p + 1] = cut[p] + static_cast<std::int64_t>(
                              std::nearbyint(weights[p] * static_cast<double>(documents)));
  }
  const std::int64_t off = cut[kSplitParts] - documents;
  std::vector<DocumentRange> parts;
  std::int64_t first = 0;
  for (std::size_t p = 1; p <= kSplitParts; ++p) {
    const std::int64_t last = std::clamp(cut[p] - off, first, documents);
    parts.push_back({first, last});
    first = last;
  }
  return parts;
}

GptDataset::GptDataset(const TokenShardReader& shard, DocumentRange range, std::int64_t sequence,
                       std::uint32_t seed)
    : shard_(&shard), begin_(0), end_(0), sequence_(sequence), seed_(seed) {
  MT_ASSERT(sequence > 0);
  MT_ASSERT(range.first >= 0 && range.first <= range.last && range.last <= shard.documents());
  begin_ = shard.document_offset(range.first);
  end_ = shard.document_offset(range.last);
  if (end_ - begin_ <= sequence) {
    throw UsageError(cat(shard.path(), ": documents ", range.first, " to ", range.last, " hold ",
                         end_ - begin_, " tokens, fewer than the ", sequence,
                         " + 1 of one sample (--seq-length)"));
  }
}

std::int64_t GptDataset::samples_per_epoch() const {
  return std::max<std::int64_t>(1, (end_ - begin_ - sequence_) / sequence_);
}

DocumentRange GptDataset::window(std::int64_t i) const {
  MT_ASSERT(i >= 0);
  const std::int64_t n = samples_per_epoch();
  const auto epoch = static_cast<std::uint64_t>(i / n);
  const std::int64_t choices = std::min(sequence_, end_ - begin_ - n * sequence_);
  const auto offset =
      static_cast<std::int64_t>(draw_offset(static_cast<std::uint64_t>(choices), seed_, epoch));
  const Permutation order(static_cast<std::uint64_t>(n), seed_, epoch);
  const auto window = static_cast<std::int64_t>(order(static_cast<std::uint64_t>(i % n)));
  const std::int64_t first = begin_ + offset + window * sequence_;
  return {.first = first, .last = first + sequence_ + 1};
}

void GptDataset::sample(std::int64_t i, std::int32_t* tokens) const {
  shard_->read(window(i).first, sequence_ + 1, tokens);
}

std::int64_t GptDataset::ordered_samples() const {
  return (end_ - begin_ - 1) / sequence_;
}

void GptDataset::ordered_sample(std::int64_t i, std::int32_t* tokens) const {
  MT_ASSERT(i >= 0 && i < ordered_samples());
  shard_->read(begin_ + i * sequence_, sequence_ + 1, tokens);
}

double GptBatch::weight_sum() const {
  return std::accumulate(loss_weight.begin(), loss_weight.end(), 0.0);
}

void make_gpt_batch(const std::int32_t* windows, std::int64_t batch, std::int64_t sequence,
                    std::int32_t end_of_document, const PackingOptions& packing,
                    const std::int64_t* samples, GptBatch& out) {
  const auto size = static_cast<std::size_t>(batch * sequence);
  out.batch = batch;
  out.sequence = sequence;
  out.tokens.resize(size);
  out.labels.resize(size);
  out.position_ids.resize(size);
  out.first_key.resize(packing.reset_attention_mask ? size : 0);
  out.loss_weight.assign(size, 1.0F);
  out.samples.assign(samples, samples + batch);
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int32_t* const row = windows + b * (sequence + 1);
    std::int32_t start = 0;  // of the document that position i belongs to
    for (std::int64_t i = 0; i < sequence; ++i) {
      const auto at = static_cast<std::size_t>(b * sequence + i);
      if (i > 0 && row[i - 1] == end_of_document) start = static_cast<std::int32_t>(i);
      out.tokens[at] = row[i];
      out.labels[at] = row[i + 1];
      out.position_ids[at] =
          static_cast<std::int32_t>(i) - (packing.reset_position_ids ? start : 0);
      if (packing.reset_attention_mask) out.first_key[at] = start;
      if (packing.eod_mask_loss && row[i] == end_of_document) out.loss_weight[at] = 0.0F;
    }
  }
}

}  // namespace mt
