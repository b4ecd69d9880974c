#include "convert/gpt2_source.h"

#include <set>

#include "base/error.h"
#include "base/log.h"
#include "ckpt/manifest.h"
#include "convert/meter.h"

namespace mt {
namespace {

CheckpointReader open(const std::string& source) {
  const FoundCheckpoint found = find_checkpoint(source);
  if (found.absent) throw EnvironmentError(cat(printable(source), ": there is no checkpoint"));
  return CheckpointReader(found.directory);
}

}  // namespace

Gpt2Source::Gpt2Source(const std::string& source)
    : reader_(open(source)),
      config_(
          ModelConfig::from_json(reader_.model(), reader_.directory() + "/manifest.json: model")),
      tensors_(gpt2_tensors(config_, "transformer.")) {
  std::set<std::string> taken;
  const NamedTensor* first = nullptr;  // of one of theirs
  for (const NamedTensor& tensor : tensors_) {
    const std::string where = cat(reader_.directory(), ": tensor ", tensor.ours, ": ");
    const auto found = reader_.tensors().find(tensor.ours);
    if (found == reader_.tensors().end() || found->second.optimizer) {
      throw DataError(cat(where, "there is none"));
    }
    if (const Shape wanted = our_shape(*tensor.name, config_); found->second.shape != wanted) {
      throw DataError(
          cat(where, "expected ", shape_text(wanted), ", found ", shape_text(found->second.shape)));
    }
    if (tensor.name->part == 0) first = &tensor;
    if (found->second.dtype != stored(first->ours)) {
      throw DataError(cat(where, "is ", dtype_name(found->second.dtype), ", but ", first->ours,
                          " is ", dtype_name(stored(first->ours))));
    }
    taken.insert(tensor.ours);
  }
  for (const auto& [name, info] : reader_.tensors()) {
    if (info.optimizer || taken.contains(name)) continue;
    throw DataError(
        cat(reader_.directory(), ": tensor ", printable(name), ": a GPT-2 has no place for it"));
  }
}

void Gpt2Source::write(const std::vector<ForeignTarget>& targets,
                       const std::vector<ForeignFile>& files, const std::string& destination,
                       const ExportSettings& settings) const {
  std::uint64_t bytes = 0;
  for (const ForeignTarget& target : targets) {
    for (const ForeignPart& part : target.parts) {
      const auto& info = reader_.tensors().at(part.ours);
      bytes += checked_bytes(info.shape, info.dtype, part.ours);
    }
  }
  Meter meter(printable(destination), bytes, settings.stop);
  write_foreign(reader_, targets, files, settings.most_memory,
                [&](std::uint64_t more) { meter.add(more); });
}

void Gpt2Source::report(std::size_t tensors, std::uint64_t bytes,
                        const std::string& destination) const {
  if (!reader_.training().is_null()) {
    log_info("that format holds weights only: the optimizer and the state of training stay here");
  }
  log_info(cat(printable(reader_.directory()), ": ", tensors, " tensors of iteration ",
               reader_.iteration(), ", ", bytes_text(static_cast<double>(bytes)), ", written to ",
               printable(destination)));
}

}  // namespace mt
