#include "convert/copy_checkpoint.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "ckpt/checkpoint.h"
#include "ckpt/manifest.h"
#include "ckpt/reshard.h"
#include "convert/grid_plan.h"
#include "convert/load_model.h"
#include "convert/meter.h"

namespace mt {
namespace {

bool is_floating(DType type) {
  return type == DType::kF32 || type == DType::kBf16 || type == DType::kF16;
}

void check_floating(const CheckpointReader& reader) {
  for (const auto& [name, info] : reader.tensors()) {
    if (info.optimizer || is_floating(info.dtype)) continue;
    throw DataError(cat(reader.directory(), ": tensor ", name,
                        ": expected f32, bf16 or f16, found ", dtype_name(info.dtype)));
  }
}

// All but the tensors.
CheckpointContent content_of(const CheckpointReader& reader, const CheckpointLayout& layout,
                             bool weights_only) {
  CheckpointContent content;
  content.iteration = reader.iteration();
  content.model = reader.model();
  if (!weights_only) content.training = reader.training();
  content.tokenizer_digest = reader.tokenizer_digest();
  content.layout = layout;
  for (const char* name : {kCarriedVocab, kCarriedMerges}) {
    if (!reader.manifest().files.contains(name)) continue;
    content.files[name] = reader.file(name);
  }
  return content;
}

}  // namespace

void copy_checkpoint(const std::string& source, const std::string& destination,
                     const CopySettings& settings) {
  const FoundCheckpoint found = find_checkpoint(source);
  if (found.absent) throw EnvironmentError(cat(printable(source), ": there is no checkpoint"));
  const CheckpointReader reader(found.directory);
  if (settings.weights) check_floating(reader);
  const bool narrow = settings.weights && *settings.weights != DType::kF32;
  const bool weights_only = settings.model_only || narrow;
  const CheckpointContent content = content_of(reader, settings.layout, weights_only);
  const ReshardFiles files = plan_grid(reader, settings.layout, weights_only, settings.weights);
  std::uint64_t total = 0, tensors = 0;
  bool dropped = weights_only && !reader.training().is_null();
  for (const auto& [name, info] : reader.tensors()) {
    if (info.optimizer && weights_only) {
      dropped = true;
      continue;
    }
    total += checked_bytes(info.shape, info.dtype, name);
    ++tensors;
  }
  Meter meter(printable(destination), total, settings.stop);
  reshard(reader, destination, files, content,
          {.replace = settings.replace,
           .most_memory = settings.most_memory,
           .progress = [&](std::uint64_t bytes) { meter.add(bytes); }});
  if (dropped && narrow) {
    log_info(cat(dtype_name(*settings.weights),
                 " holds weights only: the optimizer's tensors and the state of training are left "
                 "out"));
  }
  log_info(cat(printable(reader.directory()), ": ", tensors, " tensors of iteration ",
               reader.iteration(), ", ", bytes_text(static_cast<double>(total)), ", written to ",
               printable(destination), " in ", files.size(),
               files.size() == 1 ? " file" : " files"));
}

}  // namespace mt
