// mt-generate: a model and prompts, to the prompts continued.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "cmd/run_main.h"
#include "comm/grid.h"
#include "convert/load_model.h"
#include "infer/generate.h"
#include "io/line_reader.h"
#include "model/grid_inference.h"
#include "model/inference_grid.h"

namespace {

constexpr std::size_t kLongestPrompt = std::size_t{64} << 20;  // bytes

struct GenerateOptions {
  std::string load, prompts_file, requests_file, precision = "fp32";
  std::vector<std::string> prompt;
  bool json = false, sliding = false;
  std::int64_t micro_batch_size = 8;
  mt::RequestOptions request;
  mt::TokenizerOptions tokenizer;
  mt::InferenceGridOptions ranks;

  void add_to(mt::Options& options) {
    options.section("Model");
    options.add("load", &load, "DIR", "checkpoint, or training run whose newest one is taken");
    tokenizer.add_to(options);
    options.add("precision", &precision, "NAME",
                "of the weights: fp32, or bf16, which rounds them to half the memory");
    options.add_alias("bf16", "precision", "bf16");
    options.section("Prompts");
    options.add("prompt", &prompt, "TEXT",
                "what to continue; - reads one from stdin, the empty text is end-of-text; several "
                "may be given");
    options.add("prompts-file", &prompts_file, "FILE", "each line is a prompt; - is stdin");
    options.add_alias("sample-input-file", "prompts-file");
    options.add("requests-file", &requests_file, "FILE",
                "each line is a JSON object with a prompt and options of its own; - is stdin");
    request.add_to(options);
    options.section("Output and batches");
    options.add("json", &json, "write a JSON line for each text, with tokens and probabilities");
    options.add("sliding", &sliding,
                "let the context slide over texts that are longer than the model's positions");
    options.add("micro-batch-size", &micro_batch_size, "N",
                "texts made at once; none depends on it");
    ranks.add_to(options);
  }

  void check(const mt::Options& table) const {
    const int sources = static_cast<int>(table.given("prompt")) +
                        static_cast<int>(table.given("prompts-file")) +
                        static_cast<int>(table.given("requests-file"));
    if (sources > 1) {
      throw mt::UsageError(
          "--prompt, --prompts-file, --requests-file: expected one of them, found several");
    }
    for (const char* name : {"temperature", "top-k", "top-p"}) {
      if (request.sampling.greedy && table.given(name)) {
        throw mt::UsageError(mt::cat("--", name, ": contradicts --greedy, which draws nothing"));
      }
    }
    if (micro_batch_size < 1 || micro_batch_size > 65536) {
      throw mt::UsageError(
          mt::cat("--micro-batch-size ", micro_batch_size, ": expected 1 to 65536"));
    }
    request.check();
  }
};

// All of stdin. What never ends is refused before it fills the memory.
std::string read_prompt() {
  std::string text;
  std::string block(std::size_t{1} << 16, '\0');
  while (text.size() <= kLongestPrompt) {
    const ssize_t got = ::read(STDIN_FILENO, block.data(), block.size());
    if (got == 0) return text;
    if (got < 0 && errno != EINTR) {
      throw mt::EnvironmentError(mt::cat("standard input: reading: ", std::strerror(errno)));
    }
    if (got > 0) text.append(block, 0, static_cast<std::size_t>(got));
  }
  throw mt::UsageError(mt::cat("--prompt -: standard input has more than ", kLongestPrompt,
                               " bytes, which are no prompt"));
}

// Prompts in their order, from wherever the options say.
class Prompts {
 public:
  Prompts(const GenerateOptions& options, mt::Tokenizer& tokenizer, const mt::ModelConfig& config)
      : options_(options), tokenizer_(tokenizer), config_(config), given_(options.prompt) {
    const std::string& file =
        options.prompts_file.empty() ? options.requests_file : options.prompts_file;
    if (!file.empty()) {
      lines_.emplace(file, kLongestPrompt);
      return;
    }
    if (given_.empty()) given_.emplace_back();
    if (std::count(given_.begin(), given_.end(), "-") > 1) {
      throw mt::UsageError("--prompt -: standard input can be read once");
    }
    for (std::string& text : given_) {
      if (text == "-") text = read_prompt();
      known_.push_back(request_of(text));
    }
  }

  // Of the prompts that are known from the start: how many texts they make and how many positions
  // the longest needs; none for a file.
  struct Extent {
    std::int64_t texts = 0, positions = 0;
  };
  [[nodiscard]] std::optional<Extent> extent() const {
    if (lines_) return std::nullopt;
    Extent extent;
    for (const mt::Request& request : known_) {
      const auto length = static_cast<std::int64_t>(request.context.size());
      const std::int64_t tokens = request.options.num_tokens_to_generate;
      if (!options_.sliding) mt::check_positions(config_, length, tokens);
      const std::int64_t room = config_.max_position_embeddings;
      extent.positions = std::max(extent.positions,
                                  length >= room ? room : length + std::min(tokens, room - length));
      extent.texts += std::min(request.options.num_samples, options_.micro_batch_size);
    }
    return extent;
  }

