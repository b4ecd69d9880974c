// Attention of one query over many keys, as in decoding, which is bound by reading keys and values
// once: several heads take them in the order in which they lie, in rows of all heads, and what
// comes next is asked for meanwhile. Each chain is that of attention.cc.

#include "kernels/cpu/attention_head.h"
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/parallel.h"

namespace mt::cpu::MT_KERNEL_SET {
namespace {

constexpr std::int64_t kPanel = 16;  // keys whose scores are made together, one a lane
constexpr std::int64_t kValues = 8;  // values that are added before the sums go back to memory

// Heads of one sample that one thread does, and their state.
struct Heads {
  std::int64_t sample, begin, end;
  float *scores, *sums, *lanes, *max;  // [heads, kKeys], [heads, width], [heads, 16], [heads]

  static std::int64_t floats(std::int64_t heads, std::int64_t width) {
    return round_up(heads * (kKeys + width + 17), 16);
  }
  Heads(std::int64_t of, std::int64_t first, std::int64_t last, std::int64_t width, float* base)
      : sample(of),
        begin(first),
        end(last),
        scores(base),
        sums(scores + (last - first) * kKeys),
        lanes(sums + (last - first) * width),
        max(lanes + (last - first) * 16) {}
  [[nodiscard]] std::int64_t count() const { return end - begin; }
};

void prefetch_row(const float* row, std::int64_t floats) {
  for (std::int64_t i = 0; i < floats; i += 16) {
    __builtin_prefetch(row + i);
  }
}

// Scores of `keys` <= kPanel keys from `key` on, zeros behind them.
void score_panel(const AttentionForward& f, const Head& h, std::int64_t key, std::int64_t keys,
                 float* scores) {
  const std::int64_t d = h.s.head_size;
  const float* q = h.q(static_cast<const float*>(f.q), 0);
  const float* k = h.kv(static_cast<const float*>(f.k), key);
  Floats score = all(0.0F);
  for (std::int64_t i = 0; i < d; i += 16) {
    const int lanes = d - i < 16 ? static_cast<int>(d - i) : 16;
    Floats m[16];
    for (int r = 0; r < 16; ++r) {
      m[r] = r < keys ? load_part(k + r * h.s.kv_row + i, lanes) : all(0.0F);
    }
    transpose16(m);
    for (int r = 0; r < lanes; ++r) {
      score = fma(all(q[i + r]), m[r], score);
    }
  }
  store(scores, score);
}

// sums += probabilities of `keys` <= kValues keys times their values.
void add_values(const AttentionForward& f, const Head& h, std::int64_t key, std::int64_t keys,
                const float* probabilities, float* sums) {
  const float* v = h.kv(static_cast<const float*>(f.v), key);
  sweep(0, h.s.head_size, [&](std::int64_t i, auto part) {
    Floats total = load(sums + i);
    for (std::int64_t r = 0; r < keys; ++r) {
      total = fma(all(probabilities[r]), load(v + r * h.s.kv_row + i, part), total);
    }
    store(sums + i, total);
  });
}

void forward_block(const AttentionForward& f, const Heads& heads, std::int64_t key,
                   std::int64_t end) {
  const AttentionShape& s = f.shape;
  const std::int64_t depth = smaller(kKeys, end - key), columns = round_up(depth, 16);
  const auto head_of = [&](std::int64_t i) {
    return Head(s, heads.sample * s.heads + heads.begin + i);
  };
  const auto* values = static_cast<const float*>(f.v);
  for (std::int64_t panel = 0; panel < depth; panel += kPanel) {
    const std::int64_t keys = smaller(kPanel, depth - panel);
    for (std::int64_t i = 0; i < heads.count(); ++i) {
      const Head h = head_of(i);
      for (std::int64_t r = 0; r < keys; ++r) {
        prefetch_row(h.kv(values, key + panel + r), s.head_size);
      }
      score_panel(f, h, key + panel, keys, heads.scores + i * kKeys + panel);
    }
  }
  for (std::int64_t i = 0; i < heads.count(); ++i) {
    const Head h = head_of(i);
    const Range seen = {h.first_key(0) - key, depth};
    const float factor = softmax_step(heads.scores + i * kKeys, columns, seen, s.scale,
                                      {heads.max + i, heads.lanes + i * 16});
    if (factor != 1.0F) {
      multiply_row(heads.sums + i * h.width, h.width, factor);
    }
  }
  const auto* keys_of = static_cast<const float*>(f.k);
  for (std::int64_t at = 0; at < depth; at += kValues) {
    const std::int64_t keys = smaller(kValues, depth - at);
    for (std::int64_t i = 0; i < heads.count(); ++i) {
      const Head h = head_of(i);
      for (std::int64_t r = key + kKeys + at; r < smaller(key + kKeys + at + keys, end); ++r) {
        prefetch_row(h.kv(keys_of, r), s.head_size);
      }
      add_values(f, h, key + at, keys, heads.scores + i * kKeys + at, heads.sums + i * h.width);
    }
  }
}

void forward_heads(const AttentionForward& f, const Heads& heads) {
  const AttentionShape& s = f.shape;
  const Head first(s, heads.sample * s.heads + heads.begin);
  for (std::int64_t i = 0; i < heads.count() * first.width; i += 16) {
    store(heads.sums + i, all(0.0F));
  }
  for (std::int64_t i = 0; i < heads.count(); ++i) {
    store(heads.lanes + i * 16, all(0.0F));
    heads.max[i] = -__builtin_inff();
  }
  for (std::int64_t key = first.first_key(0) / kKeys * kKeys; key < first.keys; key += kKeys) {
    forward_block(f, heads, key, first.keys);
  }
  for (std::int64_t i = 0; i < heads.count(); ++i) {
    const Head h(s, heads.sample * s.heads + heads.begin + i);
    const float total = sum(load(heads.lanes + i * 16));
    float* out = h.out(static_cast<float*>(f.out), 0);
    const Floats divisor = all(total == 0.0F ? 1.0F : total);  // a query that sees no key gives 0
    sweep(0, s.head_size, [&](std::int64_t j, auto part) {
      store(out + j, load(heads.sums + i * h.width + j) / divisor + all(0.0F), part);
    });
  }
}

}  // namespace

void attention_of_one_query(const AttentionForward& f) {
  const AttentionShape& s = f.shape;
  // Worth a second thread: some 100 KB of keys and values.
  constexpr std::int64_t kGrain = 16384;
  const int most = s.batch * s.heads * s.head_size * s.keys > kGrain ? threads() : 1;
  // All heads of a sample where there are samples for all threads.
  constexpr std::int64_t kItemsPerThread = 2;
  const std::int64_t wanted = most == 1 ? 1 : kItemsPerThread * most;
  const std::int64_t groups = smaller(s.heads, (wanted + s.batch - 1) / s.batch);
  const std::int64_t width = round_up(s.head_size, 16);
  const std::int64_t floats = Heads::floats((s.heads + groups - 1) / groups, width);
  auto* memory = static_cast<float*>(scratch(static_cast<std::size_t>(threads() * floats) * 4));
  parallel_parts(s.batch * groups, most, [&](std::int64_t item, int thread) {
    const std::int64_t group = item % groups;
    forward_heads(f, Heads(item / groups, group * s.heads / groups, (group + 1) * s.heads / groups,
                           width, memory + thread * floats));
  });
}

}  // namespace mt::cpu::MT_KERNEL_SET
