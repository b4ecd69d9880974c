#include "train/step_products.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/threads.h"
#include "tensor/ops.h"

namespace mt {

namespace {

using Kind = StepProduct::Kind;

// A linear layer of `rows` rows: forward, and the two products of its backward pass.
void add_layer(const char* name, std::int64_t count, std::int64_t rows, std::int64_t out,
               std::int64_t in, std::vector<StepProduct>& list) {
  StepProduct each{.name = name, .forward = true, .m = rows, .n = out, .k = in, .count = count};
  list.push_back(each);
  each.forward = false;
  each.kind = Kind::kInput;
  each.n = in;
  each.k = out;
  list.push_back(each);
  each.kind = Kind::kWeight;
  each.m = out;
  each.k = rows;
  list.push_back(each);
}

void add_attention(const ModelConfig& config, std::int64_t batch, std::int64_t sequence,
                   std::vector<StepProduct>& list) {
  const std::int64_t size = config.hidden_size / config.num_attention_heads;
  const auto add = [&](const char* name, Kind kind, bool forward, std::int64_t n, std::int64_t k) {
    list.push_back({.name = name,
                    .kind = kind,
                    .forward = forward,
                    .m = sequence,
                    .n = n,
                    .k = k,
                    .batch = batch * config.num_attention_heads,
                    .count = config.num_layers,
                    .share = 0.5});
  };
  add("attention scores", Kind::kForward, true, sequence, size);     // q k^T
  add("attention values", Kind::kInput, true, size, sequence);       // p v
  add("attention dp", Kind::kForward, false, sequence, size);        // dout v^T
  add("attention dq", Kind::kInput, false, size, sequence);          // ds k
  add("attention dk and dv", Kind::kWeight, false, size, sequence);  // ds^T q and p^T dout
  list.back().count *= 2;
}

Tensor filled(Pool& pool, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(state >> 8) / 16777216.0F - 0.5F;
  }
  return upload(pool, values.data(), {count}, DType::kF32, MemoryKind::kWorkspace);
}

double seconds_of(const auto& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

double StepProduct::operations() const {
  return 2 * share * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) *
         static_cast<double>(batch * count);
}

std::vector<StepProduct> step_products(const ModelConfig& config, std::int64_t batch,
                                       std::int64_t sequence) {
  const std::int64_t rows = batch * sequence, h = config.hidden_size, f = config.ffn_hidden_size;
  const std::int64_t layers = config.num_layers;
  std::vector<StepProduct> list;
  add_layer("query_key_value", layers, rows, 3 * h, h, list);
  add_attention(config, batch, sequence, list);
  add_layer("attention dense", layers, rows, h, h, list);
  add_layer("dense_h_to_4h", layers, rows, f, h, list);
  add_layer("dense_4h_to_h", layers, rows, h, f, list);
  add_layer("logits", 1, rows, config.vocab_size, h, list);
  return list;
}

ProductRunner::ProductRunner(std::vector<StepProduct> products, Pool& pool)
    : products_(std::move(products)) {
  std::int64_t a = 0, b = 0, c = 0;
  for (const StepProduct& p : products_) {
    a = std::max(a, p.batch * p.m * p.k);
    b = std::max(b, p.batch * p.n * p.k);
    c = std::max(c, p.batch * p.m * p.n);
  }
  a_ = filled(pool, a);
  b_ = filled(pool, b);
  c_ = filled(pool, c);
}

ProductRunner::Operands ProductRunner::operands(std::size_t i, std::int64_t element) const {
  const StepProduct& p = products_.at(i);
  const auto part = [&](const Tensor& of, std::int64_t rows, std::int64_t cols) {
    return of.rows(element * rows * cols, (element + 1) * rows * cols).view({rows, cols});
  };
  const bool weight = p.kind == Kind::kWeight, forward = p.kind == Kind::kForward;
  return {.a = weight ? part(a_, p.k, p.m) : part(a_, p.m, p.k),
          .b = forward ? part(b_, p.n, p.k) : part(b_, p.k, p.n),
          .c = part(c_, p.m, p.n)};
}

void ProductRunner::run(std::size_t i) const {
  const StepProduct& p = products_.at(i);
  const auto one = [&](std::int64_t element) {
    const Operands o = operands(i, element);
    switch (p.kind) {
      case Kind::kForward:
        return linear(o.a, o.b, o.c);
      case Kind::kInput:
        return linear_dx(o.a, o.b, o.c);
      case Kind::kWeight:
        return linear_dweight(o.a, o.b, o.c);
    }
  };
  // Work that starts inside a part runs on that part's thread alone.
  run_parts_or_throw(p.batch, threads(), one);
}

double ProductRunner::seconds(std::size_t i, int rounds) const {
  const StepProduct& p = products_.at(i);
  constexpr double kLeast = 10e-3;
  run(i);
  const int calls =
      std::max(1, static_cast<int>(kLeast / std::max(seconds_of([&] { run(i); }), 1e-6)));
  double best = 1e30;
  for (int round = 0; round < rounds; ++round) {
    best = std::min(best, seconds_of([&] {
                            for (int call = 0; call < calls; ++call) run(i);
                          }) / calls);
  }
  return best * static_cast<double>(p.count) * p.share;
}

}  // namespace mt
