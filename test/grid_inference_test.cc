// Evaluation and generation on grids, with threads as ranks: the numbers and texts of one rank.
#include "model/grid_inference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "base/error.h"
#include "continuations.h"
#include "eval/perplexity.h"
#include "eval/scores.h"
#include "list_source.h"
#include "model/inference_grid.h"
#include "nn/loss.h"
#include "shared_data.h"
#include "tensor/ops.h"
#include "testing.h"

namespace mt {
namespace {

using testing::continuations;
using testing::ListSource;
using testing::request;

constexpr std::int64_t kVocab = 261, kPositions = 24;

// Four heads and four layers; 261 entries of the vocabulary, which no two ranks share evenly.
ModelConfig grid_config(bool untied = false) {
  ModelConfig config;
  config.num_layers = 4;
  config.hidden_size = 16;
  config.num_attention_heads = 4;
  config.ffn_hidden_size = 20;
  config.max_position_embeddings = kPositions;
  config.vocab_size = kVocab;
  config.untie_embeddings_and_output_weights = untied;
  config.init_method_std = 0.5;  // far from uniform
  config.check();
  return config;
}

struct Cut {
  int tensor = 1, pipeline = 1;
  int virtual_shards = 1;
  DType numbers = DType::kF32;
  bool untied = false;
  [[nodiscard]] std::string text() const {
    return cat("tensor ", tensor, ", pipeline ", pipeline, ", shards ", virtual_shards);
  }
};

using Work = std::function<void(InferenceModel&)>;
// With what a rank moved in world and along the pipeline.
using After = std::function<void(const ProcessGrid&)>;

void on_grid(const Cut& cut, const Work& work, const After& after = nullptr) {
  run_local_ranks(cut.tensor * cut.pipeline, [&](const Communicator& world) {
    Pool pool(cpu_device("", 1));
    const ProcessGrid grid(world, {.tensor = cut.tensor, .pipeline = cut.pipeline, .data = 1});
    const ModelConfig config = grid_config(cut.untied);
    GptStage stage(config, stage_range(config, cut.pipeline, grid.place().pipeline), grid.tensor(),
                   pool, Use::kInference, cut.numbers, {.virtual_shards = cut.virtual_shards});
    stage.initialize(3);
    run_inference(grid, stage, pool, work);
    if (after) after(grid);
  });
}

// Every grid with its one rank: (cut, whether the bits must be those of the other).
struct Pair {
  Cut cut, one;
  bool bitwise = false;
};
std::vector<Pair> all_grids() {
  std::vector<Pair> pairs;
  for (const int tensor : {1, 2, 4}) {
    for (const int pipeline : {1, 2}) {
      if (tensor * pipeline > 1) {
        pairs.push_back({{.tensor = tensor, .pipeline = pipeline}, {}, tensor == 1});
      }
      pairs.push_back({{.tensor = tensor, .pipeline = pipeline, .virtual_shards = 8},
                       {.virtual_shards = 8},
                       true});
    }
  }
  pairs.push_back(
      {{.tensor = 2, .pipeline = 2, .numbers = DType::kBf16}, {.numbers = DType::kBf16}});
  pairs.push_back({{.pipeline = 4, .untied = true}, {.untied = true}, true});
  return pairs;
}

// For sums that were taken in another order.
void expect_close(double found, double wanted, const std::string& what) {
  EXPECT_NEAR(found, wanted, 1e-5 * std::max(1.0, std::abs(wanted))) << what;
}

void expect_numbers(const std::vector<float>& found, const std::vector<float>& wanted, bool bitwise,
                    const std::string& what) {
  if (bitwise) {
    expect_same_bits(found, wanted, what);
    return;
  }
  ASSERT_EQ(found.size(), wanted.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) expect_close(found[i], wanted[i], what);
}

std::vector<Request> mixed_requests(std::int64_t longest) {
  std::vector<Request> requests;
  for (int i = 0; i < 11; ++i) {
    std::vector<std::int32_t> context;
    for (int j = 0; j <= i * 5 % 11; ++j) context.push_back((i * 37 + j * j * 3) % kVocab);
    const std::int64_t tokens = 1 + (i * 7) % longest;
    Request made = request(context, tokens, {.greedy = i % 2 == 0, .temperature = 0.7, .seed = i});
    if (i % 4 == 1) made.options.sampling.top_p = 0.9;
    made.options.num_samples = i % 3 == 1 ? 3 : 1;  // beginnings that are shared
    requests.push_back(std::move(made));
  }
  return requests;
}

std::vector<Continuation> texts_of(const Cut& cut, const std::vector<Request>& requests,
                                   const GeneratorSettings& settings) {
  std::vector<Continuation> out;
  on_grid(cut, [&](InferenceModel& model) { out = continuations(model, requests, settings); });
  return out;
}

void expect_same_texts(const Pair& pair, const std::vector<Request>& requests,
                       const GeneratorSettings& settings) {
  SCOPED_TRACE(pair.cut.text());
  const auto found = texts_of(pair.cut, requests, settings);
  const auto wanted = texts_of(pair.one, requests, settings);
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].tokens, wanted[i].tokens) << i;
    EXPECT_EQ(found[i].text, wanted[i].text) << i;
    EXPECT_EQ(found[i].finish, wanted[i].finish) << i;
    const auto& a = found[i].log_probabilities;
    const auto& b = wanted[i].log_probabilities;
    ASSERT_EQ(a.size(), b.size());
    if (pair.bitwise) {
      EXPECT_EQ(a, b) << i;
    }
    for (std::size_t j = 0; j < a.size(); ++j) expect_close(a[j], b[j], "log-probability");
  }
}

