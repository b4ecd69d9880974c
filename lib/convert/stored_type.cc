#include "convert/stored_type.h"

#include "base/error.h"
#include "base/log.h"
#include "base/small_floats.h"
#include "tensor/parameter.h"

namespace mt {

void store_weights_as(CheckpointContent& content, DType type,
                      std::vector<std::vector<std::byte>>& keep) {
  for (Box& box : content.weights) {
    if (box.dtype == type) continue;
    if (box.dtype != DType::kF32 && box.dtype != DType::kBf16 && box.dtype != DType::kF16) {
      throw DataError(cat("tensor ", printable(box.name), ": expected f32, bf16 or f16, found ",
                          dtype_name(box.dtype)));
    }
    const auto count = static_cast<std::size_t>(element_count(box.extent));
    check_fits(box.name, box.data, box.dtype, type, count);
    auto& values = keep.emplace_back(count * dtype_size(type));
    convert_floats(box.data, box.dtype, values.data(), type, count);
    box.dtype = type;
    box.data = values.data();
  }
  if (type == DType::kF32 || (content.optimizer.empty() && content.training.is_null())) return;
  content.optimizer.clear();
  content.training = Json();
  log_info(cat(dtype_name(type),
               " holds weights only: the optimizer's tensors and the state of training are left "
               "out"));
}

}  // namespace mt
