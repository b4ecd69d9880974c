#include "convert/compare_formats.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/small_floats.h"
#include "base/threads.h"
#include "ckpt/checkpoint.h"
#include "ckpt/manifest.h"
#include "ckpt/tensor_stream.h"
#include "convert/foreign_view.h"
#include "convert/meter.h"

namespace mt {
namespace {

// Bytes that a thread reads at a time: both sides stay in the cache while they are compared.
constexpr std::uint64_t kBand = std::uint64_t{128} << 10;

// What a path means: a checkpoint or another library's.
class Side {
 public:
  explicit Side(const std::string& path) {
    if (is_foreign(path)) {
      view_ = std::make_unique<ForeignView>(path);
      name_ = printable(path);
      for (const auto& [name, tensor] : view_->tensors()) {
        known_[name] = {tensor.shape, tensor.type, tensor.widened};
      }
      return;
    }
    const FoundCheckpoint found = find_checkpoint(path);
    if (found.absent) throw EnvironmentError(cat(printable(path), ": there is no checkpoint"));
    reader_ = std::make_unique<CheckpointReader>(found.directory);
    name_ = printable(found.directory);
    for (const auto& [name, info] : reader_->tensors()) {
      if (!info.optimizer) known_[name] = {info.shape, info.dtype, false};
    }
  }

  struct Known {
    Shape shape;
    DType type = DType::kF32;
    bool widened = false;
  };
  [[nodiscard]] const std::map<std::string, Known>& tensors() const { return known_; }
  [[nodiscard]] const std::string& name() const { return name_; }

  // A tensor from its first row to its last, `rows` at a time.
  class Rows {
   public:
    Rows(const Side& side, const std::string& name, std::int64_t rows) : rows_(rows) {
      const Known& known = side.known_.at(name);
      const RowShape shape(known.shape);
      left_ = shape.rows;
      row_bytes_ = static_cast<std::uint64_t>(element_count(shape.rest)) * dtype_size(known.type);
      if (side.reader_ != nullptr) {
        stream_ = std::make_unique<TensorStream>(*side.reader_, name,
                                                 static_cast<std::uint64_t>(rows) * row_bytes_);
      } else {
        tensor_ = &side.view_->tensors().at(name);
      }
    }
    bool next(TensorStream::Band& band) {
      if (stream_ != nullptr) return stream_->next(band);
      if (left_ == 0) return false;
      const std::int64_t rows = std::min(rows_, left_);
      bytes_.resize(static_cast<std::uint64_t>(rows) * row_bytes_);
      ForeignView::read_rows(*tensor_, first_, rows, bytes_.data());
      band = {first_, rows, bytes_.data(), bytes_.size()};
      first_ += rows;
      left_ -= rows;
      return true;
    }

   private:
    std::int64_t rows_, left_ = 0, first_ = 0;
    std::uint64_t row_bytes_ = 0;
    std::unique_ptr<TensorStream> stream_;
    const ForeignView::Tensor* tensor_ = nullptr;
    std::vector<std::byte> bytes_;
  };

 private:
  std::string name_;
  std::unique_ptr<ForeignView> view_;
  std::unique_ptr<CheckpointReader> reader_;
  std::map<std::string, Known> known_;
};

bool is_narrow(DType type) {
  return type == DType::kBf16 || type == DType::kF16;
}

bool comparable(const Side::Known& a, const Side::Known& b) {
  return a.shape == b.shape &&
         (a.type == b.type || (a.widened && is_narrow(b.type)) || (b.widened && is_narrow(a.type)));
}

std::string index_text(const Shape& shape, std::int64_t i) {
  Shape at(shape.size());
  for (std::size_t d = shape.size(); d-- > 0; i /= shape[d]) at[d] = i % shape[d];
  return shape_text(at);
}

class Pair {
 public:
  Pair(const Side& a, const Side& b) : a_(a), b_(b), meter_("reading", bytes(a) + bytes(b), {}) {}