  std::optional<mt::Request> next() {
    std::optional<mt::Request> request;
    if (lines_) {
      request = next_line();
    } else if (count_ < static_cast<std::int64_t>(known_.size())) {
      request = known_[static_cast<std::size_t>(count_)];
    }
    if (request) request->index = count_++;
    return request;
  }

 private:
  mt::Request request_of(std::string_view text) const {
    return with_context({.index = 0,
                         .id = nullptr,
                         .prompt = std::string(text),
                         .context = {},
                         .options = options_.request});
  }

  mt::Request with_context(mt::Request request) const {
    tokenizer_.encode(request.prompt, request.context);
    if (request.context.empty()) request.context.push_back(tokenizer_.end_of_document());
    return request;
  }

  std::optional<mt::Request> next_line() {
    std::string_view line;
    while (lines_->next(line)) {
      if (lines_->line_number() == 1 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
      if (line.ends_with('\r')) line.remove_suffix(1);
      const std::string where = mt::cat(lines_->name(), ":", lines_->line_number());
      const bool text = !options_.prompts_file.empty();
      if (!text && line.find_first_not_of(" \t") == std::string_view::npos) continue;
      mt::Request request =
          text ? request_of(line)
               : with_context(mt::request_from_json(line, where, options_.request));
      try {
        if (!options_.sliding) {
          mt::check_positions(config_, static_cast<std::int64_t>(request.context.size()),
                              request.options.num_tokens_to_generate);
        }
      } catch (const mt::UsageError& error) {
        throw mt::DataError(mt::cat(where, ": ", error.what()));
      }
      return request;
    }
    return std::nullopt;
  }

  const GenerateOptions& options_;
  mt::Tokenizer& tokenizer_;
  const mt::ModelConfig& config_;
  std::vector<std::string> given_;
  std::vector<mt::Request> known_;
  std::optional<mt::LineReader> lines_;
  std::int64_t count_ = 0;
};

// Writes at once, so that a reader sees each piece as it comes and a full disk ends the work.
void put(std::string_view text) {
  errno = 0;
  if (!(std::cout << text << std::flush)) {
    throw mt::EnvironmentError(
        mt::cat("cannot write standard output: ",
                errno != 0 ? std::strerror(errno) : "an earlier write failed"));
  }
}

mt::Generator::Sink text_sink() {
  return {.begin = [](const mt::Continuation& text) { put(text.request->prompt); },
          .more = put,
          .end = [](const mt::Continuation&) { put("\n"); }};
}

mt::Generator::Sink json_sink() {
  return {.begin = [](const mt::Continuation&) {},
          .more = [](std::string_view) {},
          .end = [](const mt::Continuation& text) { put(mt::json_line(json_of(text)) + "\n"); }};
}

// All prompts through a model: what rank 0 does.
void generate(const GenerateOptions& options, const mt::LoadedModel& model,
              mt::InferenceModel& asked) {
  if (model.tokenizer == nullptr) {
    throw mt::UsageError(mt::cat(model.directory, " carries no tokenizer: name one with ",
                                 "--vocab-file and --merge-file"));
  }
  Prompts prompts(options, *model.tokenizer, model.config);
  const auto extent = prompts.extent();
  mt::Generator generator(
      asked, {.slots = extent ? std::min(extent->texts, options.micro_batch_size)
                              : options.micro_batch_size,
              .capacity = extent ? extent->positions : 0,
              .sliding = options.sliding,
              .log_probabilities = options.json,
              .end_token = model.tokenizer->end_of_document(),
              .allowed = model.tokenizer->vocab_size(),
              .decode = [&](std::int32_t token) { return model.tokenizer->decode(&token, 1); }});
  generator.run([&] { return prompts.next(); }, options.json ? json_sink() : text_sink());
}

int run(const GenerateOptions& options, const mt::Options& table, const mt::RunContext& context) {
  options.check(table);
  const mt::DType precision = mt::inference_precision(options.precision);
  const mt::ProcessGrid grid(*context.world, options.ranks.grid(context.world->size()));
  mt::Pool pool(mt::cpu_device(context.cpu_set, context.threads));
  const mt::LoadedModel model = mt::load_model(options.load, options.tokenizer, grid, pool,
                                               precision, options.ranks.layout());
  mt::run_inference(grid, *model.stage, pool,
                    [&](mt::InferenceModel& asked) { generate(options, model, asked); });
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  GenerateOptions options;
  return mt::run_main(
      {.name = "mt-generate",
       .usage = "--load DIR [--prompt TEXT]... [OPTION]...",
       .description =
           "Continues prompts: writes each prompt, its continuation as it comes and a newline to "
           "stdout, or JSON lines. A text ends at the model's end-of-text token, a --stop text or "
           "after --num-tokens-to-generate. Tokens are drawn from the model's distribution unless "
           "--greedy is given; the same --seed gives the same text. "
           "Example: mt-generate --load run --top-p 0.9 --prompt 'ROMEO:'. A model is cut over the "
           "ranks of a launcher: mpirun -n 2 mt-generate --tensor-model-parallel-size 2",
       .add_options = [&](mt::Options& table) { options.add_to(table); },
       .run = [&options](const mt::Options& given,
                         const mt::RunContext& start) { return run(options, given, start); },
       .ranks = mt::Ranks::kMany},
      argc, argv);
} catch (...) {
  return mt::status_of_failure("mt-generate");
}
