// GPT-2's byte-level BPE. A text is split into pieces (pretokenizer.h); in each piece the pair of
// neighbours of the lowest rank, the leftmost of equals, is merged until none is left. Pieces come
// back often, so a fixed table keeps the ids of short ones; the ids never depend on it.
#include <algorithm>
#include <array>
#include <cstring>
#include <queue>

#include "base/error.h"
#include "text/merge_table.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace mt {
namespace {

// What all clones share. It does not change.
struct Model {
  Model(TokenizerFiles f, const std::string& where)
      : files(std::move(f)),
        vocabulary(read_bpe_vocabulary(files, where)),
        merges(vocabulary.merges) {}
  TokenizerFiles files;
  BpeVocabulary vocabulary;
  MergeTable merges;
};

// The ids of short pieces: each piece has one slot, which the latest one takes.
class PieceCache {
 public:
  static constexpr std::size_t kKeyBytes = 23;
  static constexpr std::size_t kMostIds = 9;
  struct Key {
    std::array<std::uint64_t, 3> words;  // the bytes, zeros after them; the last byte is the length
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Entry {
    Key key{};  // no piece is empty, so a length of 0 matches none
    std::uint32_t count = 0;
    std::array<std::int32_t, kMostIds> ids{};
  };
  static_assert(sizeof(Entry) == 64);

  PieceCache() : entries_(kSlots) {}

  // length <= kKeyBytes. `readable` bytes may be read from p on.
  static Key key(const char* p, std::size_t length, std::size_t readable) {
    Key k{};
    if (readable >= sizeof(Key)) {
      std::memcpy(&k, p, sizeof(Key));
      const auto keep = [&](std::size_t word) {
        const std::size_t bytes =
            length > word * 8 ? std::min<std::size_t>(length - word * 8, 8) : 0;
        return bytes == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * bytes)) - 1;
      };
      for (std::size_t w = 0; w < 3; ++w) k.words[w] &= keep(w);
    } else {
      std::memcpy(&k, p, length);
    }
    k.words[2] |= static_cast<std::uint64_t>(length) << 56;
    return k;
  }

  Entry& slot(const Key& k) {
    std::uint64_t h = k.words[0] * 0x9E3779B97F4A7C15U;
    h = (h ^ (h >> 32) ^ k.words[1]) * 0xC2B2AE3D27D4EB4FU;
    h = (h ^ (h >> 29) ^ k.words[2]) * 0x165667B19E3779F9U;
    return entries_[h >> (64 - kSlotBits)];
  }

 private:
  static constexpr unsigned kSlotBits = 16;
  static constexpr std::size_t kSlots = std::size_t{1} << kSlotBits;  // 4 MiB
  std::vector<Entry> entries_;
};

// Merges inside one piece. The buffers are kept between pieces.
class PieceEncoder {
 public:
  explicit PieceEncoder(const Model& model) : model_(&model) {}

  void append(const char* p, std::size_t length, std::vector<std::int32_t>& ids) {
    if (length <= kShort) {
      append_short(p, length, ids);
    } else {
      append_long(p, length, ids);
    }
  }

 private:
  // Up to here looking through all pairs at every merge is faster than a heap.
  static constexpr std::size_t kShort = 64;
  using Merge = MergeTable::Merge;

  [[nodiscard]] std::int32_t byte_id(char c) const {
    return model_->vocabulary.byte_ids[static_cast<unsigned char>(c)];
  }

  void append_short(const char* p, std::size_t length, std::vector<std::int32_t>& ids) {
    std::array<std::int32_t, kShort> id;
    std::array<Merge, kShort> merge;  // of id[i] with id[i + 1]
    std::size_t count = length;
    for (std::size_t i = 0; i < count; ++i) id[i] = byte_id(p[i]);
    for (std::size_t i = 0; i + 1 < count; ++i) merge[i] = model_->merges.find(id[i], id[i + 1]);
    while (count > 1) {
      std::size_t best = 0;
      for (std::size_t i = 1; i + 1 < count; ++i) {
        if (merge[i].rank < merge[best].rank) best = i;
      }
      if (merge[best].rank == MergeTable::kNone) break;
      id[best] = merge[best].result;
      --count;
      for (std::size_t i = best + 1; i < count; ++i) {
        id[i] = id[i + 1];
        merge[i - 1] = merge[i];
      }
      if (best > 0) merge[best - 1] = model_->merges.find(id[best - 1], id[best]);
      if (best + 1 < count) merge[best] = model_->merges.find(id[best], id[best + 1]);
    }
    ids.insert(ids.end(), id.begin(), id.begin() + static_cast<std::ptrdiff_t>(count));
  }

  // A linked list of symbols and a heap of the pairs that may merge. An entry of the heap is stale
  // when its pair is no longer there, which the rank tells: a pair has one rank and one result.
  struct Symbol {
    std::int32_t id;
    std::int64_t before, after;  // -1: none
  };
  struct Candidate {
    std::uint32_t rank;
    std::int64_t at;  // the left symbol
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  using Heap = std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>>;

