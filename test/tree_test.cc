// --reduction tree, with threads as ranks: on every grid the losses and all gradients, put together
// from the ranks' parts, have the bits of one rank.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>

#include "comm/grid.h"
#include "nn/shards.h"
#include "tensor/ops.h"
#include "testing.h"
#include "train/pipeline.h"

namespace mt {
namespace {

constexpr int kShards = 8;
constexpr std::int64_t kSamples = 16;

// Sizes of which few are multiples of the shards, so that shards differ and some are empty.
ModelConfig odd_config(std::int64_t heads) {
  ModelConfig config;
  config.num_layers = 4;
  config.num_attention_heads = heads;
  config.hidden_size = heads * (heads == 8 ? 3 : 5);
  config.ffn_hidden_size = heads * (heads == 8 ? 7 : 11);
  config.max_position_embeddings = 11;
  config.vocab_size = 61;
  config.init_method_std = 0.3;
  config.hidden_dropout = config.attention_dropout = 0.1;
  return config;
}

struct Job {
  ModelConfig config = odd_config(4);
  GridShape grid = {.tensor = 1, .pipeline = 1, .data = 1};
  ScheduleKind kind = ScheduleKind::k1f1b;
  int chunks = 1;
  std::int64_t micro_batch = 1, sequence = 11;
  int shards = kShards;
  int threads = 1;
  const char* kernel_set = "";

  [[nodiscard]] LayerLayout layout() const {
    return {.virtual_shards = shards, .sample_shards = shards == 1 ? 1 : shards / grid.data};
  }
};

// A tensor put together from the boxes of ranks, whose common elements must agree.
struct Whole {
  std::vector<float> values;
  std::vector<bool> known;

  void put(const Segment& segment, const std::vector<float>& box) {
    const auto size = static_cast<std::size_t>(element_count(segment.global_shape));
    values.resize(size);
    known.resize(size);
    const bool matrix = segment.extent.size() == 2;
    const std::int64_t columns = matrix ? segment.extent[1] : 1;
    const std::int64_t all_columns = matrix ? segment.global_shape[1] : 1;
    const std::int64_t first_column = matrix ? segment.offset[1] : 0;
    for (std::size_t i = 0; i < box.size(); ++i) {
      const auto row = segment.offset[0] + static_cast<std::int64_t>(i) / columns;
      const auto column = first_column + static_cast<std::int64_t>(i) % columns;
      const auto at = static_cast<std::size_t>(row * all_columns + column);
      if (known[at]) {
        ASSERT_EQ(std::memcmp(&values[at], &box[i], sizeof(float)), 0)
            << segment.name << ": ranks differ in element " << at;
      }
      values[at] = box[i];
      known[at] = true;
    }
  }
};

struct Outcome {
  std::vector<double> losses;
  std::map<std::string, Whole> gradients;  // of the last step, by the segment's name
  Ledger tensor;                           // of rank 0
};

struct Data {
  explicit Data(const Job& job)
      : run_(job),
        tokens(random_ids(kSamples * job.sequence, static_cast<int>(job.config.vocab_size), 1)),
        labels(random_ids(kSamples * job.sequence, static_cast<int>(job.config.vocab_size), 2)),
        samples(kSamples) {
    std::iota(samples.begin(), samples.end(), 70);
  }
  [[nodiscard]] std::vector<GptInput> inputs(int data_rank) const {
    const std::int64_t mine = kSamples / run_.grid.data;
    std::vector<GptInput> all;
    for (std::int64_t i = data_rank * mine; i < (data_rank + 1) * mine; i += run_.micro_batch) {
      all.push_back({.batch = run_.micro_batch,
                     .sequence = run_.sequence,
                     .tokens = tokens.data() + i * run_.sequence,
                     .labels = labels.data() + i * run_.sequence,
                     .samples = samples.data() + i});
    }
    return all;
  }

 private:
  Job run_;