TEST(grid_inference, texts_are_those_of_one_rank) {
  const auto requests = mixed_requests(13);
  for (const Pair& pair : all_grids()) {
    expect_same_texts(pair, requests, {.slots = 3, .end_token = 3});
  }
}

TEST(grid_inference, sliding_texts_are_those_of_one_rank) {
  const auto requests = mixed_requests(50);
  for (const Pair& pair : all_grids()) {
    if (pair.cut.tensor == 4 && pair.cut.pipeline == 2) continue;
    expect_same_texts(pair, requests, {.slots = 4, .sliding = true});
  }
}

std::vector<float> nll_of(const Cut& cut, std::size_t tokens, const EvalSettings& settings,
                          const After& after = nullptr) {
  std::vector<float> all;
  on_grid(
      cut,
      [&](InferenceModel& model) {
        ListSource source(random_ids(static_cast<std::int64_t>(tokens), kVocab, 5));
        static_cast<void>(evaluate_perplexity(
            model, source, settings,
            [&](std::int64_t, std::int32_t, float nll) { all.push_back(nll); }));
      },
      after);
  return all;
}

TEST(grid_inference, likelihoods_of_windows_are_those_of_one_rank) {
  for (const Pair& pair : all_grids()) {
    for (const auto& [length, stride] : {std::pair{24, 24}, {24, 7}, {5, 1}}) {
      const EvalSettings settings{
          .seq_length = length, .overlapping_eval = stride, .micro_batch_size = 7};
      expect_numbers(nll_of(pair.cut, 201, settings), nll_of(pair.one, 201, settings), pair.bitwise,
                     cat(pair.cut.text(), ", stride ", stride));
    }
  }
}

// A command goes through the stages in pieces, so that they work at the same time.
TEST(grid_inference, stages_take_pieces_of_a_command) {
  const EvalSettings settings{.seq_length = 24, .overlapping_eval = 24, .micro_batch_size = 64};
  const std::size_t tokens = 64 * 24 + 1;
  std::mutex mutex;
  std::int64_t sends = 0, broadcasts = 0, bytes = 0;
  const auto cut = nll_of({.pipeline = 2}, tokens, settings, [&](const ProcessGrid& grid) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (grid.world().rank() != 0) return;
    sends = grid.pipeline().ledger().calls_of(CommCall::kSend);
    broadcasts = grid.world().ledger().calls_of(CommCall::kBroadcast);
    bytes = grid.pipeline().ledger().bytes_of(CommCall::kSend);
  });
  EXPECT_EQ(sends, 8);  // 64 windows of 24 positions: 4 pieces a stage
  EXPECT_EQ(bytes, 64 * 24 * 16 * 4);
  EXPECT_EQ(broadcasts, 3);  // the command's two messages and the end
  expect_same_bits(cut, nll_of({}, tokens, settings), "64 windows");
}

// What a step of decoding costs in messages.
TEST(grid_inference, a_decoded_token_is_one_small_broadcast) {
  on_grid(
      {.tensor = 2},
      [](InferenceModel& model) {
        const auto cache = model.open_cache(2, kPositions);
        const std::vector<std::int32_t> tokens{1, 2};
        for (int i = 0; i < 10; ++i) {
          static_cast<void>(
              cache->next_logits({.batch = 2, .sequence = 1, .tokens = tokens.data()}, {0, 1}));
        }
        EXPECT_EQ(cache->cached(1), 10);
      },
      [](const ProcessGrid& grid) {
        // opened, ten steps, the end
        EXPECT_EQ(grid.world().ledger().calls_of(CommCall::kBroadcast), 12);
        EXPECT_EQ(grid.world().ledger().bytes_of(CommCall::kBroadcast), 12 * 512);
      });
}