  [[nodiscard]] Merge merge_at(std::int64_t at) const {
    if (at < 0 || symbol(at).id < 0 || symbol(at).after < 0) return {};
    return model_->merges.find(symbol(at).id, symbol(symbol(at).after).id);
  }
  [[nodiscard]] const Symbol& symbol(std::int64_t i) const {
    return symbols_[static_cast<std::size_t>(i)];
  }
  Symbol& symbol(std::int64_t i) { return symbols_[static_cast<std::size_t>(i)]; }

  void append_long(const char* p, std::size_t length, std::vector<std::int32_t>& ids) {
    const auto count = static_cast<std::int64_t>(length);
    symbols_.resize(length);
    for (std::int64_t i = 0; i < count; ++i) {
      symbol(i) = {byte_id(p[i]), i - 1, i + 1 < count ? i + 1 : -1};
    }
    std::vector<Candidate> start;
    for (std::int64_t i = 0; i + 1 < count; ++i) {
      const Merge m = merge_at(i);
      if (m.rank != MergeTable::kNone) start.push_back({m.rank, i});
    }
    Heap heap(std::greater<>{}, std::move(start));
    const auto offer = [&](std::int64_t at) {
      const Merge m = merge_at(at);
      if (m.rank != MergeTable::kNone) heap.push({m.rank, at});
    };
    while (!heap.empty()) {
      const Candidate best = heap.top();
      heap.pop();
      const Merge m = merge_at(best.at);
      if (m.rank != best.rank) continue;
      Symbol& left = symbol(best.at);
      Symbol& right = symbol(left.after);
      left.id = m.result;
      left.after = right.after;
      right.id = -1;
      if (left.after >= 0) symbol(left.after).before = best.at;
      offer(left.before);
      offer(best.at);
    }
    for (std::int64_t i = 0; i >= 0; i = symbol(i).after) ids.push_back(symbol(i).id);
    if (symbols_.capacity() > kKeepSymbols) std::vector<Symbol>().swap(symbols_);
  }

  static constexpr std::size_t kKeepSymbols = std::size_t{1} << 16;
  const Model* model_;
  std::vector<Symbol> symbols_;
};

Digest128 digest_of(const BpeVocabulary& vocabulary) {
  StreamHash hash;
  const auto number = [&](std::size_t value) {
    const std::array<unsigned char, 4> bytes = {
        static_cast<unsigned char>(value), static_cast<unsigned char>(value >> 8),
        static_cast<unsigned char>(value >> 16), static_cast<unsigned char>(value >> 24)};
    hash.update(bytes.data(), bytes.size());
  };
  for (const std::string& token : vocabulary.tokens) {
    number(token.size());
    hash.update(token.data(), token.size());
  }
  for (const BpeMerge& m : vocabulary.merges) {
    number(static_cast<std::size_t>(m.left));
    number(static_cast<std::size_t>(m.right));
  }
  number(static_cast<std::size_t>(vocabulary.end_of_document));
  return hash.digest();
}

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(std::shared_ptr<const Model> model)
      : model_(std::move(model)), encoder_(*model_) {}

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::int32_t vocab_size() const override {
    return static_cast<std::int32_t>(model_->vocabulary.tokens.size());
  }
  [[nodiscard]] std::int32_t end_of_document() const override {
    return model_->vocabulary.end_of_document;
  }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    const char* p = text.data();
    const char* const end = p + text.size();
    while (p < end) {
      const char* const next = piece_end(p, end);
      append_piece(p, static_cast<std::size_t>(next - p), static_cast<std::size_t>(end - p), ids);
      p = next;
    }
  }

  [[nodiscard]] std::string decode(const std::int32_t* ids, std::size_t count) const override {
    const auto& tokens = model_->vocabulary.tokens;
    std::string out;
    for (std::size_t i = 0; i < count; ++i) {
      if (ids[i] < 0 || static_cast<std::size_t>(ids[i]) >= tokens.size()) {
        throw DataError(cat("token id ", ids[i], " is outside the vocabulary of ", tokens.size()));
      }
      out += tokens[static_cast<std::size_t>(ids[i])];
    }
    return out;
  }

  [[nodiscard]] std::unique_ptr<Tokenizer> clone() const override {
    return std::make_unique<BpeTokenizer>(model_);
  }
  [[nodiscard]] Digest128 digest() const override { return digest_of(model_->vocabulary); }
  [[nodiscard]] const TokenizerFiles& files() const override { return model_->files; }

 private:
  void append_piece(const char* p, std::size_t length, std::size_t readable,
                    std::vector<std::int32_t>& ids) {
    if (length > PieceCache::kKeyBytes) {
      encoder_.append(p, length, ids);
      return;
    }
    const PieceCache::Key key = PieceCache::key(p, length, readable);
    PieceCache::Entry& entry = cache_.slot(key);
    if (entry.key == key) {
      ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
      return;
    }
    const std::size_t before = ids.size();
    encoder_.append(p, length, ids);
    const std::size_t count = ids.size() - before;
    if (count > PieceCache::kMostIds) return;
    entry.key = key;
    entry.count = static_cast<std::uint32_t>(count);
    std::copy(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end(), entry.ids.begin());
  }

  std::string name_ = "GPT2BPETokenizer";
  std::shared_ptr<const Model> model_;
  PieceEncoder encoder_;
  PieceCache cache_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(TokenizerFiles files, const std::string& where) {
  return std::make_unique<BpeTokenizer>(std::make_shared<const Model>(std::move(files), where));
}

}  // namespace mt
