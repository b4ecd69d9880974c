// Small training jobs inside a test: a shard of patterned text, the options of a command line, and
// the run that they lead to.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/options.h"
#include "ckpt/checkpoint.h"
#include "comm/communicator.h"
#include "data/token_shard.h"
#include "shared_data.h"
#include "text/tokenizer.h"
#include "train/training_run.h"
#include "train/training_start.h"

namespace mt::testing {

// Words of a command line, which are joined with +: an option on the right replaces the same one on
// the left, since a program refuses an option that is given twice.
struct Words : std::vector<std::string> {
  using std::vector<std::string>::vector;
};

inline bool is_option(const std::string& word) {
  return word.rfind("--", 0) == 0;
}

inline Words operator+(const Words& a, const Words& b) {
  Words joined;
  bool replaced = false;
  for (const std::string& word : a) {
    if (is_option(word)) replaced = std::find(b.begin(), b.end(), word) != b.end();
    if (!replaced) joined.push_back(word);
  }
  joined.insert(joined.end(), b.begin(), b.end());
  return joined;
}

// Documents of unequal length, ends of documents included, that a model can learn something of.
inline void write_shard(const std::string& path, std::int64_t documents, std::uint32_t seed = 1,
                        const Words& extra = {}) {
  const auto tokenizer = make_bpe_tokenizer(byte_level_files(extra), "test vocabulary");
  TokenShardWriter writer({.path = path, .replace = false, .options = {}}, *tokenizer);
  std::uint32_t state = seed;
  for (std::int64_t d = 0; d < documents; ++d) {
    std::vector<std::int32_t> ids;
    state = state * 1664525U + 1013904223U;
    const std::int64_t length = 5 + (state >> 24);
    for (std::int64_t i = 0; i < length; ++i) {
      state = state * 1664525U + 1013904223U;
      ids.push_back(static_cast<std::int32_t>(65 + (d + i) % 7 + (state >> 30)));
    }
    ids.push_back(tokenizer->end_of_document());
    writer.add_document(ids.data(), ids.size(), -1);
  }
  writer.close();
}

// 2 layers of 16, 12 steps of 8 samples of 16 tokens, with dropout.
inline Words small_model() {
  return {"--num-layers",
          "2",
          "--hidden-size",
          "16",
          "--num-attention-heads",
          "2",
          "--max-position-embeddings",
          "16"};
}
inline Words small_run() {
  return {"--seq-length",
          "16",
          "--micro-batch-size",
          "4",
          "--global-batch-size",
          "8",
          "--train-iters",
          "12",
          "--lr",
          "1e-2",
          "--lr-decay-style",
          "cosine",
          "--lr-warmup-iters",
          "3",
          "--eval-iters",
          "0",
          "--quiet"};
}

class Job {
 public:
  explicit Job(Words words, int threads = 2) : words_(std::move(words)), threads_(threads) {}

  Job& stop_at(std::function<int(int)> stop) {
    stop_ = std::move(stop);
    return *this;
  }

  [[nodiscard]] TrainingStart start() { return start(*world_); }
  [[nodiscard]] TrainingStart start(const Communicator& world) {
    Words words = words_;
    words.insert(words.begin(), "mt-train");
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    given_ = std::make_unique<Options>("mt-train", "", "");
    options_ = TrainOptions();
    options_.add_to(*given_);
    std::ostringstream out;
    (void)given_->parse(static_cast<int>(argv.size()), argv.data(), "", out);
    return start_training(options_, *given_, world);
  }

  // `spoil` may change the model before the first step.
  [[nodiscard]] int run(const std::function<void(TrainingRun&)>& spoil = nullptr) {
    TrainingRun training(start(), *world_, pool_, [this] { return stop_ ? stop_(asked_++) : 0; });
    if (spoil) spoil(training);
    return training.run();
  }

  // As one rank of several. `finish` sees the run when it has ended, `spoil` before it begins.
  [[nodiscard]] int run_on(const Communicator& world,
                           const std::function<void(TrainingRun&)>& finish,
                           const std::function<void(TrainingRun&)>& spoil = nullptr) {
    TrainingRun training(start(world), world, pool_,
                         [this] { return stop_ ? stop_(asked_++) : 0; });
    if (spoil) spoil(training);
    const int status = training.run();
    finish(training);
    return status;
  }

  [[nodiscard]] MemoryUse memory() const { return pool_.use(); }

 private:
  Words words_;
  int threads_;
  std::unique_ptr<Communicator> world_ = make_single_communicator();
  Pool pool_{cpu_device("", threads_)};
  TrainOptions options_;
  std::unique_ptr<Options> given_;
  std::function<int(int)> stop_;
  int asked_ = 0;
};

inline std::vector<Json> read_metrics(const std::string& path) {
  std::vector<Json> lines;
  for (const std::string& line : lines_of(path)) lines.push_back(parse_json(line, path));
  return lines;
}

// name -> digest of every tensor of a checkpoint.
inline std::map<std::string, std::string> tensor_digests(const std::string& directory) {
  std::map<std::string, std::string> digests;
  const CheckpointReader reader(directory);
  for (const auto& [name, info] : reader.tensors()) digests[name] = to_hex(info.digest);
  return digests;
}

// name -> bytes of every file of a directory, those in folders included.
inline std::map<std::string, std::string> directory_bytes(const std::string& directory) {
  std::map<std::string, std::string> bytes;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    bytes[std::filesystem::relative(entry.path(), directory).string()] = slurp(entry.path());
  }
  return bytes;
}

// A shard of 40 documents in a folder of its own, and what jobs on it write.
class Training : public ::testing::Test {
 protected:
  void SetUp() override { write_shard(scratch_ / "data.h5", 40); }

  [[nodiscard]] Words base() const {
    return small_model() + small_run() + Words{"--data-path", scratch_ / "data.h5"};
  }
  [[nodiscard]] Words saving(const std::string& name) const {
    return {"--save",        scratch_ / name, "--load",
            scratch_ / name, "--metrics",     scratch_ / (name + ".jsonl")};
  }
  [[nodiscard]] std::vector<Json> metrics(const std::string& name) const {
    return read_metrics(scratch_ / (name + ".jsonl"));
  }
  [[nodiscard]] std::string last(const std::string& name, int iteration = 12) const {
    return iteration_directory(scratch_ / name, iteration);
  }

  Scratch scratch_;
};

}  // namespace mt::testing
