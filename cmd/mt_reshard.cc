// mt-reshard: a checkpoint in another layout or type, from a Hugging Face GPT-2 too; what is in
// one, whether it is sound, and how two differ.
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "base/commit.h"
#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"
#include "ckpt/checkpoint.h"
#include "ckpt/reshard.h"
#include "cmd/run_main.h"
#include "comm/communicator.h"
#include "convert/copy_checkpoint.h"
#include "convert/export_hugging_face.h"
#include "convert/gguf.h"
#include "convert/import_foreign.h"
#include "convert/inspect.h"
#include "convert/llmc.h"
#include "tensor/tensor.h"

namespace {

struct ReshardOptions {
  std::vector<std::string> paths;
  std::string load_dir, save_dir;
  bool force = false, model_only = false, use_distributed_optimizer = false;
  bool list = false, verify = false, diff = false, json = false;
  std::int64_t tensor = 1, pipeline = 1, data = 0;
  std::int64_t max_memory = std::int64_t{1} << 30;
  std::int64_t max_shard_size = std::int64_t{50} << 30;
  std::string dtype = "keep", to = "hdf5";
  mt::TokenizerOptions tokenizer;

  void add_to(mt::Options& options) {
    options.add_positional(&paths, "SRC DST", 2,
                           "what is read, and the checkpoint that is written");
    options.section("Conversion");
    options.add("load-dir", &load_dir, "DIR", "SRC, as Megatron-LM's users write it");
    options.add("save-dir", &save_dir, "DIR", "DST, as Megatron-LM's users write it");
    options.add("tensor-model-parallel-size", &tensor, "N", "DST's tensor ranks");
    options.add("pipeline-model-parallel-size", &pipeline, "N", "DST's stages");
    options.add("use-distributed-optimizer", &use_distributed_optimizer,
                "cut the optimizer's tensors of DST over data ranks");
    options.add("data-parallel-size", &data, "N", "how many data ranks those are");
    options.add_alias("target-tensor-model-parallel-size", "tensor-model-parallel-size");
    options.add_alias("target-pipeline-model-parallel-size", "pipeline-model-parallel-size");
    options.add("model-only", &model_only,
                "leave the optimizer's tensors and the state of training out");
    options.add_choice(
        "to", &to, {"hdf5", "safetensors", "llmc", "gguf"},
        "what DST becomes: a checkpoint, a directory of Hugging Face's, llm.c's model "
        "file, a GGUF file");
    options.add("max-shard-size", &max_shard_size, "BYTES",
                "with --to safetensors: the most in one file of several tensors");
    options.add_choice("dtype", &dtype, {"keep", "fp32", "bf16", "fp16"},
                       "type of the weights in DST; one of 16 bits is half as large and implies "
                       "--model-only");
    options.add("max-memory", &max_memory, "BYTES", "memory for the work, 64Mi or more");
    options.add("force", &force, "replace DST if it is a checkpoint");
    tokenizer.add_to(options);
    options.section("Inspection");
    options.add("list", &list, "print what the checkpoint SRC holds");
    options.add("verify", &verify,
                "read and verify SRC; with a second checkpoint, compare the two bit for bit");
    options.add("diff", &diff, "print how far the tensors of two checkpoints are apart");
    options.add("json", &json, "print --list and --diff as JSON");
  }

  // Source and destination, from words or options.
  void resolve() {
    const std::size_t named = (load_dir.empty() ? 0U : 1U) + (save_dir.empty() ? 0U : 1U);
    if (paths.size() + named != 2) {
      throw mt::UsageError(mt::cat("expected a source and a destination, found ",
                                   paths.size() + named, " of the two"));
    }
    std::size_t next = 0;
    if (load_dir.empty()) load_dir = paths[next++];
    if (save_dir.empty()) save_dir = paths[next];
    if (load_dir.empty()) throw mt::UsageError("the source is an empty word");
  }

  [[nodiscard]] std::optional<mt::DType> weights() const {
    if (dtype == "keep") return std::nullopt;
    return dtype == "fp32" ? mt::DType::kF32 : dtype == "bf16" ? mt::DType::kBf16 : mt::DType::kF16;
  }

