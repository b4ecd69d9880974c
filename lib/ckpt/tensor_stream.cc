#include "ckpt/tensor_stream.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "ckpt/stored_file.h"

namespace mt {
namespace {

constexpr std::uint64_t kPiece = std::uint64_t{256} << 10;  // bytes read and hashed while in cache

const StoredTensor& find(const CheckpointReader& reader, const std::string& name) {
  const auto& tensors = reader.manifest().tensors;
  const auto found = tensors.find(name);
  if (found == tensors.end()) {
    throw DataError(cat(reader.directory(), ": tensor ", printable(name), ": there is none"));
  }
  return found->second;
}

// Calls run(place in the whole, place in the box, count) for each run of elements that is
// contiguous in both.
template <typename Run>
void for_each_run(const Shape& whole, const Shape& offset, const Shape& extent, const Run& run) {
  if (whole.empty()) return run(0, 0, 1);
  if (std::find(extent.begin(), extent.end(), 0) != extent.end()) return;
  const std::size_t last = whole.size() - 1;
  Shape at(whole.size(), 0);
  for (std::int64_t in_box = 0;; in_box += extent[last]) {
    std::int64_t in_whole = 0;
    for (std::size_t d = 0; d < whole.size(); ++d) {
      in_whole = in_whole * whole[d] + offset[d] + at[d];
    }
    run(in_whole, in_box, extent[last]);
    std::size_t d = last;
    while (d > 0 && ++at[d - 1] == extent[d - 1]) at[--d] = 0;
    if (d == 0) return;
  }
}

Shape rest_of(const Shape& shape) {
  return shape.empty() ? Shape() : Shape(shape.begin() + 1, shape.end());
}

}  // namespace

RowShape::RowShape(const Shape& shape)
    : rows(shape.empty() ? 1 : shape.front()), rest(rest_of(shape)) {}

void copy_row_of_box(const Shape& whole, const Shape& offset, const Shape& extent,
                     std::size_t element, const std::byte* box, std::byte* row) {
  for_each_run(whole, offset, extent, [&](std::int64_t to, std::int64_t from, std::int64_t count) {
    std::memcpy(row + static_cast<std::size_t>(to) * element,
                box + static_cast<std::size_t>(from) * element,
                static_cast<std::size_t>(count) * element);
  });
}

void copy_row_to_box(const Shape& whole, const Shape& offset, const Shape& extent,
                     std::size_t element, const std::byte* row, std::byte* box) {
  for_each_run(whole, offset, extent, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    std::memcpy(box + static_cast<std::size_t>(to) * element,
                row + static_cast<std::size_t>(from) * element,
                static_cast<std::size_t>(count) * element);
  });
}

TensorStream::TensorStream(const CheckpointReader& reader, const std::string& name,
                           std::uint64_t most_bytes)
    : reader_(reader),
      name_(name),
      tensor_(find(reader, name)),
      rest_(rest_of(tensor_.shape)),
      rows_(RowShape(tensor_.shape).rows),
      band_rows_(1),
      row_bytes_(checked_bytes(rest_, tensor_.dtype, name)),
      digest_(tensor_.dtype, tensor_.shape, Shape(tensor_.shape.size(), 0), tensor_.shape) {
  if (row_bytes_ == 0) rows_ = 0;
  if (rows_ == 0) return;
  band_rows_ =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(most_bytes / row_bytes_), 1, rows_);
  band_.resize(static_cast<std::size_t>(band_rows_) * row_bytes_);
  for (const StoredBox& box : tensor_.boxes) {
    if (box.bytes == 0) continue;
    auto file = files_.find(box.file);
    if (file == files_.end()) file = files_.emplace(box.file, reader.open(box.file)).first;
    const RowShape shape(box.extent);
    sources_.push_back({&box,
                        file->second.get(),
                        box.offset.empty() ? 0 : box.offset[0],
                        shape.rows,
                        box.bytes / static_cast<std::uint64_t>(shape.rows),
                        {}});
  }
}

void TensorStream::read_rows(Source& source, std::int64_t first, std::int64_t end) {
  const StoredBox& box = *source.box;
  const std::string path = reader_.directory() + "/" + box.file;
  const std::size_t element = dtype_size(tensor_.dtype);
  const Shape offset = rest_of(box.offset), extent = rest_of(box.extent);
  const bool whole_rows = source.row_bytes == row_bytes_;
  // Whole rows go straight to their place, in pieces of any length; others row by row.
  std::byte* const place = band_.data() + static_cast<std::size_t>(first - next_) * row_bytes_;
  const std::uint64_t begin =
      box.byte_offset + static_cast<std::uint64_t>(first - source.first) * source.row_bytes;
  const std::uint64_t bytes = static_cast<std::uint64_t>(end - first) * source.row_bytes;
  const std::uint64_t most =
      whole_rows ? kPiece
                 : std::max<std::uint64_t>(1, kPiece / source.row_bytes) * source.row_bytes;
  if (!whole_rows && piece_.size() < std::min(most, bytes)) piece_.resize(std::min(most, bytes));
  for (std::uint64_t at = 0; at < bytes; at += most) {
    const std::uint64_t count = std::min(most, bytes - at);
    std::byte* const to = whole_rows ? place + at : piece_.data();
    read_fully_at(source.fd, to, count, begin + at, path);
    source.hash.update(to, count);
    for (std::uint64_t row = 0; !whole_rows && row < count / source.row_bytes; ++row) {
      copy_row_of_box(rest_, offset, extent, element, to + row * source.row_bytes,
                      place + (at / source.row_bytes + row) * row_bytes_);
    }
  }
}

void TensorStream::check_end() const {
  for (const Source& source : sources_) {
    check_box(reader_.directory() + "/" + source.box->file, name_, *source.box,
              source.hash.digest());
  }
  if (digest_.digest() != tensor_.digest) {
    throw DataError(cat(reader_.directory(), ": tensor ", name_, ": its digest is ",
                        to_hex(digest_.digest()), ", the manifest says ", to_hex(tensor_.digest)));
  }
}

bool TensorStream::next(Band& band) {
  if (next_ >= rows_) {
    check_end();
    return false;
  }
  const std::int64_t end = std::min(rows_, next_ + band_rows_);
  for (Source& source : sources_) {
    const std::int64_t from = std::max(next_, source.first);
    const std::int64_t to = std::min(end, source.first + source.rows);
    if (from < to) read_rows(source, from, to);
  }
  band = {next_, end - next_, band_.data(), static_cast<std::uint64_t>(end - next_) * row_bytes_};
  digest_.update(band.data, band.bytes);
  next_ = end;
  return true;
}

std::unique_ptr<RowStream> CheckpointReader::rows(const std::string& name,
                                                  std::uint64_t most_bytes) const {
  return std::make_unique<TensorStream>(*this, name, most_bytes);
}

}  // namespace mt
