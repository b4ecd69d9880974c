// Data parallelism with a model's own gradients: the order in which buckets are summed, bytes on
// the wire and in memory against the papers' formulas, and replicas that differ.
#include <atomic>
#include <numeric>

#include "grid_gradients.h"
#include "optim/zero1.h"
#include "train/replicas.h"

namespace mt {
namespace {

using testing::expect_same;
using testing::Gathered;
using testing::grid_config;
using testing::GridRank;

constexpr int kMicroBatches = 4;
constexpr std::int64_t kBatch = 2, kSequence = 7;

// The micro-batches of one rank of the data axis.
struct Samples {
  explicit Samples(int data)
      : tokens(
            random_ids(kMicroBatches * kBatch * kSequence, 29, 10U + static_cast<unsigned>(data))),
        labels(
            random_ids(kMicroBatches * kBatch * kSequence, 29, 20U + static_cast<unsigned>(data))),
        numbers(kMicroBatches * kBatch) {
    std::iota(numbers.begin(), numbers.end(), data * kMicroBatches * kBatch);
  }
  [[nodiscard]] std::vector<GptInput> inputs() const {
    std::vector<GptInput> all;
    for (std::int64_t m = 0; m < kMicroBatches; ++m) {
      all.push_back({.batch = kBatch,
                     .sequence = kSequence,
                     .tokens = tokens.data() + m * kBatch * kSequence,
                     .labels = labels.data() + m * kBatch * kSequence,
                     .samples = numbers.data() + m * kBatch});
    }
    return all;
  }
  std::vector<std::int32_t> tokens, labels;
  std::vector<std::int64_t> numbers;
};

// What happened on one rank of a step, in order.
struct Event {
  std::size_t first = 0;   // parameters from here on were complete
  std::size_t summed = 0;  // buckets, after that
};

struct Trained {
  Gathered values;
  std::vector<Event> events;  // of rank 0 in the last step
  std::size_t buckets = 0;    // of rank 0
};

enum class Buckets { kDuringBackward, kAfterwards };

void train(const GridShape& shape, const ScheduleShape& schedule, bool zero1, Buckets when,
           Trained& trained) {
  run_local_ranks(shape.tensor * shape.pipeline * shape.data, [&](const Communicator& world) {
    GridRank rank(world, shape, grid_config(), schedule.chunks);
    const auto back = rank.grid.pipeline().split(0, rank.grid.pipeline().rank(), "back");
    Pipeline pipeline(rank.pointers, schedule, rank.grid.pipeline(), *back, rank.pool);
    GradientSync sync(rank.grid, rank.pointers,
                      {.distributed_optimizer = zero1, .bucket_bytes = 2000}, rank.pool);
    Adam adam({}, sync.parameters(), sync.slices(), rank.pool);
    const Samples samples(rank.grid.place().data);
    std::vector<Event> events;
    for (int step = 0; step < 2; ++step) {
      events.clear();
      const auto complete = [&](int chunk, std::size_t first) {
        sync.complete(chunk, first);
        events.push_back({first, sync.buckets_summed()});
      };
      (void)pipeline.run(samples.inputs(), 6, 1.0 / 100,
                         when == Buckets::kDuringBackward ? Pipeline::Complete(complete) : nullptr);
      sync.finish();
      adam.step(1e-2, sync.norm());
      sync.publish();
      check_replicas(rank.grid, rank.pointers);
    }
    for (const Parameter* parameter : sync.parameters()) {
      trained.values.put(*parameter, parameter->value);
    }
    if (world.rank() != 0) return;
    trained.events = events;
    trained.buckets = sync.buckets();
  });
}

TEST(DataParallel, buckets_are_summed_while_backward_runs) {
  for (const bool zero1 : {false, true}) {
    Trained trained;
    train({.data = 2}, {.stages = 1, .micro_batches = kMicroBatches}, zero1,
          Buckets::kDuringBackward, trained);
    // After the final norm and after each of the four layers' backward, the last first; the next
    // layer's has not begun then.
    ASSERT_EQ(trained.events.size(), 5U);
    EXPECT_EQ(trained.events[0].first, 2U + 4 * 12);
    for (std::size_t i = 1; i < 5; ++i) {
      EXPECT_EQ(trained.events[i].first, 2U + (4 - i) * 12);
      EXPECT_GT(trained.events[i].summed, trained.events[i - 1].summed) << "layer " << 4 - i;
    }
    // The embedding's bucket waits for the end: its gradient is complete last.
    EXPECT_LT(trained.events[4].summed, trained.buckets);
  }
}

TEST(DataParallel, when_buckets_are_summed_changes_no_bit) {
  const ScheduleShape one{.stages = 1, .micro_batches = kMicroBatches};
  const ScheduleShape two{.kind = ScheduleKind::k1f1b, .stages = 2, .micro_batches = kMicroBatches};
  const ScheduleShape chunks{
      .kind = ScheduleKind::kInterleaved, .stages = 2, .micro_batches = kMicroBatches, .chunks = 2};
  for (const auto& [shape, schedule] : {std::pair{GridShape{.data = 3}, one},
                                        {GridShape{.tensor = 2, .data = 2}, one},
                                        {GridShape{.pipeline = 2, .data = 2}, two},
                                        {GridShape{.pipeline = 2, .data = 2}, chunks}}) {
    Trained afterwards;
    train(shape, schedule, false, Buckets::kAfterwards, afterwards);
    for (const bool zero1 : {false, true}) {
      Trained during;
      train(shape, schedule, zero1, Buckets::kDuringBackward, during);
      expect_same(
          afterwards.values, during.values,
          cat("pipeline ", shape.pipeline, ", chunks ", schedule.chunks, ", ZeRO-1 ", zero1));
    }
  }
}

// Elements of a rank's part of the model, from the sizes alone (Shoeybi et al., section 3, figure
// 3): products are cut by t; norms, the biases of row-parallel products and positions are not.
struct Count {
  std::int64_t matrices = 0, vectors = 0;
};
Count count_of(const ModelConfig& c, const GridShape& grid, int stage) {
  const std::int64_t h = c.hidden_size, f = c.ffn_hidden_size, t = grid.tensor;
  const std::int64_t layers = c.num_layers / grid.pipeline, words = c.vocab_size / t * h;
  Count count{.matrices = layers * (4 * h * h + 2 * h * f) / t,
              .vectors = layers * ((3 * h + f) / t + 2 * h + 4 * h)};
  const bool first = stage == 0, last = stage == grid.pipeline - 1;
  if (first) count.matrices += words + c.max_position_embeddings * h;
  if (last) count.vectors += 2 * h;
  if (last && !first) count.matrices += words;
  return count;
}

ModelConfig even_config() {
  ModelConfig config = grid_config();
  config.hidden_size = 24;
  config.ffn_hidden_size = 96;
  config.max_position_embeddings = 12;
  config.vocab_size = 48;
  config.check();
  return config;
}

// Narayanan et al., section 3.3.1 and papers' formulas: an all-reduce of all gradients, or with
// ZeRO-1 a reduce-scatter of them and an all-gather of the weights. 4 bytes an element.
TEST(DataParallel, bytes_on_the_wire_are_those_of_the_formulas) {
  for (const GridShape& shape :
       {GridShape{.data = 2}, GridShape{.data = 4}, GridShape{.data = 3},
        GridShape{.tensor = 2, .data = 2}, GridShape{.tensor = 2, .pipeline = 2, .data = 2}}) {
    for (const bool zero1 : {false, true}) {
      for (const std::int64_t bucket : {1000, 1 << 20}) {
        run_local_ranks(shape.tensor * shape.pipeline * shape.data, [&](const Communicator& world) {
          GridRank rank(world, shape, even_config());
          GradientSync sync(rank.grid, rank.pointers,
                            {.distributed_optimizer = zero1, .bucket_bytes = bucket}, rank.pool);
          Adam adam({}, sync.parameters(), sync.slices(), rank.pool);
          const Ledger before = rank.grid.data().ledger();
          const Ledger tied_before = rank.grid.embedding().ledger();
          sync.finish();
          adam.step(1e-2, sync.norm());
          sync.publish();
          const auto moved = [&](CommCall call) {
            return rank.grid.data().ledger().bytes_of(call) - before.bytes_of(call);
          };
          const Count count = count_of(even_config(), shape, rank.grid.place().pipeline);
          const std::int64_t cut = zero1 ? 4 * count.matrices : 0;
          EXPECT_EQ(moved(CommCall::kReduceScatter), cut);
          EXPECT_EQ(moved(CommCall::kAllReduce), 4 * (count.matrices + count.vectors) - cut);
          EXPECT_EQ(moved(CommCall::kAllGather), cut);
          EXPECT_EQ(moved(CommCall::kBroadcast), 0);
          // The tied embedding: one all-reduce between first and last stage.
          const std::int64_t words =
              shape.pipeline > 1 ? 4 * 48 / shape.tensor * 24 / (zero1 ? shape.data : 1) : 0;
          EXPECT_EQ(rank.grid.embedding().ledger().bytes_of(CommCall::kAllReduce) -
                        tied_before.bytes_of(CommCall::kAllReduce),
                    words);
        });
      }
    }
  }
}

// Where rows do not divide, the few that are left over are summed on all ranks and sent by the
// last.
TEST(DataParallel, rows_that_are_left_over_cost_their_bytes_once) {
  run_local_ranks(4, [&](const Communicator& world) {
    GridRank rank(world, {.data = 4}, grid_config());
    GradientSync sync(rank.grid, rank.pointers, {.distributed_optimizer = true}, rank.pool);
    std::int64_t left = 0, even = 0, vectors = 0;
    for (const Parameter* parameter : sync.parameters()) {
      const std::int64_t rows = parameter->value.dim(0), all = parameter->value.bytes();
      if (!parameter->decay) {
        vectors += all;
      } else {
        left += all / rows * (rows % 4);
        even += all / rows * (rows / 4 * 4);
      }
    }
    EXPECT_GT(left, 0);
    sync.finish();
    sync.publish();
    const Ledger& ledger = rank.grid.data().ledger();
    EXPECT_EQ(ledger.bytes_of(CommCall::kReduceScatter), even);
    EXPECT_EQ(ledger.bytes_of(CommCall::kAllReduce), vectors + left);
    EXPECT_EQ(ledger.bytes_of(CommCall::kAllGather), even);
    EXPECT_EQ(ledger.bytes_of(CommCall::kBroadcast), left);
  });
}

// f32: 4 bytes of weight, 4 of gradient, 8 of moments an element, the last divided by the data axis
// with ZeRO-1; and no more workspace than a bucket.
TEST(DataParallel, memory_a_parameter_is_that_of_the_papers) {
  ModelConfig config = grid_config();
  config.hidden_size = 192;
  config.num_attention_heads = 4;
  config.ffn_hidden_size = 768;
  config.max_position_embeddings = 64;
  config.vocab_size = 3001;
  config.check();
  constexpr std::int64_t kBucket = 1 << 18;
  for (const int data : {2, 4}) {
    for (const bool zero1 : {false, true}) {
      run_local_ranks(data, [&](const Communicator& world) {
        GridRank rank(world, {.data = data}, config);
        GradientSync sync(rank.grid, rank.pointers,
                          {.distributed_optimizer = zero1, .bucket_bytes = kBucket}, rank.pool);
        Adam adam({}, sync.parameters(), sync.slices(), rank.pool);
        sync.finish();
        adam.step(1e-2, sync.norm());
        sync.publish();
        const MemoryUse use = rank.pool.use();
        const auto peak = [&](MemoryKind kind) {
          return use.peak.at(static_cast<std::size_t>(kind));
        };
        const auto elements = static_cast<double>(config.parameter_count());
        const double expected = elements * (8 + 8.0 / (zero1 ? data : 1));
        const auto held =
            static_cast<double>(peak(MemoryKind::kWeights) + peak(MemoryKind::kGradients) +
                                peak(MemoryKind::kOptimizer));
        EXPECT_NEAR(held / expected, 1, 0.03) << held / elements << " bytes a parameter";
        EXPECT_LE(peak(MemoryKind::kWorkspace), kBucket / 4 * 5);
        if (world.rank() == 0) {
          RecordProperty(cat("bytes_a_parameter_data_", data, zero1 ? "_zero1" : "").c_str(),
                         cat(held / elements));
        }
      });
    }
  }
}

// One element of one weight changed on one rank; the message names it and the rank everywhere.
void expect_found(const GridShape& shape, int spoiled, const std::string& name,
                  const std::string& ranks, const std::string& odd) {
  std::atomic<int> refused = 0;
  const int size = shape.tensor * shape.pipeline * shape.data;
  run_local_ranks(size, [&](const Communicator& world) {
    GridRank rank(world, shape, grid_config());
    check_replicas(rank.grid, rank.pointers);
    for (Parameter* parameter : rank.pointers[0]->parameters()) {
      for (const Segment& segment : parameter->segments) {
        if (world.rank() != spoiled || segment.name != name) continue;
        float& element = segment_rows(parameter->value, segment).as<float>()[5];
        element = std::nextafter(element, 1e9F);
      }
    }
    try {
      check_replicas(rank.grid, rank.pointers);
      ADD_FAILURE() << "accepted " << name;
    } catch (const NumericError& error) {
      const std::string text = error.what();
      EXPECT_EQ(text.find(cat("replicas of weight ", name, " differ: expected ")), 0U) << text;
      EXPECT_NE(text.find(cat(" as on ", ranks, ", found ")), std::string::npos) << text;
      const std::string end = cat(" on rank ", odd);
      EXPECT_TRUE(text.size() > end.size() && text.substr(text.size() - end.size()) == end) << text;
      EXPECT_EQ(error.status(), ExitStatus::kNumeric);
      ++refused;
    }
  });
  EXPECT_EQ(refused, size);
}

TEST(Replicas, one_spoiled_element_is_found_and_named_on_every_rank) {
  // Over the data axis, a matrix and a segment of a fused one.
  expect_found({.data = 3}, 1, "layers.2.mlp.dense_4h_to_h.weight", "ranks 0, 2", "1");
  expect_found({.tensor = 2, .data = 3}, 5, "layers.0.self_attention.key.weight", "ranks 1, 3",
               "5");
  // Over the tensor axis: what is not cut.
  expect_found({.tensor = 3, .data = 1}, 2, "layers.1.input_layernorm.weight", "ranks 0, 1", "2");
  // A tied embedding and its copy on the last stage; of two the first counts as right.
  expect_found({.pipeline = 2, .data = 1}, 1, "embedding.word_embeddings.weight", "rank 0", "1");
  expect_found({.pipeline = 4, .data = 1}, 3, "embedding.word_embeddings.weight", "rank 0", "3");
}

}  // namespace
}  // namespace mt
