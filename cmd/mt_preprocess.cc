// mt-preprocess: JSON lines or plain texts -> a token shard.
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "base/commit.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "cmd/run_main.h"
#include "data/megatron_index.h"
#include "data/preprocess.h"
#include "data/token_shard.h"
#include "io/input_list.h"

namespace {

struct Settings {
  std::vector<std::string> inputs;
  std::string json_keys = "text";
  std::string output_prefix, from_megatron;
  std::string output_format = "hdf5";
  bool plain = false, force = false, append_eod = false, strict = false, json = false;
  std::string tokenizer_type = "GPT2BPETokenizer";
  std::string vocab_file, merge_file;
  std::int64_t workers = 0, log_interval = 100000;

  void add_to(mt::Options& options) {
    options.section("Input");
    options.add("input", &inputs, "FILE",
                "JSON lines, as they are or compressed by zstd or gzip; several are read in this "
                "order; a folder stands for the files below it, a quoted pattern for those that "
                "match; - is stdin");
    options.add("plain", &plain, "each input is a plain text and becomes one document");
    options.add("json-keys", &json_keys, "KEY", "the key of the text in each object");
    options.add("strict", &strict, "stop at the first bad line instead of passing over it");
    options.add("from-megatron", &from_megatron, "PREFIX",
                "instead of --input: the documents of Megatron-LM's PREFIX.bin and PREFIX.idx, as "
                "they are; the tokenizer must be the one that made them");
    options.section("Output");
    options.add_choice("output-format", &output_format, {"hdf5", "megatron"},
                       "a token shard, or Megatron-LM's PREFIX_text_document.bin and .idx, text "
                       "being the key");
    options.add("output-prefix", &output_prefix, "PREFIX", "the shard is PREFIX.h5");
    options.add("force", &force, "replace the shard if it exists");
    options.add("append-eod", &append_eod, "end every document with an end-of-document token");
    options.section("Tokenizer");
    options.add_choice("tokenizer-type", &tokenizer_type, {"GPT2BPETokenizer"},
                       "byte-level BPE of GPT-2");
    options.add("vocab-file", &vocab_file, "FILE", "vocab.json");
    options.add("merge-file", &merge_file, "FILE", "merges.txt");
    options.section("Running");
    options.add("workers", &workers, "N",
                "threads that encode; 0 takes --threads; the shard does not depend on it");
    options.add("log-interval", &log_interval, "N", "documents between two log lines; 0: none");
    options.add("json", &json, "print the summary as one JSON object on stdout");
  }

  void check() const {
    const auto required = [](bool given, const char* name) {
      if (!given) throw mt::UsageError(mt::cat("--", name, " is required"));
    };
    if (from_megatron.empty()) {
      required(!inputs.empty(), "input");
    } else if (!inputs.empty() || plain || append_eod || strict) {
      throw mt::UsageError(
          "--from-megatron: takes tokens as they are, without --input, --plain, --append-eod or "
          "--strict");
    }
    required(!output_prefix.empty(), "output-prefix");
    required(!vocab_file.empty(), "vocab-file");
    required(!merge_file.empty(), "merge-file");
    if (output_prefix == "-" || output_prefix.back() == '/') {
      throw mt::UsageError(mt::cat("--output-prefix ", mt::printable(output_prefix),
                                   ": expected the beginning of a file name; a shard is a file and "
                                   "cannot be written to a stream"));
    }
    if (json_keys.empty()) throw mt::UsageError("--json-keys: expected a key");
    constexpr std::int64_t kMostWorkers = 4096;
    if (workers < 0 || workers > kMostWorkers) {
      throw mt::UsageError(
          mt::cat("--workers ", workers, ": expected a number from 0 to ", kMostWorkers));
    }
    if (log_interval < 0) {
      throw mt::UsageError(mt::cat("--log-interval ", log_interval, ": expected 0 or more"));
    }
  }

