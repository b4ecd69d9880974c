#include "nn/gradient_parts.h"

#include <utility>

#include "base/error.h"
#include "tensor/ops.h"

namespace mt {

GradientParts::GradientParts(std::vector<Tensor> gradients, int parts)
    : gradients_(std::move(gradients)), parts_(parts) {
  MT_ASSERT(parts > 0 && (parts & (parts - 1)) == 0);
  for (int held = parts / 2; held > 0; held /= 2) {
    levels_.emplace_back();
    for (const Tensor& gradient : gradients_) {
      levels_.back().emplace_back(gradient.pool(), gradient.shape(), DType::kF32,
                                  MemoryKind::kGradients);
    }
  }
}

void GradientParts::close() {
  std::size_t level = 0;
  for (int before = closed_; before % 2 != 0; before /= 2) ++level;
  closed_ = (closed_ + 1) % parts_;
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    for (std::size_t below = 0; below < level; ++below) add(levels_[below][i], gradients_[i]);
    if (closed_ == 0) continue;
    copy(gradients_[i], levels_[level][i]);
    gradients_[i].fill_zero();
  }
}

}  // namespace mt
