// mt-eval: models and texts or token shards, to perplexities; or models and continuations, to
// scores.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/commit.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "cmd/run_main.h"
#include "comm/grid.h"
#include "convert/load_model.h"
#include "eval/perplexity.h"
#include "eval/report.h"
#include "eval/scores.h"
#include "model/grid_inference.h"
#include "model/inference_grid.h"

namespace {

struct EvalOptions {
  std::vector<std::string> load, valid_data, scores;
  std::string token_nll, precision = "fp32";
  bool json = false, force = false, refuse_truncation = false;
  mt::EvalSettings settings;
  mt::TokenizerOptions tokenizer;
  mt::InferenceGridOptions ranks;

  void add_to(mt::Options& options) {
    options.section("Model");
    options.add("load", &load, "DIR",
                "checkpoints, or training runs whose newest one is taken; each is loaded once");
    tokenizer.add_to(options);
    options.add_choice("precision", &precision, {"fp32", "bf16"},
                       "type of the weights in memory; sums are always fp32");
    options.section("Evaluation");
    options.add("valid-data", &valid_data, "FILE",
                "plain texts (- is stdin), or token shards, whose names end in .h5");
    options.add("seq-length", &settings.seq_length, "N",
                "tokens predicted in a window; 0 takes the model's positions");
    options.add("overlapping-eval", &settings.overlapping_eval, "N",
                "tokens by which windows advance, of which later windows count as many; 0 takes "
                "--seq-length: no overlap");
    options.add("micro-batch-size", &settings.micro_batch_size, "N",
                "windows computed at once, or as many positions of --scores; the numbers do not "
                "depend on it");
    options.add("scores", &scores, "FILE",
                "instead of texts: score continuations of contexts, JSON lines (- is stdin)");
    options.add("refuse-truncation", &refuse_truncation,
                "refuse a context too long for the model in place of cutting its left");
    ranks.add_to(options);
    options.section("Output");
    options.add("json", &json,
                "report one JSON object a line, with --scores also the totals at the end");
    options.add("token-nll", &token_nll, "FILE",
                "also write a JSON line for each predicted token; - is stdout, before the report");
    options.add("force", &force, "replace the file of --token-nll");
  }

  [[nodiscard]] const std::vector<std::string>& data() const {
    return scores.empty() ? valid_data : scores;
  }
  [[nodiscard]] std::size_t results() const { return load.size() * data().size(); }

  // What goes together. Throws UsageError.
  void check(const mt::Options& table) const {
    if (load.empty()) throw mt::UsageError("--load: a checkpoint or a training run must be named");
    if (valid_data.empty() && scores.empty()) {
      throw mt::UsageError(
          "--valid-data: a text or token shard must be named, or a file of --scores");
    }
    if (!valid_data.empty() && !scores.empty()) {
      throw mt::UsageError("--scores and --valid-data are two kinds of evaluation: give one");
    }
    const auto streams = std::count(data().begin(), data().end(), "-");
    if (streams > 1 || (streams == 1 && load.size() > 1)) {
      throw mt::UsageError(mt::cat(scores.empty() ? "--valid-data" : "--scores",
                                   " -: standard input can be read once only, for one --load"));
    }
    if (!token_nll.empty() && results() > 1) {
      throw mt::UsageError("--token-nll: goes with one --load and one --valid-data only");
    }
    if (force && token_nll.empty()) {
      throw mt::UsageError("--force: without --token-nll nothing is written");
    }
    for (const char* name : {"seq-length", "overlapping-eval", "token-nll"}) {
      if (!scores.empty() && table.given(name)) {
        throw mt::UsageError(mt::cat("--", name, ": goes with --valid-data, not with --scores"));
      }
    }
    if (scores.empty() && refuse_truncation) {
      throw mt::UsageError("--refuse-truncation: goes with --scores only");
    }
  }
};

// Writes to stdout; with flush it is out when this returns.
void print(const std::string& text, bool flush = false) {
  errno = 0;
  std::cout << text;
  if (flush) std::cout.flush();
  if (std::cout) return;
  throw mt::EnvironmentError(
      mt::cat("cannot write standard output: ",
              errno != 0 ? std::strerror(errno) : "an earlier write failed"));
}

// The JSON lines of --token-nll, in a file that appears when all is done, or on stdout.
class TokenLines {
 public:
  TokenLines(const std::string& path, bool force, const mt::Tokenizer* tokenizer)
      : tokenizer_(tokenizer) {
    if (path == "-") return;
    file_.emplace(path,
                  force ? mt::PendingFile::Existing::kReplace : mt::PendingFile::Existing::kRefuse);
  }
  void add(std::int64_t position, std::int32_t id, float nll) {
    mt::Json line = mt::Json::object();
    line["position"] = position;
    line["id"] = id;
    if (tokenizer_ != nullptr) line["token"] = tokenizer_->decode(&id, 1);
    line["nll"] = nll;
    held_ += mt::json_line(line) + "\n";
    if (held_.size() > std::size_t{1} << 16) write();
  }
  void close() {
    write();
    if (file_) file_->commit();
  }