  [[nodiscard]] bool megatron() const { return output_format == "megatron"; }
  // Of Megatron-LM's two files.
  [[nodiscard]] std::string megatron_prefix() const {
    return output_prefix + "_" + json_keys + "_document";
  }
  [[nodiscard]] std::string path() const {
    return megatron() ? megatron_prefix() + ".idx" : output_prefix + ".h5";
  }
  // Of the files that are taken from a folder.
  [[nodiscard]] std::vector<std::string> input_endings() const {
    const std::string kind = plain ? ".txt" : ".jsonl";
    return {kind, kind + ".gz", kind + ".zst"};
  }
};

std::unique_ptr<mt::Tokenizer> load_tokenizer(const Settings& settings) {
  constexpr std::uint64_t kLimit = std::uint64_t{256} << 20;
  return mt::make_bpe_tokenizer(
      {mt::read_file(settings.vocab_file, kLimit), mt::read_file(settings.merge_file, kLimit)},
      mt::TokenizerNames{mt::printable(settings.vocab_file), mt::printable(settings.merge_file)});
}

// What determines the shard's content beside input and tokenizer.
std::vector<std::pair<std::string, std::string>> content_options(const Settings& settings) {
  std::vector<std::pair<std::string, std::string>> options = {
      {"append-eod", settings.append_eod ? "true" : "false"}};
  if (!settings.from_megatron.empty()) {
    options.emplace_back("from-megatron", "true");
  } else if (settings.plain) {
    options.emplace_back("plain", "true");
  } else {
    options.emplace_back("json-keys", settings.json_keys);
  }
  return options;
}

int worker_count(std::int64_t wanted, int threads) {
  if (wanted > 0) return static_cast<int>(wanted);
  if (threads > 0) return threads;
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

void log_summary(const mt::PreprocessCounts& c, const std::string& path) {
  mt::log_info(mt::cat("wrote ", mt::printable(path), ": ", c.documents, " documents (", c.empty,
                       " empty), ", c.tokens, " tokens, ", c.text_bytes, " bytes of text, from ",
                       c.inputs, c.inputs == 1 ? " input, " : " inputs, ", c.lines, " lines (",
                       c.blank, " blank)"));
  if (c.bad() > 0) {
    mt::log_warning(mt::cat(c.bad(), " bad lines passed over: ", c.not_json, " not JSON, ",
                            c.not_object, " not an object, ", c.missing_key, " without the key, ",
                            c.not_string, " with a value that is not a string"));
  }
  if (c.replaced > 0) {
    mt::log_warning(mt::cat(c.replaced, " places in ", c.replaced_lines,
                            " lines were not UTF-8 or half a surrogate pair: U+FFFD stands there"));
  }
}

void print_summary(const mt::PreprocessCounts& c, const std::string& path) {
  std::cout << mt::json_line({{"path", path},
                              {"inputs", c.inputs},
                              {"lines", c.lines},
                              {"blank", c.blank},
                              {"documents", c.documents},
                              {"empty", c.empty},
                              {"tokens", c.tokens},
                              {"text_bytes", c.text_bytes},
                              {"not_json", c.not_json},
                              {"not_object", c.not_object},
                              {"missing_key", c.missing_key},
                              {"not_string", c.not_string},
                              {"replaced", c.replaced},
                              {"replaced_lines", c.replaced_lines}})
            << '\n';
}

std::unique_ptr<mt::DocumentWriter> make_writer(const Settings& settings,
                                                const mt::Tokenizer& tokenizer) {
  if (settings.megatron()) {
    return std::make_unique<mt::MegatronWriter>(settings.megatron_prefix(), settings.force,
                                                tokenizer);
  }
  return std::make_unique<mt::TokenShardWriter>(
      mt::TokenShardWriter::Settings{
          .path = settings.path(), .replace = settings.force, .options = content_options(settings)},
      tokenizer);
}

// Document by document, every id checked.
mt::PreprocessCounts copy_megatron(const std::string& path, const mt::Tokenizer& tokenizer,
                                   mt::DocumentWriter& writer) {
  const std::string prefix = mt::find_megatron_prefix(path);
  if (prefix.empty()) {
    throw mt::EnvironmentError(mt::cat("--from-megatron ", mt::printable(path), ": neither ",
                                       mt::printable(path), ".idx nor ", mt::printable(path),
                                       "_text_document.idx is there"));
  }
  const mt::TokenShardReader reader(prefix, tokenizer);
  mt::PreprocessCounts counts{.inputs = 1};
  std::vector<std::int32_t> ids;
  for (std::int64_t d = 0; d < reader.documents(); ++d) {
    const std::int64_t begin = reader.document_offset(d);
    ids.resize(static_cast<std::size_t>(reader.document_offset(d + 1) - begin));
    reader.read(begin, static_cast<std::int64_t>(ids.size()), ids.data());
    writer.add_document(ids.data(), ids.size(), -1);
    ++counts.documents;
    counts.empty += ids.empty() ? 1 : 0;
    counts.tokens += static_cast<std::int64_t>(ids.size());
  }
  return counts;
}

int run(const Settings& settings, int threads) {
  settings.check();
  if (!settings.force && mt::exists(settings.path())) {
    throw mt::UsageError(mt::cat(mt::printable(settings.path()), " exists; --force replaces it"));
  }
  const std::vector<std::string> inputs =
      mt::expand_inputs(settings.inputs, settings.input_endings());
  const auto tokenizer = load_tokenizer(settings);
  const auto writer = make_writer(settings, *tokenizer);
  const mt::PreprocessCounts counts =
      settings.from_megatron.empty()
          ? mt::preprocess({.inputs = inputs,
                            .plain = settings.plain,
                            .json_key = settings.json_keys,
                            .append_eod = settings.append_eod,
                            .strict = settings.strict,
                            .workers = worker_count(settings.workers, threads),
                            .log_interval = settings.log_interval},
                           *tokenizer, *writer)
          : copy_megatron(settings.from_megatron, *tokenizer, *writer);
  writer->close();
  log_summary(counts, settings.path());
  if (settings.json) print_summary(counts, settings.path());
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  Settings settings;
  return mt::run_main(
      {.name = "mt-preprocess",
       .usage = "--input FILE... --output-prefix PREFIX --vocab-file FILE --merge-file FILE "
                "[OPTION...]",
       .description =
           "Encodes the documents of JSON lines, or plain texts, and writes them as a token shard, "
           "PREFIX.h5, that mt-train reads; or as Megatron-LM's .bin and .idx, which it reads, "
           "too.",
       .add_options = [&](mt::Options& options) { settings.add_to(options); },
       .run = [&](const mt::Options&,
                  const mt::RunContext& context) { return run(settings, context.threads); }},
      argc, argv);
} catch (...) {
  return mt::status_of_failure("mt-preprocess");
}
