#include "convert/foreign_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/small_floats.h"
#include "ckpt/manifest.h"
#include "ckpt/tensor_stream.h"

namespace mt {
namespace {

constexpr std::int64_t kTile = 16;  // rows and columns: both sides of a tile stay in the cache
constexpr std::size_t kOtherFiles = 256;  // open beside those read

// [columns, rows] of `from` as [rows, columns].
template <typename T>
void transpose(const std::byte* from, std::int64_t rows, std::int64_t columns, std::byte* to) {
  const T* const in = reinterpret_cast<const T*>(from);
  T* const out = reinterpret_cast<T*>(to);
  for (std::int64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (std::int64_t c0 = 0; c0 < columns; c0 += kTile) {
      for (std::int64_t r = r0; r < std::min(r0 + kTile, rows); ++r) {
        for (std::int64_t c = c0; c < std::min(c0 + kTile, columns); ++c) {
          out[r * columns + c] = in[c * rows + r];
        }
      }
    }
  }
}

void turn(std::size_t element, const std::byte* from, std::int64_t rows, std::int64_t columns,
          std::byte* to) {
  if (element == 8) return transpose<std::uint64_t>(from, rows, columns, to);
  if (element == 4) return transpose<std::uint32_t>(from, rows, columns, to);
  transpose<std::uint16_t>(from, rows, columns, to);
}

}  // namespace

class ForeignStream : public RowStream {
 public:
  ForeignStream(const ForeignReader& reader, const ForeignOrigin& origin, std::uint64_t most_bytes)
      : reader_(reader),
        origin_(origin),
        file_(reader.files_.at(origin.file)),
        element_(origin.f64 ? sizeof(double) : dtype_size(origin.type)),
        digest_(origin.type, origin.shape, Shape(origin.shape.size(), 0), origin.shape) {
    const RowShape shape(origin.shape);
    columns_ = element_count(shape.rest);
    all_rows_ = shape.rows;
    rows_ = columns_ == 0 ? 0 : shape.rows;
    if (rows_ == 0) return;
    const std::uint64_t row_bytes = checked_bytes(shape.rest, origin.type, origin.ours);
    const auto fitting = [&](std::uint64_t bytes, std::uint64_t row) {
      return std::clamp<std::int64_t>(static_cast<std::int64_t>(bytes / row), 1, rows_);
    };
    band_rows_ = fitting(most_bytes, row_bytes);
    // Whole bands, so that these do not depend on it.
    const std::uint64_t wide = static_cast<std::uint64_t>(columns_) * element_;
    turned_rows_ =
        std::max<std::int64_t>(1, fitting(reader.settings_.most_turned / 2, wide) / band_rows_) *
        band_rows_;
  }

  [[nodiscard]] bool next(Band& band) override {
    if (next_ >= rows_) return false;
    const std::int64_t count = std::min(band_rows_, rows_ - next_);
    const std::byte* data = origin_.transposed ? turned(count) : straight(count);
    const auto elements = static_cast<std::size_t>(count * columns_);
    if (origin_.f64) data = narrowed(data, elements);
    if (reader_.settings_.finite) check_finite(data, elements);
    band = {next_, count, data, elements * dtype_size(origin_.type)};
    digest_.update(band.data, band.bytes);
    next_ += count;
    return true;
  }
  [[nodiscard]] Digest128 digest() const override { return digest_.digest(); }

 private:
  // `count` elements from element `at` of theirs on.
  void read(std::int64_t at, std::int64_t count, std::byte* to) const {
    read_fully_at(file_.fd.get(), to, static_cast<std::size_t>(count) * element_,
                  origin_.offset + static_cast<std::uint64_t>(at) * element_, file_.path);
  }

  const std::byte* straight(std::int64_t count) {
    raw_.resize(static_cast<std::size_t>(count * columns_) * element_);
    read((origin_.part * all_rows_ + next_) * columns_, count * columns_, raw_.data());
    return raw_.data();
  }

  // Several bands are read and turned at once, for the sake of longer runs.
  const std::byte* turned(std::int64_t count) {
    if (next_ >= turned_end_) {
      turned_first_ = next_;
      turned_end_ = std::min(rows_, next_ + turned_rows_);
      const std::int64_t run = turned_end_ - turned_first_;
      raw_.resize(static_cast<std::size_t>(run * columns_) * element_);
      turned_.resize(raw_.size());
      const std::int64_t stride = origin_.parts * all_rows_;
      const std::int64_t first = origin_.part * all_rows_ + turned_first_;
      if (run == stride) {
        read(0, run * columns_, raw_.data());
      } else {
        for (std::int64_t c = 0; c < columns_; ++c) {
          read(c * stride + first, run, raw_.data() + static_cast<std::size_t>(c * run) * element_);
        }
      }
      turn(element_, raw_.data(), run, columns_, turned_.data());
    }
    MT_ASSERT(next_ + count <= turned_end_);
    return turned_.data() + static_cast<std::size_t>((next_ - turned_first_) * columns_) * element_;
  }

  const std::byte* narrowed(const std::byte* data, std::size_t count) {
    narrow_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      double value = 0;
      std::memcpy(&value, data + i * sizeof value, sizeof value);
      narrow_[i] = static_cast<float>(value);
    }
    return reinterpret_cast<const std::byte*>(narrow_.data());
  }

  void check_finite(const std::byte* data, std::size_t count) const {
    constexpr std::size_t kChunk = 1024;
    float values[kChunk];
    const std::size_t element = dtype_size(origin_.type);
    for (std::size_t at = 0; at < count; at += kChunk) {
      const std::size_t some = std::min(kChunk, count - at);
      convert_floats(data + at * element, origin_.type, values, DType::kF32, some);
      for (std::size_t i = 0; i < some; ++i) {
        if (std::isfinite(values[i])) continue;
        throw DataError(cat(reader_.directory(), ": tensor ", printable(origin_.theirs),
                            ": a value is ", values[i], " (element ",
                            static_cast<std::size_t>(next_ * columns_) + at + i, " of ",
                            origin_.ours, ")"));
      }
    }
  }

  const ForeignReader& reader_;
  const ForeignOrigin& origin_;
  const ForeignReader::File& file_;
  std::size_t element_;  // bytes, as stored
  std::int64_t columns_ = 0, all_rows_ = 0, rows_ = 0, next_ = 0;
  std::int64_t band_rows_ = 1, turned_rows_ = 1, turned_first_ = 0, turned_end_ = 0;
  std::vector<std::byte> raw_, turned_;
  std::vector<float> narrow_;
  BoxDigest digest_;
};

ForeignReader::ForeignReader(std::string directory, Json model,
                             const std::vector<std::string>& files,
                             std::vector<ForeignOrigin> origins, const Settings& settings)
    : directory_(std::move(directory)), model_(std::move(model)), settings_(settings) {
  allow_open_files(files.size() + kOtherFiles);
  for (const std::string& path : files) files_.push_back({path, open_regular(path)});
  for (ForeignOrigin& origin : origins) {
    tensors_[origin.ours] = {origin.shape, origin.type, {}, false};
    std::string name = origin.ours;
    origins_[std::move(name)] = std::move(origin);
  }
}

std::unique_ptr<RowStream> ForeignReader::rows(const std::string& name,
                                               std::uint64_t most_bytes) const {
  const auto found = origins_.find(name);
  if (found == origins_.end()) {
    throw DataError(cat(directory_, ": tensor ", printable(name), ": there is none"));
  }
  return std::make_unique<ForeignStream>(*this, found->second, most_bytes);
}

}  // namespace mt