 private:
  void write() {
    if (file_) {
      file_->write(held_);
    } else {
      print(held_);
    }
    held_.clear();
  }
  std::optional<mt::PendingFile> file_;
  const mt::Tokenizer* tokenizer_;
  std::string held_;
};

mt::Tokenizer& tokenizer_of(const mt::LoadedModel& model) {
  if (model.tokenizer == nullptr) {
    throw mt::UsageError(mt::cat(model.directory, " carries no tokenizer: name one with ",
                                 "--vocab-file and --merge-file"));
  }
  return *model.tokenizer;
}

std::unique_ptr<mt::TokenSource> open_source(const std::string& data,
                                             const mt::LoadedModel& model) {
  if (data.ends_with(".h5")) {
    return mt::open_shard(data, model.tokenizer.get(), model.config.vocab_size);
  }
  return mt::open_text(data, tokenizer_of(model));
}

mt::ModelLabel label_of(const EvalOptions& options, const mt::LoadedModel& model) {
  return {.directory = model.directory,
          .iteration = model.iteration,
          .tokenizer = model.tokenizer == nullptr ? "" : mt::to_hex(model.tokenizer->digest()),
          .precision = options.precision};
}

// A model that is loaded, as it is asked.
struct Subject {
  const mt::LoadedModel& loaded;
  mt::InferenceModel& model;
};

// Prints results as they come.
class Reporter {
 public:
  explicit Reporter(const EvalOptions& options) : options_(options) {
    if (!options.json && options.results() > 1 && ::isatty(STDOUT_FILENO) == 1) {
      lines_.emplace(options.load, options.valid_data);
    }
  }
  [[nodiscard]] std::int64_t results() const { return results_; }

  void add(std::size_t load, std::size_t data, const mt::LoadedModel& model,
           const std::string& name, const mt::EvalSettings& settings,
           const mt::Perplexity& result) {
    const mt::ModelLabel label = label_of(options_, model);
    if (options_.json) {
      print(mt::perplexity_json(label, name, settings, result) + "\n");
    } else if (lines_) {
      if (results_ == 0) print(lines_->heading());
      print(lines_->line(options_.load[load], model.iteration, options_.valid_data[data], result));
    } else {
      if (results_ > 0) print("\n");
      print(mt::perplexity_block(label, name, settings, result));
    }
    end_result();
  }
  void add(const mt::LoadedModel& model, const std::string& data, const mt::ScoreTotals& totals) {
    const std::string name = data == "-" ? "standard input" : mt::printable(data);
    if (options_.json) print(mt::totals_json(label_of(options_, model), name, totals) + "\n");
    mt::log_info(name + ": " + mt::totals_text(totals));
    end_result();
  }

