#include "nn/row_gradient.h"

#include <algorithm>

#include "tensor/ops.h"

namespace mt {

RowGradient::RowGradient(OwnedRange range, std::int64_t hidden, Pool& pool)
    : range_(range),
      hidden_(hidden),
      pool_(&pool),
      place_(static_cast<std::size_t>(range.size()), -1) {}

void RowGradient::reserve(std::int64_t tokens) {
  const std::int64_t capacity = std::min(tokens, range_.size());
  if (rows_.defined() && rows_.dim(0) >= capacity) return;
  const Tensor larger =
      Tensor::zero(*pool_, {capacity, hidden_}, DType::kF32, MemoryKind::kGradients);
  if (rows_.defined()) copy(rows_, larger.rows(0, rows_.dim(0)));
  rows_ = larger;
  held_.reserve(static_cast<std::size_t>(capacity));
}

Tensor RowGradient::places(const Tensor& tokens) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens.size()));
  copy_to_host(tokens, ids.data());
  reserve(static_cast<std::int64_t>(held_.size()) + tokens.size());
  for (std::int32_t& id : ids) {
    const std::int64_t row = id - range_.begin;
    if (row < 0 || row >= range_.size()) {
      id = -1;
      continue;
    }
    std::int32_t& place = place_[static_cast<std::size_t>(row)];
    if (place < 0) {
      place = static_cast<std::int32_t>(held_.size());
      held_.push_back(static_cast<std::int32_t>(row));
    }
    id = place;
  }
  return upload(*pool_, ids.data(), tokens.shape(), DType::kI32, MemoryKind::kWorkspace);
}

void RowGradient::add_to(const Tensor& gradient) {
  if (held_.empty()) return;
  const auto count = static_cast<std::int64_t>(held_.size());
  const Tensor used = rows_.rows(0, count);
  embedding_backward(upload(*pool_, held_.data(), {count}, DType::kI32, MemoryKind::kWorkspace), {},
                     used, 0, gradient, {});
  used.fill_zero();
  for (const std::int32_t row : held_) place_[static_cast<std::size_t>(row)] = -1;
  held_.clear();
}

}  // namespace mt