TEST(grid_inference, caches_end_with_what_uses_them) {
  on_grid({.pipeline = 2}, [](InferenceModel& model) {
    const std::int32_t token = 5;
    const GptInput input{.batch = 1, .sequence = 1, .tokens = &token};
    const auto kept = model.open_cache(1, 8);
    const std::vector<float> first(kept->next_logits(input, {0}),
                                   kept->next_logits(input, {0}) + kVocab);
    { const auto gone = model.open_cache(2, 8); }
    const auto other = model.open_cache(1, 8);
    static_cast<void>(other->next_logits(input, {0}));
    EXPECT_EQ(other->cached(0), 1);
    EXPECT_EQ(kept->cached(0), 2);
  });
}

TEST(grid_inference, scores_are_those_of_one_rank) {
  const testing::Scratch scratch;
  const auto tokenizer = make_bpe_tokenizer(testing::byte_level_files({}), "bytes");
  std::string lines;
  for (int i = 0; i < 30; ++i) {
    Json json;
    json["context"] =
        std::string(static_cast<std::size_t>(1 + i % 9), static_cast<char>('a' + i % 26));
    if (i % 3 == 0) {
      json["continuation"] = cat("z", i);
    } else {
      for (int n = 0; n < 2 + i % 3; ++n) json["continuations"].push_back(cat(n * 7 + i, "x"));
      json["answer"] = 1;
    }
    lines += json_line(json) + "\n";
  }
  testing::spill(scratch / "lines", lines);
  const auto scores_of = [&](const Cut& cut) {
    std::vector<OptionScore> all;
    on_grid(cut, [&](InferenceModel& model) {
      static_cast<void>(evaluate_scores(
          model, *tokenizer, scratch / "lines", {.rows = 300},
          [&](const ScoreItem&, const EncodedScore&, const std::vector<OptionScore>& scores) {
            all.insert(all.end(), scores.begin(), scores.end());
          }));
    });
    return all;
  };
  for (const Pair& pair : all_grids()) {
    const auto found = scores_of(pair.cut), wanted = scores_of(pair.one);
    ASSERT_EQ(found.size(), wanted.size());
    ASSERT_GT(found.size(), 60U);
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].tokens, wanted[i].tokens);
      EXPECT_EQ(found[i].is_greedy, wanted[i].is_greedy) << pair.cut.text() << " " << i;
      expect_close(found[i].logprob, wanted[i].logprob, "score");
      if (pair.bitwise) {
        EXPECT_EQ(found[i].logprob, wanted[i].logprob) << pair.cut.text();
      }
    }
  }
}

// Labels that are the best and some that are not, under a vocabulary that is cut.
TEST(grid_inference, greedy_labels_are_found_whichever_rank_has_them) {
  const auto ids = random_ids(24, kVocab, 9);
  const auto flags_of = [&](const Cut& cut, std::vector<std::int32_t>& labels) {
    std::vector<std::uint8_t> greedy(labels.size());
    on_grid(cut, [&](InferenceModel& model) {
      if (cut.tensor == 1) {  // every second label is made the best one
        const auto cache = model.open_cache(1, kPositions);
        for (std::size_t i = 0; i < labels.size(); ++i) {
          const float* const logits =
              cache->next_logits({.batch = 1, .sequence = 1, .tokens = &ids[i]}, {0});
          if (i % 2 == 0) {
            labels[i] =
                static_cast<std::int32_t>(std::max_element(logits, logits + kVocab) - logits);
          }
        }
      }
      std::vector<float> nll(labels.size());
      model.tree_nll({{.prefix = 0, .branches = {{.positions = 24, .counted = 24}}}}, ids, labels,
                     nll.data(), greedy.data());
    });
    return greedy;
  };
  std::vector<std::int32_t> labels(24, 7);
  const auto wanted = flags_of({}, labels);
  EXPECT_GE(std::count(wanted.begin(), wanted.end(), 1), 12);
  EXPECT_LT(std::count(wanted.begin(), wanted.end(), 1), 24);
  for (const int tensor : {2, 4}) EXPECT_EQ(flags_of({.tensor = tensor}, labels), wanted);
}

