// mt-reshard: a Hugging Face GPT-2 directory, or a checkpoint, into a new checkpoint.
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "base/commit.h"
#include "base/error.h"
#include "base/log.h"
#include "ckpt/checkpoint.h"
#include "cmd/run_main.h"
#include "comm/communicator.h"
#include "convert/copy_checkpoint.h"
#include "convert/hugging_face.h"

namespace {

struct ReshardOptions {
  std::vector<std::string> paths;
  std::string load_dir, save_dir;
  bool force = false;
  std::string dtype = "keep";
  mt::TokenizerOptions tokenizer;

  void add_to(mt::Options& options) {
    options.add_positional(&paths, "SRC DST", 2,
                           "what is read, and the checkpoint that is written");
    options.section("Conversion");
    options.add("load-dir", &load_dir, "DIR", "SRC, as Megatron-LM's users write it");
    options.add("save-dir", &save_dir, "DIR", "DST, as Megatron-LM's users write it");
    options.add_choice("dtype", &dtype, {"keep", "fp32", "bf16"},
                       "type of the weights in DST; bf16 is half as large and leaves the state of "
                       "training out");
    options.add("force", &force, "replace DST if it is a checkpoint");
    tokenizer.add_to(options);
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

int run(ReshardOptions& options) {
  options.resolve();
  check_destination(options.save_dir, options.load_dir, options.force);
  const auto world = mt::make_single_communicator();
  const std::optional<mt::DType> weights =
      options.dtype == "keep" ? std::nullopt
                              : std::optional(mt::inference_precision(options.dtype));
  if (mt::is_hugging_face(options.load_dir)) {
    mt::import_hugging_face(options.load_dir, options.save_dir, options.tokenizer, *world,
                            options.force, weights.value_or(mt::DType::kF32));
    return 0;
  }
  if (!options.tokenizer.vocab_file.empty() || !options.tokenizer.merge_file.empty()) {
    throw mt::UsageError("--vocab-file: a checkpoint's tokenizer is copied, not replaced");
  }
  mt::copy_checkpoint(options.load_dir, options.save_dir, *world, options.force, weights);
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  ReshardOptions options;
  return mt::run_main(
      {.name = "mt-reshard",
       .usage = "[OPTION]... SRC DST",
       .description =
           "Writes the checkpoint DST from SRC: a directory of Hugging Face's with a GPT-2 "
           "(config.json and safetensors), or a checkpoint or training run of this suite. Every "
           "tensor is accounted for, or nothing is written. Example: mt-reshard hf/gpt2 gpt2",
       .add_options = [&](mt::Options& table) { options.add_to(table); },
       .run = [&](const mt::Options&, const mt::RunContext&) { return run(options); }},
      argc, argv);
} catch (...) {
  return mt::status_of_failure("mt-reshard");
}