  // The layout of DST.
  [[nodiscard]] mt::CheckpointLayout layout() const {
    constexpr std::int64_t kMost = 65536;
    const auto check = [&](const char* name, std::int64_t size) {
      if (size >= 1 && size <= kMost) return;
      throw mt::UsageError(mt::cat("--", name, " ", size, ": expected 1 to ", kMost));
    };
    check("tensor-model-parallel-size", tensor);
    check("pipeline-model-parallel-size", pipeline);
    if (use_distributed_optimizer || data != 0) check("data-parallel-size", data);
    if (!use_distributed_optimizer && data > 1) {
      throw mt::UsageError(mt::cat("--data-parallel-size ", data,
                                   ": only --use-distributed-optimizer cuts by data ranks"));
    }
    return {.tensor = tensor,
            .pipeline = pipeline,
            .data = use_distributed_optimizer ? data : 1,
            .distributed_optimizer = use_distributed_optimizer};
  }

  // Of DST, beside its layout.
  void check_format(const mt::CheckpointLayout& layout) const {
    if (max_shard_size < 1) {
      throw mt::UsageError(mt::cat("--max-shard-size ", max_shard_size, ": expected 1 or more"));
    }
    if (to == "hdf5") return;
    if (layout != mt::CheckpointLayout{}) {
      throw mt::UsageError(mt::cat("--to ", to, ": that format has no ranks; leave the sizes out"));
    }
    if (!mt::foreign_format(load_dir).empty()) {
      throw mt::UsageError(mt::cat("--to ", to, ": ", mt::printable(load_dir),
                                   " is no checkpoint; make one of it first"));
    }
  }

