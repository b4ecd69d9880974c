// Blocked attention (Dao et al., arXiv:2205.14135, algorithms 1 and 4): a few query rows against 64
// keys at a time, so that scores live in the first cache and nowhere else. A head's rows are packed
// first, because rows of all heads lie so far apart that they would fight for a few cache sets.
//
// Bits: a score is a chain over the head's size, an output a chain over keys, dk and dv chains over
// queries, dq a chain over keys; which rows share a tile enters nowhere. Masked keys contribute
// zeros, which leave a chain as it is but for the sign of a zero, so outputs get + 0.

#include "kernels/cpu/attention_head.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/parallel.h"

namespace mt::cpu::MT_KERNEL_SET {
namespace {

constexpr std::int64_t kForwardQueries = 128;
constexpr std::int64_t kBackwardQueries = 64;
constexpr std::int64_t kGroup = kTileRows;

float log_of(float x) {
  alignas(64) float lanes[16];
  store(lanes, log(all(x)));
  return lanes[0];
}

struct ForwardScratch {
  float *k_columns, *v_rows, *sums, *scores, *lanes, *max;
  static std::int64_t floats(std::int64_t width) {
    return 2 * kKeys * width + kForwardQueries * (width + 17) + kGroup * kKeys;
  }
  ForwardScratch(float* base, std::int64_t width)
      : k_columns(base),
        v_rows(k_columns + kKeys * width),
        sums(v_rows + kKeys * width),
        scores(sums + kForwardQueries * width),
        lanes(scores + kGroup * kKeys),
        max(lanes + kForwardQueries * 16) {}
};

// Rows begin .. end - 1 of a tile that starts at tile_begin, against the packed keys at `key`.
void forward_group(const AttentionForward& f, const Head& h, const ForwardScratch& t,
                   std::int64_t tile_begin, std::int64_t begin, std::int64_t end,
                   std::int64_t key) {
  const std::int64_t depth = smaller(kKeys, smaller(h.last_end(end), h.keys) - key);
  if (depth <= 0 || (h.s.first_key != nullptr && h.least_first(begin, end) >= key + kKeys)) {
    return;
  }
  const std::int64_t columns = round_up(depth, 16);
  const std::int64_t rows = end - begin;
  tile_product<Start::kZero>({.a = h.q(static_cast<const float*>(f.q), begin),
                              .a_row = h.s.q_row,
                              .a_step = 1,
                              .b = t.k_columns,
                              .b_row = 16,
                              .b_panel = 16 * h.s.head_size,
                              .c = t.scores,
                              .c_row = kKeys,
                              .depth = h.s.head_size},
                             rows, columns);
  float* sums = t.sums + (begin - tile_begin) * h.width;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t query = begin + r;
    const std::int64_t in_tile = query - tile_begin;
    float* scores = t.scores + r * kKeys;
    const Range seen = {h.first_key(query) - key, smaller(h.end_key(query), h.keys) - key};
    const float factor =
        softmax_step(scores, columns, seen, h.s.scale, {t.max + in_tile, t.lanes + in_tile * 16});
    if (factor != 1.0F) {
      multiply_row(sums + r * h.width, h.width, factor);
    }
    if (h.drops()) {
      alignas(64) float factors[kKeys];
      h.factors(query, key, factors);
      for (std::int64_t i = 0; i < columns; i += 16) {
        store(scores + i, load(scores + i) * load(factors + i));
      }
    }
  }
  tile_product<Start::kPresent>({.a = t.scores,
                                 .a_row = kKeys,
                                 .a_step = 1,
                                 .b = t.v_rows,
                                 .b_row = h.width,
                                 .b_panel = 16,
                                 .c = sums,
                                 .c_row = h.width,
                                 .depth = depth},
                                rows, h.width);
}

void forward_tile(const AttentionForward& f, const Head& h, std::int64_t begin, float* base) {
  const ForwardScratch t(base, h.width);
  const std::int64_t end = smaller(begin + kForwardQueries, h.s.queries);
  const std::int64_t rows = end - begin;
  for (std::int64_t i = 0; i < rows * h.width; i += 16) {
    store(t.sums + i, all(0.0F));
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    store(t.lanes + r * 16, all(0.0F));
    t.max[r] = -__builtin_inff();
  }
  const std::int64_t key_end = smaller(h.last_end(end), h.keys);
  const std::int64_t key_begin = h.least_first(begin, end) / kKeys * kKeys;
  for (std::int64_t key = key_begin; key < key_end; key += kKeys) {
    const std::int64_t keys = smaller(kKeys, h.keys - key);
    pack_columns(h.kv(static_cast<const float*>(f.k), key), h.s.kv_row, keys, h.s.head_size,
                 t.k_columns);
    pack_rows(h.kv(static_cast<const float*>(f.v), key), h.s.kv_row, keys, kKeys, h.s.head_size,
              h.width, t.v_rows);
    std::int64_t ahead = key + kKeys;
    for (std::int64_t g = begin; g < end; g += kGroup) {
      ahead = h.prefetch_keys(f.k, f.v, ahead, smaller(key + 2 * kKeys, key_end));
      forward_group(f, h, t, begin, g, smaller(g + kGroup, end), key);
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    const float total = sum(load(t.lanes + r * 16));
    float* out = h.out(static_cast<float*>(f.out), begin + r);
    const Floats divisor = all(total == 0.0F ? 1.0F : total);  // a query that sees no key gives 0
    sweep(0, h.s.head_size, [&](std::int64_t i, auto part) {
      store(out + i, load(t.sums + r * h.width + i) / divisor + all(0.0F), part);
    });
    if (f.log_sum_exp != nullptr) {
      f.log_sum_exp[(h.sample * h.s.heads + h.head) * h.s.queries + begin + r] =
          t.max[r] + log_of(total);
    }
  }
}

struct BackwardScratch {
  float *q, *dout, *dq;                             // the head's [queries, width]
  float *k_columns, *v_columns, *k_rows, *dk, *dv;  // of one block of keys
  float *probabilities, *dscores, *row_sums;        // of one tile; row_sums of all queries
  static std::int64_t floats(std::int64_t queries, std::int64_t width) {
    return (3 * width + 1) * round_up(queries, kBackwardQueries) + 5 * kKeys * width +
           2 * kBackwardQueries * kKeys;
  }
  BackwardScratch(float* base, std::int64_t queries, std::int64_t width)
      : q(base),
        dout(q + round_up(queries, kBackwardQueries) * width),
        dq(dout + round_up(queries, kBackwardQueries) * width),
        k_columns(dq + round_up(queries, kBackwardQueries) * width),
        v_columns(k_columns + kKeys * width),
        k_rows(v_columns + kKeys * width),
        dk(k_rows + kKeys * width),
        dv(dk + kKeys * width),
        probabilities(dv + kKeys * width),
        dscores(probabilities + kBackwardQueries * kKeys),
        row_sums(dscores + kBackwardQueries * kKeys) {}
};

// A row's scores and dP (the gradient of its probabilities) become the probabilities that the
// output saw and the gradient of the scores: dS = P (dP - D) scale. 64 columns are written.
void score_gradient_row(const Head& h, std::int64_t query, std::int64_t key, std::int64_t columns,
                        float log_sum_exp, float row_sum, float* scores, float* dscores) {
  const Range seen = {h.first_key(query) - key, smaller(h.end_key(query), h.keys) - key};
  alignas(64) float factors[kKeys];
  if (h.drops()) {
    h.factors(query, key, factors);
  }
  for (std::int64_t i = 0; i < columns; i += 16) {
    Floats p = exp(fma(load(scores + i), all(h.s.scale), all(-log_sum_exp)));
    Floats dp = load(dscores + i);
    Floats dropped = p;
    if (h.drops()) {
      const Floats f = load(factors + i);
      dp = dp * f;
      dropped = p * f;
    }
    Floats ds = p * (dp - all(row_sum)) * all(h.s.scale);
    if (!seen.whole(columns)) {
      const Mask lanes = seen.lanes(i);
      ds = select(lanes, ds, all(0.0F));
      dropped = select(lanes, dropped, all(0.0F));
    }
    store(scores + i, dropped);
    store(dscores + i, ds);
  }
  for (std::int64_t i = columns; i < kKeys; i += 16) {
    store(scores + i, all(0.0F));
    store(dscores + i, all(0.0F));
  }
}

// Probabilities and score gradients of rows begin .. end - 1 of a tile, and their part of dq.
void backward_group(const AttentionBackward& b, const Head& h, const BackwardScratch& t,
                    std::int64_t tile_begin, std::int64_t begin, std::int64_t end,
                    std::int64_t key) {
  const std::int64_t rows = end - begin;
  float* scores = t.probabilities + (begin - tile_begin) * kKeys;
  float* dscores = t.dscores + (begin - tile_begin) * kKeys;
  std::int64_t depth = larger(0, smaller(kKeys, smaller(h.last_end(end), h.keys) - key));
  if (h.s.first_key != nullptr && h.least_first(begin, end) >= key + kKeys) {
    depth = 0;
  }
  const std::int64_t columns = round_up(depth, 16);
  const Tile product = {.a = t.q + begin * h.width,
                        .a_row = h.width,
                        .a_step = 1,
                        .b = t.k_columns,
                        .b_row = 16,
                        .b_panel = 16 * h.s.head_size,
                        .c = scores,
                        .c_row = kKeys,
                        .depth = h.s.head_size};
  tile_product<Start::kZero>(product, rows, columns);
  Tile gradient = product;
  gradient.a = t.dout + begin * h.width;
  gradient.b = t.v_columns;
  gradient.c = dscores;
  tile_product<Start::kZero>(gradient, rows, columns);
  const float* log_sum_exp = b.log_sum_exp + (h.sample * h.s.heads + h.head) * h.s.queries;
  for (std::int64_t r = 0; r < rows; ++r) {
    score_gradient_row(h, begin + r, key, columns, log_sum_exp[begin + r], t.row_sums[begin + r],
                       scores + r * kKeys, dscores + r * kKeys);
  }
  tile_product<Start::kPresent>({.a = dscores,
                                 .a_row = kKeys,
                                 .a_step = 1,
                                 .b = t.k_rows,
                                 .b_row = h.width,
                                 .b_panel = 16,
                                 .c = t.dq + begin * h.width,
                                 .c_row = h.width,
                                 .depth = depth},
                                rows, h.width);
}

// dv += P^T dout and dk += dS^T q for the tile's queries. Keys that lie behind a tile's first
// queries begin their chain later.
void add_key_gradients(const Head& h, const BackwardScratch& t, std::int64_t tile_begin,
                       std::int64_t tile_end, std::int64_t key, std::int64_t keys) {
  for (std::int64_t k = 0; k < keys; k += kGroup) {
    std::int64_t first = tile_begin;
    if (h.s.causal) {
      first = larger(first, key + k - (h.keys - h.s.queries));
    }
    if (first >= tile_end) {
      break;
    }
    const std::int64_t rows = smaller(kGroup, keys - k);
    const Tile values = {.a = t.probabilities + (first - tile_begin) * kKeys + k,
                         .a_row = 1,
                         .a_step = kKeys,
                         .b = t.dout + first * h.width,
                         .b_row = h.width,
                         .b_panel = 16,
                         .c = t.dv + k * h.width,
                         .c_row = h.width,
                         .depth = tile_end - first};
    tile_product<Start::kPresent>(values, rows, h.width);
    Tile gradient = values;
    gradient.a = t.dscores + (first - tile_begin) * kKeys + k;
    gradient.b = t.q + first * h.width;
    gradient.c = t.dk + k * h.width;
    tile_product<Start::kPresent>(gradient, rows, h.width);
  }
}

void backward_keys(const AttentionBackward& b, const Head& h, const BackwardScratch& t,
                   std::int64_t key) {
  const std::int64_t d = h.s.head_size;
  const std::int64_t keys = smaller(kKeys, h.keys - key);
  const float* k = h.kv(static_cast<const float*>(b.k), key);
  pack_columns(k, h.s.kv_row, keys, d, t.k_columns);
  pack_rows(k, h.s.kv_row, keys, kKeys, d, h.width, t.k_rows);
  pack_columns(h.kv(static_cast<const float*>(b.v), key), h.s.kv_row, keys, d, t.v_columns);
  for (std::int64_t i = 0; i < 2 * kKeys * h.width; i += 16) {
    store(t.dk + i, all(0.0F));  // and dv behind it
  }
  std::int64_t ahead = key + kKeys;
  for (std::int64_t tile = 0; tile < h.s.queries; tile += kBackwardQueries) {
    const std::int64_t end = smaller(tile + kBackwardQueries, h.s.queries);
    if (h.last_end(end) <= key || h.least_first(tile, end) >= key + keys) {
      continue;
    }
    for (std::int64_t g = tile; g < end; g += kGroup) {
      ahead = h.prefetch_keys(b.k, b.v, ahead, smaller(key + 2 * kKeys, h.keys));
      backward_group(b, h, t, tile, g, smaller(g + kGroup, end), key);
    }
    add_key_gradients(h, t, tile, end, key, keys);
  }
  for (std::int64_t r = 0; r < keys; ++r) {
    float* dk = h.kv(static_cast<float*>(b.dk), key + r);
    float* dv = h.kv(static_cast<float*>(b.dv), key + r);
    sweep(0, d, [&](std::int64_t i, auto part) {
      store(dk + i, load(t.dk + r * h.width + i) + all(0.0F), part);
      store(dv + i, load(t.dv + r * h.width + i) + all(0.0F), part);
    });
  }
}

void backward_head(const AttentionBackward& b, const Head& h, float* base) {
  const BackwardScratch t(base, h.s.queries, h.width);
  const std::int64_t d = h.s.head_size;
  const std::int64_t queries = h.s.queries;
  pack_rows(h.q(static_cast<const float*>(b.q), 0), h.s.q_row, queries, queries, d, h.width, t.q);
  pack_rows(h.out(static_cast<const float*>(b.dout), 0), h.s.out_row, queries, queries, d, h.width,
            t.dout);
  for (std::int64_t r = 0; r < queries; ++r) {
    const float* out = h.out(static_cast<const float*>(b.out), r);
    Floats total = all(0.0F);
    sweep(0, d, [&](std::int64_t i, auto part) {
      total = fma(load(t.dout + r * h.width + i), load(out + i, part), total);
    });
    t.row_sums[r] = sum(total);
  }
  for (std::int64_t i = 0; i < queries * h.width; i += 16) {
    store(t.dq + i, all(0.0F));
  }
  for (std::int64_t key = 0; key < h.keys; key += kKeys) {
    backward_keys(b, h, t, key);
  }
  for (std::int64_t r = 0; r < queries; ++r) {
    float* dq = h.q(static_cast<float*>(b.dq), r);
    sweep(0, d, [&](std::int64_t i, auto part) {
      store(dq + i, load(t.dq + r * h.width + i) + all(0.0F), part);
    });
  }
}

// Memory for every thread that may take part, each a whole number of cache lines.
float* thread_scratch(std::int64_t floats) {
  const auto bytes = static_cast<std::size_t>(threads() * round_up(floats, 16)) * 4;
  return static_cast<float*>(scratch(bytes));
}

// True if there is enough to do for a second thread: waking one costs some microseconds.
bool worth_threads(const AttentionShape& s) {
  constexpr std::int64_t kGrain = 400'000;  // multiplications
  return s.batch * s.heads > kGrain / (s.queries * s.keys * s.head_size + 1);
}

}  // namespace

void attention_forward(DType dtype, const AttentionForward& f) {
  require_f32(dtype);
  if (f.shape.queries == 1 && f.log_sum_exp == nullptr && f.shape.dropout.probability == 0) {
    attention_of_one_query(f);
    return;
  }
  const std::int64_t floats = round_up(ForwardScratch::floats(round_up(f.shape.head_size, 16)), 16);
  const std::int64_t items = f.shape.batch * f.shape.heads;
  float* memory = thread_scratch(floats);
  // The tiles of one head follow each other, the longest first.
  const std::int64_t tiles = (f.shape.queries + kForwardQueries - 1) / kForwardQueries;
  const int most = worth_threads(f.shape) ? threads() : 1;
  parallel_parts(items * tiles, most, [&](std::int64_t i, int thread) {
    const Head head(f.shape, i / tiles);
    forward_tile(f, head, (tiles - 1 - i % tiles) * kForwardQueries, memory + thread * floats);
  });
}

void attention_backward(DType dtype, const AttentionBackward& b) {
  require_f32(dtype);
  const std::int64_t floats =
      round_up(BackwardScratch::floats(b.shape.queries, round_up(b.shape.head_size, 16)), 16);
  const std::int64_t items = b.shape.batch * b.shape.heads;
  float* memory = thread_scratch(floats);
  parallel_parts(items, worth_threads(b.shape) ? threads() : 1, [&](std::int64_t i, int thread) {
    backward_head(b, Head(b.shape, i), memory + thread * floats);
  });
}

}  // namespace mt::cpu::MT_KERNEL_SET
