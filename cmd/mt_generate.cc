// mt-generate: a model and a prompt, to the prompt continued on stdout.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "base/error.h"
#include "cmd/run_main.h"
#include "comm/communicator.h"
#include "convert/load_model.h"
#include "infer/generate.h"

namespace {

struct GenerateOptions {
  std::string load, prompt;
  bool greedy = false;
  std::int64_t num_tokens_to_generate = 64;
  mt::TokenizerOptions tokenizer;

  void add_to(mt::Options& options) {
    options.section("Model");
    options.add("load", &load, "DIR", "checkpoint, or training run whose newest one is taken");
    tokenizer.add_to(options);
    options.section("Generation");
    options.add("prompt", &prompt, "TEXT",
                "what to continue; - reads it from stdin, the empty text is end-of-text");
    options.add("greedy", &greedy, "take the most likely token each time; must be given");
    options.add("num-tokens-to-generate", &num_tokens_to_generate, "N", "stop after N tokens");
  }
};

// All of stdin. What never ends is refused before it fills the memory.
std::string read_prompt() {
  constexpr std::size_t kLongest = std::size_t{64} << 20;  // bytes
  std::string text;
  std::string block(std::size_t{1} << 16, '\0');
  while (text.size() <= kLongest) {
    const ssize_t got = ::read(STDIN_FILENO, block.data(), block.size());
    if (got == 0) return text;
    if (got < 0 && errno != EINTR) {
      throw mt::EnvironmentError(mt::cat("standard input: reading: ", std::strerror(errno)));
    }
    if (got > 0) text.append(block, 0, static_cast<std::size_t>(got));
  }
  throw mt::UsageError(mt::cat("--prompt -: standard input has more than ", kLongest,
                               " bytes, which are no prompt"));
}

// Writes at once, so that a reader sees each piece as it comes and a full disk ends the work.
void put(const std::string& text) {
  errno = 0;
  if (!(std::cout << text << std::flush)) {
    throw mt::EnvironmentError(
        mt::cat("cannot write standard output: ",
                errno != 0 ? std::strerror(errno) : "an earlier write failed"));
  }
}

int run(GenerateOptions& options, const mt::RunContext& context) {
  if (!options.greedy) {
    throw mt::UsageError("--greedy must be given: there is no other way to choose tokens");
  }
  if (options.prompt == "-") {
    options.prompt = read_prompt();
  }
  const auto world = mt::make_single_communicator();
  mt::Pool pool(mt::cpu_device(context.cpu_set, context.threads));
  const mt::LoadedModel model = mt::load_model(options.load, options.tokenizer, *world, pool);
  if (model.tokenizer == nullptr) {
    throw mt::UsageError(mt::cat(model.directory, " carries no tokenizer: name one with ",
                                 "--vocab-file and --merge-file"));
  }

  std::vector<std::int32_t> tokens;
  model.tokenizer->encode(options.prompt, tokens);
  if (tokens.empty()) tokens.push_back(model.tokenizer->end_of_document());
  mt::check_positions(model.config, static_cast<std::int64_t>(tokens.size()),
                      options.num_tokens_to_generate);
  put(options.prompt);
  mt::CharacterStream characters;
  mt::generate_greedy(
      *model.stage, tokens,
      {.tokens = options.num_tokens_to_generate,
       .end_token = model.tokenizer->end_of_document(),
       .allowed = model.tokenizer->vocab_size()},
      [&](std::int32_t token) { put(characters.push(model.tokenizer->decode(&token, 1))); });
  put(characters.finish() + "\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  GenerateOptions options;
  return mt::run_main(
      {.name = "mt-generate",
       .usage = "--load DIR --greedy [OPTION]...",
       .description =
           "Continues a prompt: writes the prompt, the continuation as it comes and a newline to "
           "stdout. Stops at the model's end-of-text token or after --num-tokens-to-generate. "
           "Example: mt-generate --load run --greedy --prompt 'ROMEO:'",
       .add_options = [&](mt::Options& table) { options.add_to(table); },
       .run = [&](const mt::Options&,
                  const mt::RunContext& context) { return run(options, context); }},
      argc, argv);
} catch (...) {
  return mt::status_of_failure("mt-generate");
}
