// mt-eval: a model and a text or token shard, to its perplexity.
#include <cerrno>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "base/commit.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "cmd/run_main.h"
#include "comm/communicator.h"
#include "convert/load_model.h"
#include "eval/perplexity.h"

namespace {

struct EvalOptions {
  std::string load, valid_data, token_nll;
  bool json = false, force = false;
  mt::EvalSettings settings;
  mt::TokenizerOptions tokenizer;

  void add_to(mt::Options& options) {
    options.section("Model");
    options.add("load", &load, "DIR", "checkpoint, or training run whose newest one is taken");
    tokenizer.add_to(options);
    options.section("Evaluation");
    options.add("valid-data", &valid_data, "FILE",
                "plain text (- is stdin), or a token shard, whose name ends in .h5");
    options.add("seq-length", &settings.seq_length, "N",
                "tokens predicted in a window; 0 takes the model's positions");
    options.add("overlapping-eval", &settings.overlapping_eval, "N",
                "tokens by which windows advance, of which later windows count as many; 0 takes "
                "--seq-length: no overlap");
    options.add("micro-batch-size", &settings.micro_batch_size, "N",
                "windows computed at once; the numbers do not depend on it");
    options.section("Output");
    options.add("json", &json, "report one JSON object on one line");
    options.add("token-nll", &token_nll, "FILE",
                "also write a JSON line for each predicted token; - is stdout, before the report");
    options.add("force", &force, "replace the file of --token-nll");
  }
};

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
    mt::Json line;
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
    } else if (errno = 0; !(std::cout << held_)) {
      throw mt::EnvironmentError(
          mt::cat("cannot write standard output: ",
                  errno != 0 ? std::strerror(errno) : "an earlier write failed"));
    }
    held_.clear();
  }
  std::optional<mt::PendingFile> file_;
  const mt::Tokenizer* tokenizer_;
  std::string held_;
};

std::unique_ptr<mt::TokenSource> open_source(const EvalOptions& options,
                                             const mt::LoadedModel& model) {
  if (options.valid_data.ends_with(".h5")) {
    return mt::open_shard(options.valid_data, model.tokenizer.get(), model.config.vocab_size);
  }
  if (model.tokenizer == nullptr) {
    throw mt::UsageError(mt::cat(model.directory, " carries no tokenizer: name one with ",
                                 "--vocab-file and --merge-file"));
  }
  return mt::open_text(options.valid_data, *model.tokenizer);
}

void report(const EvalOptions& options, const mt::LoadedModel& model, const mt::TokenSource& source,
            const mt::Perplexity& result) {
  const std::string digest =
      model.tokenizer == nullptr ? "" : mt::to_hex(model.tokenizer->digest());
  if (!options.json) {
    std::cout << "data " << source.name() << "\nmodel " << mt::printable(model.directory)
              << ", iteration " << model.iteration << "\ntokenizer "
              << (digest.empty() ? "unknown" : digest) << '\n'
              << mt::perplexity_table(result, options.settings);
    return;
  }
  mt::Json json;
  json["data"] = source.name();
  json["model"] = model.directory;
  json["iteration"] = model.iteration;
  json["tokenizer"] = digest.empty() ? mt::Json(nullptr) : mt::Json(digest);
  json.update(mt::perplexity_json(result, options.settings));
  std::cout << mt::json_line(json) << '\n';
}

int run(EvalOptions& options, const mt::RunContext& context) {
  if (options.valid_data.empty()) {
    throw mt::UsageError("--valid-data: a text or token shard must be named");
  }
  const auto world = mt::make_single_communicator();
  mt::Pool pool(mt::cpu_device(context.cpu_set, context.threads));
  const mt::LoadedModel model = mt::load_model(options.load, options.tokenizer, *world, pool);
  options.settings.check(model.config.max_position_embeddings);
  const auto source = open_source(options, model);
  std::optional<TokenLines> lines;
  mt::TokenSink sink;
  if (!options.token_nll.empty()) {
    lines.emplace(options.token_nll, options.force, model.tokenizer.get());
    sink = [&](std::int64_t position, std::int32_t id, float nll) {
      lines->add(position, id, nll);
    };
  }
  const mt::Perplexity result =
      mt::evaluate_perplexity(*model.stage, *source, options.settings, sink);
  if (lines) lines->close();
  report(options, model, *source, result);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  EvalOptions options;
  return mt::run_main(
      {.name = "mt-eval",
       .usage = "--load DIR --valid-data FILE [OPTION]...",
       .description =
           "Reports the perplexity of a text or token shard under a model, per token, per word "
           "(what white space separates) and per byte, with the counts of each, the window and "
           "the stride. Example: mt-eval --load run --valid-data text.txt --overlapping-eval 32",
       .add_options = [&](mt::Options& table) { options.add_to(table); },
       .run = [&](const mt::Options&,
                  const mt::RunContext& context) { return run(options, context); }},
      argc, argv);
}
