// What a layer keeps between forward and backward and what it asks of the tensor ranks, against the
// formulas of Korthikanti et al., arXiv:2205.05198, in f32 (nn/block.h).
#include <gtest/gtest.h>

#include <mutex>

#include "model/gpt.h"
#include "nn/block.h"
#include "nn/positions.h"
#include "tensor/ops.h"
#include "testing.h"

namespace mt {
namespace {

constexpr std::int64_t kBatch = 2, kSequence = 24, kHidden = 96, kHeads = 4;
// b s h numbers of 4 bytes.
constexpr std::int64_t kWhole = kBatch * kSequence * kHidden * 4;

struct Layout {
  int ranks;
  LayerLayout layer;
};

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int ranks : {1, 2, 4}) {
    for (const bool slices : {false, true}) {
      for (const Recompute recompute :
           {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        all.push_back({ranks, {.sequence_parallel = slices, .recompute = recompute}});
      }
    }
  }
  return all;
}

std::string name_of(const Layout& layout) {
  return cat(layout.ranks, " ranks, slices ", layout.layer.sequence_parallel, ", recompute ",
             static_cast<int>(layout.layer.recompute));
}

// Bytes a layer keeps, as the papers count them.
double kept_bytes(const Layout& layout) {
  const double t = layout.ranks;
  const double sbh = static_cast<double>(kBatch * kSequence * kHidden);
  const bool slices = layout.layer.sequence_parallel;
  switch (layout.layer.recompute) {
    case Recompute::kNone:
      return slices ? 64 * sbh / t : sbh * (16 + 48 / t);
    case Recompute::kSelective:
      return slices ? 40 * sbh / t : sbh * (8 + 32 / t);
    case Recompute::kFull:
      return slices ? 4 * sbh / t : 4 * sbh;
  }
  return 0;
}

std::int64_t held(const Pool& pool) {
  return pool.use().current[static_cast<std::size_t>(MemoryKind::kActivations)];
}

// A block with its input and the micro-batch on each of the ranks.
struct Layer {
  Layer(const Layout& layout, const Communicator& tp)
      : block({.hidden = kHidden,
               .inner = 4 * kHidden,
               .heads = kHeads,
               .hidden_dropout = 0.1,
               .attention_dropout = 0.1,
               .output_std = 0.1},
              {.tp = tp, .pool = pool, .init_std = 0.1, .layout = layout.layer}) {
    block.collect(parameters);
    for (const Parameter* parameter : parameters) initialize(*parameter, 3);
    const std::int64_t part = holds_slices(layout.layer, tp) ? tp.size() : 1;
    shape = {kBatch, kSequence / part, kHidden};
    const std::vector<std::int64_t> samples{7, 9};
    micro.samples = upload(pool, samples.data(), {kBatch, 8}, DType::kU8, MemoryKind::kWorkspace);
    if (part > 1) micro.first_position = tp.rank() * (kSequence / part);
  }
  // Among the activations, as a layer before would leave it.
  [[nodiscard]] Tensor input(std::uint32_t seed) {
    Tensor x(pool, shape, DType::kF32, MemoryKind::kActivations);
    copy(random_tensor(pool, shape, seed), x);
    return x;
  }