  // What is different in a tensor that both have; all of it is read.
  std::string tensor(const std::string& name) {
    const Side::Known &p = a_.tensors().at(name), &q = b_.tensors().at(name);
    if (!comparable(p, q)) {
      const auto kind = [](const Side::Known& known) {
        return cat(dtype_name(known.type), " ", shape_text(known.shape));
      };
      return cat("tensor ", name, ": ", kind(p), " and ", kind(q));
    }
    const auto elements = static_cast<std::uint64_t>(
        std::max<std::int64_t>(1, element_count(RowShape(p.shape).rest)));
    const auto rows = static_cast<std::int64_t>(std::max<std::uint64_t>(1, kBand / 4 / elements));
    Side::Rows left(a_, name, rows), right(b_, name, rows);
    TensorStream::Band x, y;
    std::string text;
    for (std::int64_t before = 0;;) {
      const bool more = left.next(x), also = right.next(y);
      MT_ASSERT(more == also);
      if (!more) return text;
      MT_ASSERT(x.first == y.first && x.rows == y.rows);
      const std::size_t count = static_cast<std::size_t>(x.rows) * elements;
      if (text.empty()) text = band(name, p, q, x.data, y.data, count, before);
      before += static_cast<std::int64_t>(count);
      tell(x.bytes + y.bytes);
    }
  }
  [[nodiscard]] std::uint64_t read() const { return meter_.done(); }

 private:
  static std::string band(const std::string& name, const Side::Known& p, const Side::Known& q,
                          const std::byte* x, const std::byte* y, std::size_t count,
                          std::int64_t before) {
    std::vector<float> wide_x, wide_y;
    DType type = p.type;
    if (p.type != q.type) {
      wide_x.resize(count);
      wide_y.resize(count);
      convert_floats(x, p.type, wide_x.data(), DType::kF32, count);
      convert_floats(y, q.type, wide_y.data(), DType::kF32, count);
      x = reinterpret_cast<const std::byte*>(wide_x.data());
      y = reinterpret_cast<const std::byte*>(wide_y.data());
      type = DType::kF32;
    }
    const std::size_t bytes = count * dtype_size(type);
    if (std::memcmp(x, y, bytes) == 0) return "";
    const auto at =
        static_cast<std::size_t>(std::mismatch(x, x + bytes, y).first - x) / dtype_size(type);
    float v = 0, w = 0;
    convert_floats(x + at * dtype_size(type), type, &v, DType::kF32, 1);
    convert_floats(y + at * dtype_size(type), type, &w, DType::kF32, 1);
    TextStream out;
    out.precision(9);
    out << "tensor " << name << ": element "
        << index_text(p.shape, before + static_cast<std::int64_t>(at)) << ": " << v << " and " << w;
    return out.str();
  }

  void tell(std::uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    meter_.add(bytes);
  }

  static std::uint64_t bytes(const Side& side) {
    std::uint64_t sum = 0;
    for (const auto& [name, known] : side.tensors()) {
      sum += checked_bytes(known.shape, known.type, name);
    }
    return sum;
  }

  const Side &a_, &b_;
  std::mutex mutex_;
  Meter meter_;
};

}  // namespace

Compared compare_formats(const std::string& a, const std::string& b) {
  const Side left(a), right(b);
  std::set<std::string> all;
  for (const Side* side : {&left, &right}) {
    for (const auto& [name, known] : side->tensors()) all.insert(name);
  }
  const std::vector<std::string> names(all.begin(), all.end());
  std::vector<std::string> found(names.size());
  Pair pair(left, right);
  run_parts_or_throw(static_cast<std::int64_t>(names.size()), threads(), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    const std::string& name = names[at];
    const bool in_left = left.tensors().contains(name), in_right = right.tensors().contains(name);
    found[at] = in_left && in_right
                    ? pair.tensor(name)
                    : cat("tensor ", name, ": only in ", in_left ? left.name() : right.name());
  });
  Compared out{.difference = std::nullopt, .tensors = names.size(), .bytes = pair.read()};
  const auto first = std::find_if(found.begin(), found.end(),
                                  [](const std::string& text) { return !text.empty(); });
  if (first != found.end()) out.difference = *first;
  return out;
}

}  // namespace mt
