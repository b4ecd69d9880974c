// The ids of pieces that came up before, in bounded memory: a hash table of two ways that begins
// small and grows by what is put into it up to 8 MiB, then forgets. What it answers is what was put
// in; whether it answers depends on the past, so nothing but time may depend on that.
//
// An entry has 32 bytes and a set of two is one line of a processor's cache: pieces of up to 15
// bytes and 4 ids, which are 99 of 100 pieces of any text (a table with larger ones takes the
// others).
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

namespace mt {

class PieceCache {
 public:
  static constexpr std::size_t kKeyBytes = 15;
  static constexpr std::size_t kMostIds = 4;
  static constexpr std::size_t kSlack = kMostIds;  // ids that find() may write

  // The bytes of a piece with zeros after them; the last byte is the length, which is never 0.
  struct Key {
    std::uint64_t low, high;
    friend bool operator==(const Key& a, const Key& b) {
      return ((a.low ^ b.low) | (a.high ^ b.high)) == 0;
    }
  };

  PieceCache() : sets_(std::size_t{1} << kFirstBits) {}

  // 0 < length <= kKeyBytes. `readable` bytes may be read from p on.
  static Key key(const char* p, std::size_t length, std::size_t readable) {
    Key k{};
    if (readable >= sizeof(Key)) {
      std::memcpy(&k, p, sizeof(Key));
      k.low &= kMasks[length].low;
      k.high &= kMasks[length].high;
    } else {
      std::memcpy(&k, p, length);
    }
    k.high |= static_cast<std::uint64_t>(length) << 56;
    return k;
  }

  static std::uint64_t hash(const Key& k) {
    const std::uint64_t h = (k.low ^ (k.high * 0xC2B2AE3D27D4EB4FU)) * 0x9E3779B97F4A7C15U;
    return (h ^ (h >> 32)) * 0x9E3779B97F4A7C15U;
  }
  // Asks for what find() will read.
  void prefetch(std::uint64_t hash) const { __builtin_prefetch(&sets_[hash >> shift_]); }

  // How many ids the piece has, written to `ids`, where there is room for kSlack; 0: not known.
  std::size_t find(const Key& k, std::uint64_t hash, std::int32_t* ids) const {
    const Set& set = sets_[hash >> shift_];
    const Entry* entry = set.data();
    if (!(entry->key == k)) {
      ++entry;
      if (!(entry->key == k)) return 0;
    }
    std::memcpy(ids, entry->ids.data(), sizeof(entry->ids));
    const auto first = static_cast<std::uint32_t>(ids[0]);
    ids[0] = static_cast<std::int32_t>(first & kIdMask);
    return first >> kIdBits;
  }

  // count <= kMostIds, ids below 2^24. The newest entry of a set is its first.
  void put(const Key& k, std::uint64_t hash, const std::int32_t* ids, std::size_t count) {
    if (++put_ > sets_.size() && shift_ > 64 - kMostBits) grow();
    Set& set = sets_[hash >> shift_];
    set[1] = set[0];
    set[0].key = k;
    std::memcpy(set[0].ids.data(), ids, count * sizeof(std::int32_t));
    set[0].ids[0] |= static_cast<std::int32_t>(count << kIdBits);
  }

 private:
  static constexpr unsigned kFirstBits = 10, kMostBits = 17;  // of the number of sets
  static constexpr unsigned kIdBits = 24;
  static constexpr std::uint32_t kIdMask = (1U << kIdBits) - 1;
  struct Entry {
    Key key{};                                 // a length of 0 matches no piece
    std::array<std::int32_t, kMostIds> ids{};  // the first with the count above its 24 bits
  };
  struct alignas(64) Set : std::array<Entry, 2> {};
  static_assert(sizeof(Set) == 64);

  static constexpr std::array<Key, 16> kMasks = [] {
    std::array<Key, 16> masks{};
    for (unsigned n = 0; n < 16; ++n) {
      masks[n].low = n >= 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * n)) - 1;
      masks[n].high = n > 8 ? (std::uint64_t{1} << (8 * (n - 8))) - 1 : 0;
    }
    return masks;
  }();

  void grow() {
    std::vector<Set> old(sets_.size() * 4);
    old.swap(sets_);
    shift_ -= 2;
    if (shift_ < 64 - kMostBits) shift_ = 64 - kMostBits;
    sets_.resize(std::size_t{1} << (64 - shift_));
    for (const Set& set : old) {
      for (std::size_t way = set.size(); way-- > 0;) {
        if (set[way].key.high == 0) continue;
        Set& to = sets_[hash(set[way].key) >> shift_];
        to[1] = to[0];
        to[0] = set[way];
      }
    }
  }

  std::vector<Set> sets_;
  unsigned shift_ = 64 - kFirstBits;
  std::size_t put_ = 0;
};

// The same for pieces of up to 47 bytes and 19 ids, which are rare, in one way and up to 2 MiB.
class LongPieceCache {
 public:
  static constexpr std::size_t kKeyBytes = 47;
  static constexpr std::size_t kMostIds = 19;

  // length <= kKeyBytes.
  std::size_t find(const char* p, std::size_t length, std::int32_t* ids) const {
    if (entries_.empty()) return 0;
    const Entry& entry = entries_[place(p, length)];
    if (entry.length != length || std::memcmp(entry.bytes.data(), p, length) != 0) return 0;
    std::memcpy(ids, entry.ids.data(), entry.count * sizeof(std::int32_t));
    return entry.count;
  }
  void put(const char* p, std::size_t length, const std::int32_t* ids, std::size_t count) {
    if (entries_.empty()) entries_.resize(std::size_t{1} << kBits);
    Entry& entry = entries_[place(p, length)];
    entry.length = static_cast<std::uint8_t>(length);
    entry.count = static_cast<std::uint32_t>(count);
    std::memcpy(entry.bytes.data(), p, length);
    std::memcpy(entry.ids.data(), ids, count * sizeof(std::int32_t));
  }

 private:
  static constexpr unsigned kBits = 14;
  struct Entry {
    std::array<char, kKeyBytes> bytes{};
    std::uint8_t length = 0;
    std::uint32_t count = 0;
    std::array<std::int32_t, kMostIds> ids{};
  };
  static_assert(sizeof(Entry) == 128);

  static std::size_t place(const char* p, std::size_t length) {
    std::uint64_t h = length;
    for (; length >= 8; p += 8, length -= 8) h = mix(h, p, 8);
    if (length > 0) h = mix(h, p, length);
    return h >> (64 - kBits);
  }
  static std::uint64_t mix(std::uint64_t h, const char* p, std::size_t bytes) {
    std::uint64_t word = 0;
    std::memcpy(&word, p, bytes);
    h = (h ^ word) * 0x9E3779B97F4A7C15U;
    return (h ^ (h >> 29)) * 0xC2B2AE3D27D4EB4FU;
  }

  std::vector<Entry> entries_;
};

}  // namespace mt
