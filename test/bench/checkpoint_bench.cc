// Checkpoints of the 124M shape beside what the machine gives, by turns in one process: a save
// beside cp and fsync of the same files, a load into memory that is there beside cat of them (both
// from the page cache), the time that a save in the background blocks beside a copy in memory, and
// the first token of mt-generate beside cat of the file and one step.
//
//   checkpoint_bench FOLDER [THREADS [PAIRS [MT_GENERATE VOCAB MERGES]]]
//
// FOLDER is on the file system to be measured and is filled. One JSON line a measurement: the
// median of the ratios of the pairs, their range, and the medians of both sides in seconds.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/commit.h"
#include "base/error.h"
#include "base/threads.h"
#include "ckpt/async_save.h"
#include "ckpt/checkpoint.h"
#include "ckpt/parameters.h"
#include "comm/communicator.h"
#include "convert/load_model.h"
#include "model/gpt.h"
#include "tensor/ops.h"

namespace {

using Seconds = double;

Seconds now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2;
}

Seconds shell(const std::string& command) {
  const Seconds begin = now();
  if (std::system(command.c_str()) != 0) throw mt::EnvironmentError("failed: " + command);
  return now() - begin;
}

Seconds timed(const std::function<void()>& work) {
  const Seconds begin = now();
  work();
  return now() - begin;
}

struct Settings {
  std::string folder, generate, vocab, merges;
  int threads = 2, pairs = 3;
};

// Alternates ours and the other side, and prints the line.
class Reporter {
 public:
  explicit Reporter(const Settings& settings) : settings_(settings) {}

  void compare(const std::string& what, const std::string& goal,
               const std::function<Seconds()>& ours, const std::function<Seconds()>& theirs) const {
    std::vector<double> a, b, ratios;
    for (int pair = 0; pair < settings_.pairs; ++pair) {
      b.push_back(theirs());
      a.push_back(ours());
      ratios.push_back(a.back() / b.back());
    }
    std::printf(
        "{\"bench\":\"checkpoint 124m, %d threads\",\"what\":\"%s\",\"value\":%.3f,\"unit\":\"x\","
        "\"goal\":\"%s\",\"least\":%.3f,\"most\":%.3f,\"pairs\":%d,\"ours_s\":%.4f,"
        "\"other_s\":%.4f,\"command\":\"test/bench/checkpoint.sh\"}\n",
        settings_.threads, what.c_str(), median(ratios), goal.c_str(),
        *std::min_element(ratios.begin(), ratios.end()),
        *std::max_element(ratios.begin(), ratios.end()), settings_.pairs, median(a), median(b));
    std::fflush(stdout);
  }

 private:
  const Settings& settings_;
};

mt::ModelConfig gpt2() {
  mt::ModelConfig config;
  config.num_layers = 12;
  config.hidden_size = 768;
  config.num_attention_heads = 12;
  config.ffn_hidden_size = 3072;
  config.max_position_embeddings = 1024;
  config.vocab_size = 50257;
  config.check();
  return config;
}

// A model, its moments, and what a checkpoint of them holds.
struct State {
  State(const mt::Communicator& world, mt::Pool& pool)
      : stage(gpt2(), {.first_layer = 0, .last_layer = 12}, world, pool, mt::Use::kInference) {
    stage.initialize(1);
    content.iteration = 1;
    content.model = gpt2().to_json();
    content.weights = mt::parameter_boxes(stage.parameters());
    for (const mt::Parameter* p : stage.parameters()) {
      for (const char* name : {"exp_avg", "exp_avg_sq"}) {
        moments.emplace_back(pool, p->value.shape(), mt::DType::kF32, mt::MemoryKind::kWorkspace);
        std::memcpy(moments.back().data(), p->value.data(),
                    static_cast<std::size_t>(p->value.bytes()));
        mt::append_boxes(*p, moments.back(), name, content.optimizer);
      }
    }
  }
  mt::GptStage stage;
  std::vector<mt::Tensor> moments;
  mt::CheckpointContent content;
};

std::vector<mt::CheckpointReader::Request> requests_of(const mt::CheckpointContent& content) {
  std::vector<mt::CheckpointReader::Request> requests;
  for (const auto* boxes : {&content.weights, &content.optimizer}) {
    for (const mt::Box& box : *boxes) {
      requests.push_back({box.name, box.global_shape, box.offset, box.extent, box.dtype,
                          const_cast<void*>(box.data)});
    }
  }
  return requests;
}