// Of equal logits the lowest entry is the best one, also where another rank has the other.
TEST(grid_inference, of_equal_logits_the_lowest_entry_is_greedy) {
  TestRig rig;
  const Tensor x = random_tensor(rig.pool, {3, 6}, 1);
  const Tensor weight = random_tensor(rig.pool, {11, 6}, 2);
  // Entries 1, 4 and 9 are the same row, in the direction of every x.
  for (std::int64_t i = 0; i < 6; ++i) {
    const float sum = x.as<float>()[i];
    for (const std::int64_t entry : {1, 4, 9}) weight.as<float>()[entry * 6 + i] = 50 * sum;
    for (std::int64_t row = 1; row < 3; ++row) x.as<float>()[row * 6 + i] = sum;
  }
  const std::vector<std::int32_t> labels{4, 1, 9};
  for (const int ranks : {1, 2, 4}) {
    run_local_ranks(ranks, [&](const Communicator& tp) {
      Pool pool(cpu_device("", 1));
      const OwnedRange range = owned_range(11, tp);
      const Tensor part = upload(pool, weight.as<float>() + range.begin * 6, {range.size(), 6},
                                 DType::kF32, MemoryKind::kWeights);
      std::vector<float> nll(3);
      std::vector<std::uint8_t> greedy(3, 7);
      // Of this rank's own pool: pools are not shared between threads.
      VocabParallelHead(11, tp).nll(
          upload(pool, x.as<float>(), {3, 6}, DType::kF32, MemoryKind::kWorkspace), part,
          upload(pool, labels.data(), {3}, DType::kI32, MemoryKind::kWorkspace), nll.data(),
          greedy.data());
      EXPECT_EQ(greedy, (std::vector<std::uint8_t>{0, 1, 0})) << ranks;
    });
  }
}

TEST(grid_inference, what_is_thrown_on_rank_0_or_on_all_ends_all) {
  const Work too_long = [](InferenceModel& model) {
    const std::vector<std::int32_t> tokens(kPositions + 1, 1);
    const auto cache = model.open_cache(1, kPositions);
    static_cast<void>(
        cache->next_logits({.batch = 1, .sequence = kPositions + 1, .tokens = tokens.data()}, {0}));
  };
  EXPECT_THROW(on_grid({.tensor = 2, .pipeline = 2}, too_long), UsageError);
  EXPECT_THROW(on_grid({.tensor = 2, .pipeline = 2},
                       [](InferenceModel&) { throw DataError("of rank 0's own"); }),
               DataError);
}

std::string refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "taken";
}

TEST(inference_grid, sizes_that_do_not_go_are_refused_with_the_arithmetic) {
  InferenceGridOptions options{.tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 3};
  EXPECT_EQ(options.grid(6).pipeline, 3);
  EXPECT_EQ(refused([&] { (void)options.grid(4); }),
            "started as 4 ranks: --tensor-model-parallel-size 2 x --pipeline-model-parallel-size 3 "
            "makes 6");
  EXPECT_EQ(refused([&] { (void)options.grid(12); }).substr(0, 19), "started as 12 ranks");
  EXPECT_EQ(options.layout().virtual_shards, 1);
  options.reduction = "tree";
  EXPECT_EQ(options.grid(6).tensor, 2);
  EXPECT_EQ(options.layout().virtual_shards, 8);
  options.virtual_shards = 6;
  EXPECT_EQ(refused([&] { (void)options.grid(6); }),
            "--virtual-shards 6: expected a power of two from 1 to 1024");
  options = {.tensor_model_parallel_size = 16, .reduction = "tree"};
  EXPECT_EQ(refused([&] { (void)options.grid(16); }),
            "--reduction tree: 16 tensor ranks: expected a power of two that divides "
            "--virtual-shards 8");
  options.tensor_model_parallel_size = 0;
  EXPECT_EQ(refused([&] { (void)options.grid(1); }),
            "--tensor-model-parallel-size 0: expected 1 to 2147483647");
  const ModelConfig config = grid_config();
  EXPECT_EQ(refused([&] { check_cut(config, {.tensor = 3}); }),
            "--tensor-model-parallel-size 3: does not divide the model's 4 attention heads: 4 = 1 "
            "* 3 + 1");
  EXPECT_EQ(refused([&] { check_cut(config, {.pipeline = 8}); }),
            "--pipeline-model-parallel-size 8: does not divide the model's 4 layers: 4 = 0 * 8 + "
            "4");
  ModelConfig tiny = config;
  tiny.vocab_size = 3;
  EXPECT_EQ(refused([&] { check_cut(tiny, {.tensor = 4}); }),
            "--tensor-model-parallel-size 4: more than the model's 3 entries of the vocabulary");
}

}  // namespace
}  // namespace mt
