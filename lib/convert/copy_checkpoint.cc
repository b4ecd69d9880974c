#include "convert/copy_checkpoint.h"

#include <cstddef>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "ckpt/checkpoint.h"
#include "convert/load_model.h"
#include "convert/stored_type.h"

namespace mt {

void copy_checkpoint(const std::string& source, const std::string& destination,
                     const Communicator& world, bool replace, std::optional<DType> weights) {
  const FoundCheckpoint found = find_checkpoint(source);
  if (found.absent) throw EnvironmentError(cat(printable(source), ": there is no checkpoint"));
  const CheckpointReader reader(found.directory);

  CheckpointContent content;
  content.iteration = reader.iteration();
  content.model = reader.model();
  content.training = reader.training();
  content.tokenizer_digest = reader.tokenizer_digest();
  for (const char* name : {kCarriedVocab, kCarriedMerges}) {
    std::string bytes = reader.file(name);
    if (!bytes.empty()) content.files[name] = std::move(bytes);
  }
  std::vector<std::vector<std::byte>> values;
  values.reserve(reader.tensors().size());
  for (const auto& [name, info] : reader.tensors()) {
    const std::size_t bytes =
        static_cast<std::size_t>(element_count(info.shape)) * dtype_size(info.dtype);
    auto& data = values.emplace_back(bytes);
    const Shape origin(info.shape.size(), 0);
    reader.read(name, info.shape, origin, info.shape, info.dtype, data.data());
    if (const Digest128 digest =
            tensor_digest(data.data(), info.dtype, info.shape, origin, info.shape);
        digest != info.digest) {
      throw DataError(cat(reader.directory(), ": tensor ", name, ": its digest is ", to_hex(digest),
                          ", the manifest says ", to_hex(info.digest)));
    }
    (info.optimizer ? content.optimizer : content.weights)
        .push_back({name, info.shape, origin, info.shape, info.dtype, data.data()});
  }
  if (weights) store_weights_as(content, *weights, values);
  save_checkpoint(destination, content, world, replace);
  log_info(cat(printable(reader.directory()), ": ",
               content.weights.size() + content.optimizer.size(), " tensors of iteration ",
               reader.iteration(), " written to ", printable(destination)));
}

}  // namespace mt