void save_and_load(const Settings& settings, const Reporter& reporter, const std::string& name,
                   const mt::CheckpointContent& content, const mt::Communicator& world) {
  const std::string stored = settings.folder + "/" + name, copy = stored + "-copy",
                    saved = stored + "-saved";
  mt::save_checkpoint(stored, content, world, false);
  const auto settle = [&] { shell("rm -rf '" + copy + "' '" + saved + "' && sync"); };
  reporter.compare(
      name + ": save / (cp + fsync)", "<= 1.15",
      [&] {
        settle();
        return timed([&] { mt::save_checkpoint(saved, content, world, false); });
      },
      [&] {
        settle();
        return shell("cp -r '" + stored + "' '" + copy + "' && sync '" + copy + "'/* '" + copy +
                     "'");
      });
  settle();
  const auto requests = requests_of(content);
  reporter.compare(
      name + ": load / cat", "<= 2.5",
      [&] { return timed([&] { mt::CheckpointReader(stored).read(requests); }); },
      [&] { return shell("cat '" + stored + "'/*.* >/dev/null"); });
}

void background(const Settings& settings, const Reporter& reporter, const State& state,
                const mt::Communicator& world, mt::Pool& pool) {
  const std::string run = settings.folder + "/run";
  mt::make_directories(run);
  mt::RunSaver saver({.run = run, .keep = 1, .before = {}}, world);
  saver.reserve(state.content, pool);
  const std::int64_t bytes = mt::RunSaver::bytes_of_copy(state.content);
  const mt::Tensor from =
                       mt::Tensor::zero(pool, {bytes}, mt::DType::kU8, mt::MemoryKind::kWorkspace),
                   to = mt::Tensor::zero(pool, {bytes}, mt::DType::kU8, mt::MemoryKind::kWorkspace);
  reporter.compare(
      "asynchronous save blocks / copy in memory", "<= 1.5",
      [&] {
        const Seconds blocked = timed([&] { saver.start(state.content, true, pool); });
        if (!saver.wait().failure.empty()) throw mt::EnvironmentError("a background save failed");
        return blocked;
      },
      [&] {
        constexpr std::int64_t kPart = std::int64_t{32} << 20;
        return timed([&] {
          mt::run_parts_or_throw(
              (bytes + kPart - 1) / kPart, settings.threads, [&](std::int64_t i) {
                std::memcpy(to.as<std::byte>() + i * kPart, from.as<std::byte>() + i * kPart,
                            static_cast<std::size_t>(std::min(kPart, bytes - i * kPart)));
              });
        });
      });
}

// A step of decoding after a prompt of one token.
Seconds step_of(mt::GptStage& stage) {
  const auto cache = stage.make_cache(1, 16);
  const std::int32_t token = 11;
  std::vector<Seconds> steps;
  for (int i = 0; i < 9; ++i) {
    steps.push_back(timed([&] {
      static_cast<void>(stage.next_logits({.batch = 1, .sequence = 1, .tokens = &token}, *cache));
    }));
  }
  return median(steps);
}

void first_token(const Settings& settings, const Reporter& reporter, State& state,
                 const mt::Communicator& world) {
  mt::CheckpointContent content = state.content;
  content.optimizer.clear();
  content.files = {{mt::kCarriedVocab, mt::read_file(settings.vocab, 1U << 28)},
                   {mt::kCarriedMerges, mt::read_file(settings.merges, 1U << 28)}};
  const std::string stored = settings.folder + "/generate";
  mt::save_checkpoint(stored, content, world, false);
  const std::string command = "'" + settings.generate + "' --load '" + stored +
                              "' --prompt '\n' --greedy --num-tokens-to-generate 1 --threads " +
                              std::to_string(settings.threads) + " >/dev/null 2>&1";
  reporter.compare(
      "first token of mt-generate / (cat + a step)", "<= 2", [&] { return shell(command); },
      [&] { return shell("cat '" + stored + "'/*.* >/dev/null") + step_of(state.stage); });
}

void run(const Settings& settings) {
  const mt::Device device = mt::make_cpu_device("", settings.threads);
  mt::Pool pool(device);
  const auto world = mt::make_single_communicator();
  State state(*world, pool);
  const Reporter reporter(settings);
  mt::CheckpointContent weights = state.content;
  weights.optimizer.clear();
  save_and_load(settings, reporter, "weights", weights, *world);
  if (!settings.generate.empty()) first_token(settings, reporter, state, *world);
  save_and_load(settings, reporter, "weights and AdamW", state.content, *world);
  background(settings, reporter, state, *world, pool);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3 && argc != 4 && argc != 7) {
    std::fprintf(stderr,
                 "usage: checkpoint_bench FOLDER [THREADS [PAIRS [MT_GENERATE VOCAB MERGES]]]\n");
    return 2;
  }
  Settings settings{.folder = argv[1], .generate = {}, .vocab = {}, .merges = {}};
  if (argc > 2) settings.threads = std::max(1, std::atoi(argv[2]));
  if (argc > 3) settings.pairs = std::max(1, std::atoi(argv[3]));
  if (argc > 4) {
    settings.generate = argv[4];
    settings.vocab = argv[5];
    settings.merges = argv[6];
  }
  try {
    run(settings);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "checkpoint_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