 public:
  std::vector<std::int32_t> tokens, labels;
  std::vector<std::int64_t> samples;
};

// What stands between the last backward pass and the optimizer.
void reduce_gradients(const std::vector<GptStage*>& chunks, const ProcessGrid& grid) {
  for (GptStage* chunk : chunks) {
    chunk->finish_gradients();
    for (const Parameter* parameter : chunk->parameters()) {
      const bool in_shards = parameter->grad_shards.defined();
      grid.data().all_reduce(in_shards ? parameter->grad_shards : parameter->grad, ReduceOp::kSum);
      collapse_gradient_shards(*parameter);
      if (!parameter->grad_apart.defined()) continue;
      grid.data().all_reduce(parameter->grad_apart, ReduceOp::kSum);
      add(parameter->grad_apart, parameter->grad);
      parameter->grad_apart.fill_zero();
    }
  }
  if (grid.embedding().size() == 1) return;
  const bool first = grid.place().pipeline == 0;
  if (chunks[0]->config().untie_embeddings_and_output_weights) return;
  const auto& parameters = (first ? chunks.front() : chunks.back())->parameters();
  grid.embedding().all_reduce((first ? parameters.front() : parameters.back())->grad,
                              ReduceOp::kSum);
}

void run_rank(const Job& job, const Communicator& world, Outcome& outcome, std::mutex& mutex) {
  const Data data(job);
  const ProcessGrid grid(world, job.grid);
  Pool pool(cpu_device(job.kernel_set, job.threads));
  const auto back = grid.pipeline().split(0, grid.pipeline().rank(), "back");
  const auto inputs = data.inputs(grid.place().data);
  const ScheduleShape shape{.kind = job.kind,
                            .stages = job.grid.pipeline,
                            .micro_batches = static_cast<int>(inputs.size()),
                            .chunks = job.chunks};
  std::vector<std::unique_ptr<GptStage>> chunks;
  std::vector<GptStage*> pointers;
  for (int chunk = 0; chunk < job.chunks; ++chunk) {
    const StageRange range =
        chunk_range(job.config.num_layers, shape, grid.place().pipeline, chunk);
    chunks.push_back(std::make_unique<GptStage>(job.config, range, grid.tensor(), pool,
                                                Use::kTraining, DType::kF32, job.layout()));
    chunks.back()->initialize(4);
    pointers.push_back(chunks.back().get());
  }
  Pipeline pipeline(pointers, shape, grid.pipeline(), *back, pool);
  // Twice: what the first step leaves behind must not show in the second.
  std::vector<double> losses;
  for (std::uint32_t step = 0; step < 2; ++step) {
    for (GptStage* chunk : pointers) zero_gradients(chunk->parameters());
    losses.push_back(pipeline.run(inputs, 6 + step, 1.0 / 64));
    grid.data().all_reduce(&losses.back(), 1, ReduceOp::kSum);
    reduce_gradients(pointers, grid);
  }
  const std::lock_guard<std::mutex> lock(mutex);
  if (losses[0] != 0) {  // a rank with the head
    if (!outcome.losses.empty()) {
      EXPECT_EQ(outcome.losses, losses);
    }
    outcome.losses = losses;
  }
  if (world.rank() == 0) outcome.tensor = grid.tensor().ledger();
  for (GptStage* chunk : pointers) {
    for (const Parameter* parameter : chunk->parameters()) {
      for (const Segment& segment : parameter->segments) {
        outcome.gradients[segment.name].put(segment,
                                            values_of(segment_rows(parameter->grad, segment)));
      }
    }
  }
}

Outcome outcome_of(const Job& job) {
  Outcome outcome;
  std::mutex mutex;
  const int ranks = job.grid.tensor * job.grid.pipeline * job.grid.data;
  run_local_ranks(ranks, [&](const Communicator& world) { run_rank(job, world, outcome, mutex); });
  for (const auto& [name, whole] : outcome.gradients) {
    for (std::size_t i = 0; i < whole.known.size(); ++i) EXPECT_TRUE(whole.known[i]) << name;
  }
  return outcome;
}

std::string text(const Job& job) {
  return cat("tp ", job.grid.tensor, " pp ", job.grid.pipeline, " dp ", job.grid.data, " schedule ",
             static_cast<int>(job.kind), " micro-batch ", job.micro_batch, " threads ", job.threads,
             " ", job.kernel_set);
}

void expect_same(const Outcome& expected, const Outcome& found, const std::string& what) {
  EXPECT_EQ(expected.losses, found.losses) << what;
  ASSERT_EQ(expected.gradients.size(), found.gradients.size()) << what;
  for (const auto& [name, whole] : expected.gradients) {
    expect_same_bits(whole.values, found.gradients.at(name).values, cat(what, ", ", name));
  }
}

void expect_near_relative(const std::vector<float>& a, const std::vector<float>& b, double limit,
                          const std::string& what) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  EXPECT_LE(difference, limit * limit * norm) << what;
}

TEST(tree, tensor_parallel_ranks_have_the_bits_of_one) {
  for (const bool untied : {false, true}) {
    for (const std::int64_t heads : {4, 8}) {
      Job job{.config = odd_config(heads)};
      job.config.untie_embeddings_and_output_weights = untied;
      const Outcome one = outcome_of(job);
      for (int tensor = 2; tensor <= heads; tensor *= 2) {
        job.grid.tensor = tensor;
        expect_same(one, outcome_of(job), cat(text(job), untied ? " untied" : " tied"));
      }
    }
  }
}

TEST(tree, data_parallel_ranks_and_micro_batches_have_the_bits_of_one) {
  for (const bool untied : {false, true}) {
    Job job;
    job.config.untie_embeddings_and_output_weights = untied;
    const Outcome one = outcome_of(job);
    for (const int data : {1, 2, 4, 8}) {
      for (const std::int64_t micro_batch : {1, 2}) {
        job.grid.data = data;
        job.micro_batch = micro_batch;
        expect_same(one, outcome_of(job), cat(text(job), untied ? " untied" : " tied"));
      }
    }
  }
}

TEST(tree, stages_under_every_schedule_have_the_bits_of_one) {
  for (const bool untied : {false, true}) {
    Job job;
    job.config.untie_embeddings_and_output_weights = untied;
    const Outcome one = outcome_of(job);
    for (const auto& [kind, stages, chunks] : {std::tuple{ScheduleKind::kGpipe, 2, 1},
                                               {ScheduleKind::k1f1b, 4, 1},
                                               {ScheduleKind::k1f1b, 2, 1},
                                               {ScheduleKind::kInterleaved, 2, 2}}) {
      job.grid.pipeline = stages;
      job.kind = kind;
      job.chunks = chunks;
      expect_same(one, outcome_of(job), cat(text(job), untied ? " untied" : " tied"));
    }
  }
}

TEST(tree, all_axes_together_have_the_bits_of_one) {
  Job job;
  const Outcome one = outcome_of(job);
  job.grid = {.tensor = 2, .pipeline = 2, .data = 2};
  job.micro_batch = 2;
  expect_same(one, outcome_of(job), text(job));
  job.grid = {.tensor = 4, .pipeline = 1, .data = 2};
  expect_same(one, outcome_of(job), text(job));
}

TEST(tree, threads_and_kernels_change_no_bit) {
  Job job;
  job.kernel_set = "baseline";
  const Outcome one = outcome_of(job);
  for (const char* set : {"baseline", "avx2", "avx512"}) {
    try {
      (void)cpu_device(set, 1);
    } catch (const UsageError&) {
      continue;  // this processor lacks it
    }
    for (const int threads : {1, 2}) {
      job.kernel_set = set;
      job.threads = threads;
      expect_same(one, outcome_of(job), text(job));
    }
  }
}

TEST(tree, is_another_order_of_the_same_sums) {
  Job job{.config = odd_config(8), .sequence = 9};
  const Outcome tree = outcome_of(job);
  job.shards = 1;
  const Outcome fast = outcome_of(job);
  EXPECT_NEAR(tree.losses[1], fast.losses[1], 1e-6 * fast.losses[1]);
  for (const auto& [name, whole] : tree.gradients) {
    const auto& other = fast.gradients.at(name).values;
    const bool key_bias = name.find(".key.bias") != std::string::npos;  // zero but for rounding
    if (!key_bias) expect_near_relative(whole.values, other, 1e-5, name);
    EXPECT_NE(std::memcmp(whole.values.data(), other.data(), other.size() * sizeof(float)), 0)
        << name << " was not summed in shards";
  }
}

TEST(tree, ranks_exchange_what_they_do_without_it) {
  Job job{.config = odd_config(8)};
  job.grid.tensor = 4;
  const Outcome tree = outcome_of(job);
  job.shards = 1;
  const Outcome fast = outcome_of(job);
  EXPECT_GT(fast.tensor.calls_of(CommCall::kAllReduce), 0);
  EXPECT_EQ(tree.tensor.calls, fast.tensor.calls);
  EXPECT_EQ(tree.tensor.bytes, fast.tensor.bytes);
}

}  // namespace
}  // namespace mt