  void check_memory() const {
    const auto least = static_cast<std::int64_t>(mt::kLeastMemory);
    if (max_memory >= least) return;
    throw mt::UsageError(mt::cat("--max-memory ", max_memory, ": expected at least ", least));
  }
};

// The name of something in a checkpoint's folder that no checkpoint holds, or "".
std::string foreign_name(const std::string& path) {
  for (const std::string& name : mt::names_in(path)) {
    const bool data = name.ends_with(".h5") && (name.starts_with("model-") ||
                                                name.starts_with("optim-") || name == "index.h5");
    if (!data && name != "manifest.json" && name != "tokenizer") return name;
  }
  return "";
}

// Nothing but a checkpoint is replaced, and none that holds the source or anything else; none is
// made inside another.
void check_destination(const std::string& path, const std::string& source, bool force) {
  std::string parent = std::filesystem::path(path + "/..").lexically_normal().string();
  if (parent.size() > 1 && parent.back() == '/') parent.pop_back();
  if (mt::exists(parent) && mt::is_checkpoint(parent)) {
    throw mt::UsageError(
        mt::cat(mt::printable(path), " would lie in the checkpoint ", mt::printable(parent)));
  }
  if (!mt::exists(path)) return;
  if (!force) {
    throw mt::UsageError(
        mt::cat(mt::printable(path), " exists; --force replaces it if it is a checkpoint"));
  }
  if (std::error_code error; !std::filesystem::exists(path, error) || !mt::is_checkpoint(path)) {
    throw mt::UsageError(mt::cat(mt::printable(path),
                                 " exists and is no checkpoint (it has no manifest.json of one), "
                                 "so --force does not replace it"));
  }
  const auto whole = [](const std::string& name) {
    return std::filesystem::weakly_canonical(name + "/").string();
  };
  if (whole(source).starts_with(whole(path)) && whole(source) != whole(path)) {
    throw mt::UsageError(mt::cat(mt::printable(source), " lies in ", mt::printable(path),
                                 ", which --force would remove with all that is in it"));
  }
  if (const std::string other = foreign_name(path); !other.empty()) {
    throw mt::UsageError(mt::cat(mt::printable(path), " holds ", mt::printable(other),
                                 ", which is no part of a checkpoint; --force would remove it"));
  }
}

int convert(ReshardOptions& options) {
  options.resolve();
  const mt::CheckpointLayout layout = options.layout();
  options.check_memory();
  options.check_format(layout);
  check_destination(options.save_dir, options.load_dir, options.force);
  const mt::StopSignals signals;
  const auto most_memory = static_cast<std::uint64_t>(options.max_memory);
  const auto stop = [&] { return signals.requested(); };
  const mt::CopySettings settings{.layout = layout,
                                  .weights = options.weights(),
                                  .model_only = options.model_only,
                                  .replace = options.force,
                                  .most_memory = most_memory,
                                  .stop = stop};
  if (!mt::foreign_format(options.load_dir).empty()) {
    mt::import_foreign(options.load_dir, options.save_dir, options.tokenizer, settings);
    return 0;
  }
  if (!options.tokenizer.vocab_file.empty() || !options.tokenizer.merge_file.empty()) {
    throw mt::UsageError("--vocab-file: a checkpoint's tokenizer is copied, not replaced");
  }
  if (options.to != "hdf5") {
    const auto write = options.to == "safetensors" ? mt::export_hugging_face
                       : options.to == "llmc"      ? mt::export_llmc
                                                   : mt::export_gguf;
    write(options.load_dir, options.save_dir,
          {.weights = options.weights(),
           .most_shard = static_cast<std::uint64_t>(options.max_shard_size),
           .replace = options.force,
           .most_memory = most_memory,
           .stop = stop});
    return 0;
  }
  mt::copy_checkpoint(options.load_dir, options.save_dir, settings);
  return 0;
}

int inspect(const ReshardOptions& options, const mt::Options& given) {
  const int asked = int{options.list} + int{options.verify} + int{options.diff};
  const std::size_t most = options.list ? 1 : 2, least = options.diff ? 2 : 1;
  if (asked != 1) throw mt::UsageError("expected one of --list, --verify, --diff");
  for (const char* const name :
       {"load-dir", "save-dir", "dtype", "force", "model-only", "tensor-model-parallel-size",
        "pipeline-model-parallel-size", "use-distributed-optimizer", "data-parallel-size", "to",
        "max-shard-size"}) {
    if (!given.given(name)) continue;
    throw mt::UsageError(mt::cat("--", name, ": nothing is written with --list, --verify, --diff"));
  }
  if (options.paths.size() < least || options.paths.size() > most) {
    throw mt::UsageError(mt::cat("expected ", least == most ? "" : "one or ",
                                 most == 1 ? "one checkpoint" : "two checkpoints", ", found ",
                                 options.paths.size()));
  }
  if (options.json && options.verify) throw mt::UsageError("--json: --verify prints no data");
  if (options.list) return mt::list_checkpoint(options.paths[0], options.json, std::cout);
  if (options.diff) {
    return mt::diff_checkpoints(options.paths[0], options.paths[1], options.json, std::cout);
  }
  return options.paths.size() == 1 ? mt::verify_one(options.paths[0])
                                   : mt::verify_two(options.paths[0], options.paths[1], std::cout);
}

}  // namespace

int main(int argc, char** argv) try {
  ReshardOptions options;
  return mt::run_main(
      {.name = "mt-reshard",
       .usage = "[OPTION]... SRC DST | --list SRC | --verify SRC [OTHER] | --diff SRC OTHER",
       .description =
           "Writes the checkpoint DST from SRC: a checkpoint or training run of this suite, cut "
           "for any grid, or a directory of Hugging Face's with a GPT-2 (config.json and "
           "safetensors); --to writes one, or a file for llm.c or llama.cpp. Every tensor is "
           "accounted for, "
           "or nothing is written. Example: "
           "mt-reshard run gpt2-tp4 --tensor-model-parallel-size 4",
       .add_options = [&](mt::Options& table) { options.add_to(table); },
       .run =
           [&](const mt::Options& given, const mt::RunContext& context) {
             static_cast<void>(mt::cpu_device(context.cpu_set, context.threads));
             const bool inspects = options.list || options.verify || options.diff || options.json;
             return inspects ? inspect(options, given) : convert(options);
           }},
      argc, argv);
} catch (...) {
  return mt::status_of_failure("mt-reshard");
}