 private:
  void end_result() {
    ++results_;
    print("", true);
  }
  const EvalOptions& options_;
  std::optional<mt::ResultLines> lines_;
  std::int64_t results_ = 0;
};

void evaluate_text(const EvalOptions& options, const Subject& subject, std::size_t load,
                   std::size_t data, Reporter& reporter) {
  const mt::LoadedModel& model = subject.loaded;
  mt::EvalSettings settings = options.settings;
  settings.check(model.config.max_position_embeddings);
  const auto source = open_source(options.valid_data[data], model);
  std::optional<TokenLines> lines;
  mt::TokenSink sink;
  if (!options.token_nll.empty()) {
    lines.emplace(options.token_nll, options.force, model.tokenizer.get());
    sink = [&](std::int64_t position, std::int32_t id, float nll) {
      lines->add(position, id, nll);
    };
  }
  const mt::Perplexity result = mt::evaluate_perplexity(subject.model, *source, settings, sink);
  if (lines) lines->close();
  reporter.add(load, data, model, source->name(), settings, result);
}

void score_lines(const EvalOptions& options, const Subject& subject, const std::string& data,
                 Reporter& reporter) {
  const mt::LoadedModel& model = subject.loaded;
  mt::EvalSettings settings{.micro_batch_size = options.settings.micro_batch_size};
  settings.check(model.config.max_position_embeddings);
  const mt::ScoreSettings scoring{
      .rows = settings.micro_batch_size * settings.seq_length,
      .long_context = options.refuse_truncation ? mt::LongContext::kRefuse : mt::LongContext::kCut};
  const mt::ScoreTotals totals =
      mt::evaluate_scores(subject.model, tokenizer_of(model), data, scoring,
                          [](const mt::ScoreItem& item, const mt::EncodedScore& encoded,
                             const std::vector<mt::OptionScore>& scores) {
                            print(mt::score_json(item, encoded, scores) + "\n");
                          });
  reporter.add(model, data, totals);
}

void evaluate_all(const EvalOptions& options, const Subject& subject, std::size_t load,
                  Reporter& reporter) {
  for (std::size_t data = 0; data < options.data().size(); ++data) {
    if (options.scores.empty()) {
      evaluate_text(options, subject, load, data, reporter);
    } else {
      score_lines(options, subject, options.scores[data], reporter);
    }
  }
}

int run(EvalOptions& options, const mt::Options& table, const mt::RunContext& context) {
  options.check(table);
  const mt::DType weights = mt::inference_precision(options.precision);
  const mt::ProcessGrid grid(*context.world, options.ranks.grid(context.world->size()));
  mt::Pool pool(mt::cpu_device(context.cpu_set, context.threads));
  Reporter reporter(options);
  for (std::size_t load = 0; load < options.load.size(); ++load) {
    const std::string& path = options.load[load];
    try {
      const mt::LoadedModel model =
          mt::load_model(path, options.tokenizer, grid, pool, weights, options.ranks.layout());
      mt::run_inference(grid, *model.stage, pool, [&](mt::InferenceModel& asked) {
        evaluate_all(options, {model, asked}, load, reporter);
      });
    } catch (const mt::UsageError& error) {
      if (load == 0 && reporter.results() == 0) throw;
      // Results are out: this is a model that does not go with the options, no wrong use.
      throw mt::DataError(mt::cat("--load ", mt::printable(path), ": ", error.what()));
    }
    pool.release_spare();  // the next model may have other sizes
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  EvalOptions options;
  return mt::run_main(
      {.name = "mt-eval",
       .usage = "--load DIR... (--valid-data FILE... | --scores FILE...) [OPTION]...",
       .description =
           "Reports the perplexity of texts or token shards under models, per token, per word "
           "(what white space separates) and per byte, with the counts of each, the window and "
           "the stride; with --scores the likelihood of given continuations of contexts. "
           "Example: mt-eval --load run --valid-data text.txt --overlapping-eval 32. A model is "
           "cut over the ranks of a launcher: mpirun -n 2 mt-eval --tensor-model-parallel-size 2",
       .add_options = [&](mt::Options& table) { options.add_to(table); },
       .run = [&](const mt::Options& table,
                  const mt::RunContext& context) { return run(options, table, context); },
       .ranks = mt::Ranks::kMany},
      argc, argv);
} catch (...) {
  return mt::status_of_failure("mt-eval");
}