  Pool pool{cpu_device("", 1)};
  Block block;
  std::vector<Parameter*> parameters;
  Shape shape;
  MicroBatch micro;
};

TEST(Recompute, a_layer_keeps_what_the_formulas_say) {
  for (const Layout& layout : layouts()) {
    std::mutex mutex;
    run_local_ranks(layout.ranks, [&](const Communicator& tp) {
      Layer layer(layout, tp);
      std::vector<Block::Saved> saved(3);
      std::vector<std::int64_t> after{held(layer.pool)};
      for (Block::Saved& one : saved) {
        const Tensor y = layer.block.forward(layer.input(1), layer.micro, &one);
        after.push_back(held(layer.pool) - y.bytes());
      }
      const std::lock_guard<std::mutex> lock(mutex);
      for (std::size_t i = 0; i < saved.size(); ++i) {
        const auto kept = static_cast<double>(after[i + 1] - after[i]);
        // The formulas leave out mean and deviation of the norms and the attention's log-sum-exp.
        EXPECT_GE(kept, kept_bytes(layout)) << name_of(layout);
        EXPECT_LE(kept, kept_bytes(layout) * 1.05) << name_of(layout);
        if (i > 0) {
          EXPECT_EQ(after[i + 1] - after[i], after[1] - after[0]) << "more in flight";
        }
      }
    });
    run_local_ranks(layout.ranks, [&](const Communicator& tp) {
      Layer layer(layout, tp);
      const std::int64_t before = held(layer.pool);
      std::vector<Block::Saved> saved(2);
      for (Block::Saved& one : saved) {
        (void)layer.block.forward(layer.input(1), layer.micro, &one);
      }
      for (Block::Saved& one : saved) {
        (void)layer.block.backward(layer.input(2), layer.micro, one);
      }
      EXPECT_EQ(held(layer.pool), before) << name_of(layout);
    });
  }
}

struct Count {
  std::int64_t all_reduce = 0, all_gather = 0, reduce_scatter = 0;
  Count operator*(std::int64_t n) const {
    return {all_reduce * n, all_gather * n, reduce_scatter * n};
  }
};

Count calls_of(const Ledger& ledger) {
  return {ledger.calls_of(CommCall::kAllReduce), ledger.calls_of(CommCall::kAllGather),
          ledger.calls_of(CommCall::kReduceScatter)};
}

Count bytes_of(const Ledger& ledger) {
  return {ledger.bytes_of(CommCall::kAllReduce), ledger.bytes_of(CommCall::kAllGather),
          ledger.bytes_of(CommCall::kReduceScatter)};
}

void expect_more(const Count& now, const Count& before, const Count& expected,
                 const std::string& what) {
  EXPECT_EQ(now.all_reduce - before.all_reduce, expected.all_reduce) << what;
  EXPECT_EQ(now.all_gather - before.all_gather, expected.all_gather) << what;
  EXPECT_EQ(now.reduce_scatter - before.reduce_scatter, expected.reduce_scatter) << what;
}

TEST(Recompute, a_layer_moves_what_the_formulas_say) {
  for (const Layout& layout : layouts()) {
    const bool slices = layout.layer.sequence_parallel;
    const Count forward = slices ? Count{0, 2, 2} : Count{2, 0, 0};
    // Two gathers of dy, two of the inputs that only slices were kept of, two scatters of dx.
    Count backward = slices ? Count{0, 4, 2} : Count{2, 0, 0};
    if (layout.layer.recompute == Recompute::kFull) {
      backward = {backward.all_reduce + forward.all_reduce,
                  backward.all_gather + forward.all_gather,
                  backward.reduce_scatter + forward.reduce_scatter};
    }
    const std::int64_t counted = layout.ranks > 1 ? 1 : 0;  // a group of one moves nothing
    run_local_ranks(layout.ranks, [&](const Communicator& tp) {
      Layer layer(layout, tp);
      Block::Saved saved;
      (void)layer.block.forward(layer.input(1), layer.micro, &saved);
      const Count calls = calls_of(tp.ledger()), bytes = bytes_of(tp.ledger());
      expect_more(calls, {}, forward * counted, name_of(layout) + ": calls of forward");
      expect_more(bytes, {}, forward * counted * kWhole, name_of(layout) + ": bytes of forward");
      (void)layer.block.backward(layer.input(2), layer.micro, saved);
      expect_more(calls_of(tp.ledger()), calls, backward * counted,
                  name_of(layout) + ": calls of backward");
      expect_more(bytes_of(tp.ledger()), bytes, backward * counted * kWhole,
                  name_of(layout) + ": bytes of backward");
    });
  }
}

TEST(Recompute, what_is_computed_again_has_the_same_bits) {
  for (const Layout& layout : layouts()) {
    Layout kept = layout;
    kept.layer.recompute = Recompute::kNone;
    run_local_ranks(layout.ranks, [&](const Communicator& tp) {
      std::vector<std::vector<std::vector<float>>> results;
      for (const Layout& one : {kept, layout}) {
        Layer layer(one, tp);
        Block::Saved saved;
        std::vector<std::vector<float>> values;
        values.push_back(values_of(layer.block.forward(layer.input(1), layer.micro, &saved)));
        values.push_back(values_of(layer.block.backward(layer.input(2), layer.micro, saved)));
        for (const Parameter* parameter : layer.parameters) {
          values.push_back(values_of(parameter->grad));
        }
        results.push_back(values);
      }
      for (std::size_t i = 0; i < results[0].size(); ++i) {
        expect_same_bits(results[1][i], results[0][i], cat(name_of(layout), ": result ", i));
      }
    });
  }
}

// Around the layers: what the embedding and the head ask of the tensor ranks.
TEST(Recompute, a_stage_moves_what_the_formulas_say) {
  ModelConfig config;
  config.num_layers = 3;
  config.hidden_size = 12;
  config.num_attention_heads = 4;
  config.ffn_hidden_size = 48;
  config.max_position_embeddings = 8;
  config.vocab_size = 29;
  config.init_method_std = 0.1;
  config.check();
  const std::int64_t tokens = 2 * 8, whole = tokens * 12 * 4, row = tokens * 4;
  const std::vector<std::int32_t> ids = random_ids(tokens, 29, 1);
  for (const bool slices : {false, true}) {
    run_local_ranks(2, [&](const Communicator& tp) {
      Pool pool(cpu_device("", 1));
      GptStage stage(config, {.first_layer = 0, .last_layer = 3}, tp, pool, Use::kTraining,
                     DType::kF32, {.sequence_parallel = slices});
      stage.initialize(1);
      const GptInput input{.batch = 2, .sequence = 8, .tokens = ids.data(), .labels = ids.data()};
      const auto saved = stage.make_saved();
      (void)stage.forward(input, {}, 1, 1, *saved);
      const Count calls = calls_of(tp.ledger()), bytes = bytes_of(tp.ledger());
      // The embedding's sum, the layers, the head's dx (a gather before it), and the loss: a
      // maximum, a sum and a target a position.
      const Count forward = slices ? Count{0, 6 + 1, 1 + 6 + 1} : Count{1 + 6 + 1, 0, 0};
      expect_more(calls, {3, 0, 0}, forward, "calls of forward");
      expect_more(bytes, {3 * row, 0, 0}, forward * whole, "bytes of forward");
      (void)stage.backward(input, {}, *saved);
      const Count backward = slices ? Count{0, 12 + 1, 6} : Count{6, 0, 0};
      expect_more(calls_of(tp.ledger()), calls, backward, "calls of backward");
      expect_more(bytes_of(tp.ledger()), bytes, backward * whole, "bytes of backward");
    });
  }
}

}  // namespace
}  // namespace mt
