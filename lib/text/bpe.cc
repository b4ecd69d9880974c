// GPT-2's byte-level BPE. A text is split into pieces (pretokenizer.h); in each piece the pair of
// neighbours of the lowest rank, the leftmost of equals, is merged until none is left. Pieces come
// back often, so bounded tables keep the ids of short ones; the ids never depend on it.
#include <algorithm>
#include <array>
#include <cstring>
#include <queue>

#include "base/error.h"
#include "text/merge_table.h"
#include "text/piece_cache.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace mt {
namespace {

// What all clones share. It does not change.
struct Model {
  Model(TokenizerFiles f, const TokenizerNames& names)
      : files(std::move(f)),
        vocabulary(read_bpe_vocabulary(files, names)),
        merges(vocabulary.merges, vocabulary.byte_ids) {}
  TokenizerFiles files;
  BpeVocabulary vocabulary;
  MergeTable merges;
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

  [[nodiscard]] std::int32_t byte_id(char c) const {
    return model_->vocabulary.byte_ids[static_cast<unsigned char>(c)];
  }

  void append_short(const char* p, std::size_t length, std::vector<std::int32_t>& ids) {
    std::array<std::int32_t, kShort> id;
    std::array<std::uint32_t, kShort> rank;  // of id[i] and id[i + 1]
    const MergeTable& merges = model_->merges;
    std::size_t count = length;
    for (std::size_t i = 0; i < count; ++i) id[i] = byte_id(p[i]);
    for (std::size_t i = 0; i + 1 < count; ++i) {
      rank[i] = merges.rank_of_bytes(static_cast<unsigned char>(p[i]),
                                     static_cast<unsigned char>(p[i + 1]));
    }
    while (count > 1) {
      std::size_t best = 0;
      std::uint32_t lowest = rank[0];
      for (std::size_t i = 1; i + 1 < count; ++i) {
        best = rank[i] < lowest ? i : best;
        lowest = std::min(lowest, rank[i]);
      }
      if (lowest == MergeTable::kNone) break;
      id[best] = merges.result(lowest);
      --count;
      for (std::size_t i = best + 1; i < count; ++i) {
        id[i] = id[i + 1];
        rank[i - 1] = rank[i];
      }
      if (best > 0) rank[best - 1] = merges.rank(id[best - 1], id[best]);
      if (best + 1 < count) rank[best] = merges.rank(id[best], id[best + 1]);
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

  [[nodiscard]] std::uint32_t rank_at(std::int64_t at) const {
    if (at < 0 || symbol(at).id < 0 || symbol(at).after < 0) return MergeTable::kNone;
    return model_->merges.rank(symbol(at).id, symbol(symbol(at).after).id);
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
      const std::uint32_t rank = rank_at(i);
      if (rank != MergeTable::kNone) start.push_back({rank, i});
    }
    Heap heap(std::greater<>{}, std::move(start));
    const auto offer = [&](std::int64_t at) {
      const std::uint32_t rank = rank_at(at);
      if (rank != MergeTable::kNone) heap.push({rank, at});
    };
    while (!heap.empty()) {
      const Candidate best = heap.top();
      heap.pop();
      if (rank_at(best.at) != best.rank) continue;
      Symbol& left = symbol(best.at);
      Symbol& right = symbol(left.after);
      left.id = model_->merges.result(best.rank);
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
    std::size_t filled = 0;
    while (p < end) {
      const std::size_t count = split(p, end);
      for (std::size_t i = 0; i < count; ++i) {
        if (filled + kSlack > known_.size()) flush(filled, ids);
        const std::size_t found = find(pieces_[i], known_.data() + filled);
        filled += found;
        if (found > 0) continue;
        flush(filled, ids);
        encode_new(pieces_[i], ids);
      }
    }
    flush(filled, ids);
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
  struct Piece {
    const char* begin;
    std::size_t length;
    PieceCache::Key key;  // of short ones
    std::uint64_t hash;
  };

  // The next pieces from p on, which moves behind them. Many are split before the first is looked
  // up, so that the table's lines are on their way meanwhile.
  std::size_t split(const char*& p, const char* end) {
    std::size_t count = 0;
    for (; count < pieces_.size() && p < end; ++count) {
      Piece& piece = pieces_[count];
      const char* const next = piece_end(p, end);
      piece.begin = p;
      piece.length = static_cast<std::size_t>(next - p);
      if (piece.length <= PieceCache::kKeyBytes) {
        piece.key = PieceCache::key(p, piece.length, static_cast<std::size_t>(end - p));
        piece.hash = PieceCache::hash(piece.key);
        cache_.prefetch(piece.hash);
      }
      p = next;
    }
    return count;
  }
  std::size_t find(const Piece& piece, std::int32_t* out) const {
    if (piece.length <= PieceCache::kKeyBytes) {
      const std::size_t count = cache_.find(piece.key, piece.hash, out);
      if (count > 0) return count;
    }
    return piece.length <= LongPieceCache::kKeyBytes
               ? long_cache_.find(piece.begin, piece.length, out)
               : 0;
  }

  // Ids of pieces that were known go through a small buffer, for few and large insertions.
  void flush(std::size_t& filled, std::vector<std::int32_t>& ids) const {
    ids.insert(ids.end(), known_.begin(), known_.begin() + static_cast<std::ptrdiff_t>(filled));
    filled = 0;
  }
  void encode_new(const Piece& piece, std::vector<std::int32_t>& ids) {
    const std::size_t before = ids.size();
    encoder_.append(piece.begin, piece.length, ids);
    const std::size_t count = ids.size() - before;
    const std::int32_t* const made = ids.data() + before;
    if (piece.length <= PieceCache::kKeyBytes && count <= PieceCache::kMostIds) {
      cache_.put(piece.key, piece.hash, made, count);
    } else if (piece.length <= LongPieceCache::kKeyBytes && count <= LongPieceCache::kMostIds) {
      long_cache_.put(piece.begin, piece.length, made, count);
    }
  }

  static constexpr std::size_t kSlack = std::max(PieceCache::kSlack, LongPieceCache::kMostIds);
  std::string name_ = "GPT2BPETokenizer";
  std::shared_ptr<const Model> model_;
  PieceEncoder encoder_;
  PieceCache cache_;
  LongPieceCache long_cache_;
  std::array<Piece, 32> pieces_{};
  std::array<std::int32_t, 1024> known_{};
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(TokenizerFiles files, const TokenizerNames& names) {
  return std::make_unique<BpeTokenizer>(std::make_shared<const Model>(std::move(files), names));
}
std::unique_ptr<Tokenizer> make_bpe_tokenizer(TokenizerFiles files, const std::string& where) {
  return make_bpe_tokenizer(std::move(files), {where + ": vocab.json", where + ": merges.txt"});
}

}  // namespace mt
