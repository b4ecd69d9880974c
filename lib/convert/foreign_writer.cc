#include "convert/foreign_writer.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/commit.h"
#include "base/error.h"
#include "base/log.h"
#include "base/small_floats.h"
#include "base/threads.h"
#include "ckpt/manifest.h"
#include "ckpt/tensor_stream.h"

namespace mt {
namespace {

constexpr std::uint64_t kMostTogether = std::uint64_t{256} << 20;  // bytes of a target
constexpr std::uint64_t kBand = std::uint64_t{4} << 20;
constexpr std::uint64_t kLeastBand = std::uint64_t{1} << 10;
constexpr std::int64_t kTile = 16;  // rows and columns: both sides of a tile stay in the cache

template <typename T>
void transpose(const std::byte* from, std::int64_t rows, std::int64_t columns, std::byte* to,
               std::int64_t stride) {
  const T* const in = reinterpret_cast<const T*>(from);
  T* const out = reinterpret_cast<T*>(to);
  for (std::int64_t c0 = 0; c0 < columns; c0 += kTile) {
    for (std::int64_t r0 = 0; r0 < rows; r0 += kTile) {
      for (std::int64_t c = c0; c < std::min(c0 + kTile, columns); ++c) {
        for (std::int64_t r = r0; r < std::min(r0 + kTile, rows); ++r) {
          out[c * stride + r] = in[r * columns + c];
        }
      }
    }
  }
}

class TargetWriter {
 public:
  TargetWriter(const CheckpointReader& from, const ForeignTarget& target, const ForeignFile& file,
               std::uint64_t share, const BytesRead& told)
      : from_(from),
        target_(target),
        file_(file),
        told_(told),
        element_(dtype_size(target.type)),
        // The rest is for a band as it is stored and as it is written.
        most_(std::min(share / 2, kMostTogether)),
        band_(std::clamp(share / 8, kLeastBand, kBand)) {}

  void run() {
    std::uint64_t bytes = 0;
    for (const ForeignPart& part : target_.parts) {
      const auto& info = from_.tensors().at(part.ours);
      bytes += checked_bytes(info.shape, target_.type, part.ours);
    }
    if (bytes <= most_) together_.resize(bytes);
    for (const ForeignPart& part : target_.parts) write(part);
    if (!together_.empty()) {
      write_fully_at(file_.fd, together_.data(), together_.size(), target_.offset, file_.path);
      start_writing_back(file_.fd, target_.offset, together_.size());
    }
  }

 private:
  void write(const ForeignPart& part) {
    TensorStream stream(from_, part.ours, band_);
    const Shape& shape = stream.tensor().shape;
    const RowShape all(shape);
    const std::int64_t columns = element_count(all.rest);
    TensorStream::Band band;
    while (stream.next(band)) {
      const std::byte* const data = convert(part, stream.tensor().dtype, band);
      if (part.transposed) {
        put_transposed(part, all.rows, columns, band, data);
      } else {
        const std::int64_t row = part.part * all.rows + band.first;
        put(static_cast<std::uint64_t>(row * columns), data,
            static_cast<std::uint64_t>(band.rows * columns));
      }
      told_(band.bytes);
    }
  }

  const std::byte* convert(const ForeignPart& part, DType stored, const TensorStream::Band& band) {
    if (stored == target_.type) return band.data;
    const std::size_t count = band.bytes / dtype_size(stored);
    if (const std::size_t at = first_beyond(band.data, stored, target_.type, count); at != count) {
      const std::size_t before =
          static_cast<std::size_t>(band.first) * (count / static_cast<std::size_t>(band.rows));
      throw DataError(cat("tensor ", printable(part.ours), ": element ", before + at,
                          " is beyond the largest number of ", dtype_name(target_.type)));
    }
    converted_.resize(count * element_);
    convert_floats(band.data, stored, converted_.data(), target_.type, count);
    return converted_.data();
  }

  // `count` elements from element `at` of the target on.
  void put(std::uint64_t at, const std::byte* data, std::uint64_t count) {
    if (!together_.empty()) {
      std::memcpy(together_.data() + at * element_, data, count * element_);
    } else {
      write_fully_at(file_.fd, data, count * element_, target_.offset + at * element_, file_.path);
    }
  }

  // The band's rows become columns: a short run in each row of theirs.
  void put_transposed(const ForeignPart& part, std::int64_t rows, std::int64_t columns,
                      const TensorStream::Band& band, const std::byte* data) {
    const std::int64_t stride = part.parts * rows, first = part.part * rows + band.first;
    if (!together_.empty()) {
      turn(data, band.rows, columns, together_.data() + static_cast<std::size_t>(first) * element_,
           stride);
      return;
    }
    turned_.resize(static_cast<std::size_t>(band.rows * columns) * element_);
    turn(data, band.rows, columns, turned_.data(), band.rows);
    const auto run = static_cast<std::uint64_t>(band.rows);
    for (std::int64_t c = 0; c < columns; ++c) {
      put(static_cast<std::uint64_t>(c * stride + first),
          turned_.data() + static_cast<std::uint64_t>(c) * run * element_, run);
    }
  }

  void turn(const std::byte* from, std::int64_t rows, std::int64_t columns, std::byte* to,
            std::int64_t stride) const {
    element_ == 4 ? transpose<std::uint32_t>(from, rows, columns, to, stride)
                  : transpose<std::uint16_t>(from, rows, columns, to, stride);
  }

  const CheckpointReader& from_;
  const ForeignTarget& target_;
  const ForeignFile& file_;
  const BytesRead& told_;
  std::size_t element_;
  std::uint64_t most_, band_;
  std::vector<std::byte> together_, converted_, turned_;
};

}  // namespace

void write_foreign(const CheckpointReader& from, const std::vector<ForeignTarget>& targets,
                   const std::vector<ForeignFile>& files, std::uint64_t most_memory,
                   const BytesRead& told) {
  std::mutex telling;
  const BytesRead one_at_a_time = [&](std::uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(telling);
    if (told) told(bytes);
  };
  const std::uint64_t share = most_memory / static_cast<std::uint64_t>(threads());
  run_parts_or_throw(static_cast<std::int64_t>(targets.size()), threads(), [&](std::int64_t i) {
    const ForeignTarget& target = targets[static_cast<std::size_t>(i)];
    TargetWriter(from, target, files.at(target.file), share, one_at_a_time).run();
  });
}

}  // namespace mt
