#include "ckpt/reshard.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/small_floats.h"
#include "base/threads.h"
#include "ckpt/pending_save.h"
#include "ckpt/tensor_stream.h"

namespace mt {
namespace {

constexpr std::uint64_t kLargestBand = std::uint64_t{4} << 20;  // bytes: more is no faster
constexpr std::uint64_t kSmallestBand = std::uint64_t{64} << 10;
constexpr std::uint64_t kPiece = std::uint64_t{256}
                                 << 10;   // bytes hashed and written while in cache
constexpr std::size_t kOtherFiles = 256;  // open beside those written

// A box that is being written.
struct Target {
  BoxFile* file;
  std::size_t index;
};

// Copies one tensor into its boxes.
class TensorCopy {
 public:
  TensorCopy(const TensorSource& from, const std::string& name, std::uint64_t band)
      : name_(name), tensor_(from.tensors().at(name)), stream_(from.rows(name, band)) {}

  // The digest of what was written.
  Digest128 run(const std::vector<Target>& targets, const std::function<void(std::uint64_t)>& told);

 private:
  void convert(const RowStream::Band& band, DType type);
  void write(const Target& target, const RowStream::Band& band, const std::byte* data, DType type);

  std::string name_;
  const TensorSource::TensorInfo& tensor_;
  std::unique_ptr<RowStream> stream_;
  std::vector<std::byte> converted_, piece_;
};

void TensorCopy::convert(const RowStream::Band& band, DType type) {
  const DType stored = tensor_.dtype;
  const std::size_t count = band.bytes / dtype_size(stored);
  if (const std::size_t at = first_beyond(band.data, stored, type, count); at != count) {
    float x = 0;
    convert_floats(band.data + at * dtype_size(stored), stored, &x, DType::kF32, 1);
    const std::size_t before =
        static_cast<std::size_t>(band.first) * (count / static_cast<std::size_t>(band.rows));
    throw DataError(cat("tensor ", printable(name_), ": element ", before + at, " is ", x,
                        ", beyond the largest number of ", dtype_name(type)));
  }
  converted_.resize(count * dtype_size(type));
  convert_floats(band.data, stored, converted_.data(), type, count);
}

void TensorCopy::write(const Target& target, const RowStream::Band& band, const std::byte* data,
                       DType type) {
  const BoxPlace& place = target.file->boxes()[target.index];
  const RowShape box(place.extent), whole(place.global_shape);
  const std::int64_t row = place.offset.empty() ? 0 : place.offset[0];
  const std::int64_t from = std::max(band.first, row);
  const std::int64_t to = std::min(band.first + band.rows, row + box.rows);
  if (from >= to) return;
  const std::size_t element = dtype_size(type);
  const std::uint64_t row_bytes = checked_bytes(whole.rest, type, name_);
  const std::uint64_t box_bytes = checked_bytes(box.rest, type, name_);
  const std::byte* const source = data + static_cast<std::size_t>(from - band.first) * row_bytes;
  const auto rows = static_cast<std::uint64_t>(to - from);
  if (box_bytes == row_bytes) {
    for (std::uint64_t at = 0; at < rows * row_bytes; at += kPiece) {
      target.file->append(target.index, source + at, std::min(kPiece, rows * row_bytes - at));
    }
    return;
  }
  if (box_bytes == 0) return;
  const Shape offset(place.offset.begin() + 1, place.offset.end());
  const std::uint64_t most = std::max<std::uint64_t>(1, kPiece / box_bytes);
  piece_.resize(std::max<std::size_t>(piece_.size(), std::min(most, rows) * box_bytes));
  for (std::uint64_t done = 0; done < rows; done += most) {
    const std::uint64_t count = std::min(most, rows - done);
    for (std::uint64_t r = 0; r < count; ++r) {
      copy_row_to_box(whole.rest, offset, box.rest, element, source + (done + r) * row_bytes,
                      piece_.data() + r * box_bytes);
    }
    target.file->append(target.index, piece_.data(), count * box_bytes);
  }
}

Digest128 TensorCopy::run(const std::vector<Target>& targets,
                          const std::function<void(std::uint64_t)>& told) {
  const BoxPlace& first = targets.front().file->boxes()[targets.front().index];
  MT_ASSERT(first.global_shape == tensor_.shape);
  const DType type = first.dtype;
  BoxDigest digest(type, tensor_.shape, Shape(tensor_.shape.size(), 0), tensor_.shape);
  RowStream::Band band;
  while (stream_->next(band)) {
    const std::byte* data = band.data;
    if (type != tensor_.dtype) {
      convert(band, type);
      data = converted_.data();
      digest.update(data, converted_.size());
    }
    for (const Target& target : targets) write(target, band, data, type);
    told(band.bytes);
  }
  return type == tensor_.dtype ? stream_->digest() : digest.digest();
}

// All files, laid out.
std::vector<std::unique_ptr<BoxFile>> lay_out(const std::string& folder, std::int64_t iteration,
                                              const ReshardFiles& files) {
  allow_open_files(files.size() + kOtherFiles);
  std::vector<std::unique_ptr<BoxFile>> out;
  for (const auto& [name, places] : files) {
    out.push_back(std::make_unique<BoxFile>(folder, name, iteration, places));
  }
  return out;
}

// Synchronises all files, several at once.
void finish(const std::vector<std::unique_ptr<BoxFile>>& files, Manifest& manifest) {
  std::vector<Manifest> parts(files.size());
  run_parts_or_throw(static_cast<std::int64_t>(files.size()), threads(), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    files[at]->finish(parts[at]);
  });
  for (Manifest& part : parts) manifest.merge(std::move(part));
}

}  // namespace

std::uint64_t band_bytes(std::uint64_t most_memory) {
  // A band, the same in another type, and pieces of both.
  const std::uint64_t each = most_memory / static_cast<std::uint64_t>(threads());
  return std::clamp(each / 4, kSmallestBand, kLargestBand);
}

void for_each_tensor(const TensorSource& source, std::vector<std::string> names,
                     const std::function<void(const std::string&)>& body) {
  const auto bytes = [&](const std::string& name) {
    const auto& info = source.tensors().at(name);
    return checked_bytes(info.shape, info.dtype, name);
  };
  std::stable_sort(names.begin(), names.end(),
                   [&](const std::string& a, const std::string& b) { return bytes(a) > bytes(b); });
  run_parts_or_throw(static_cast<std::int64_t>(names.size()), threads(),
                     [&](std::int64_t i) { body(names[static_cast<std::size_t>(i)]); });
}

void reshard(const TensorSource& from, const std::string& to, const ReshardFiles& files,
             const CheckpointContent& content, const ReshardSettings& settings) {
  const auto world = make_single_communicator();
  PendingSave save(to, *world, settings.replace);
  const auto written = lay_out(save.folder(), content.iteration, files);
  std::map<std::string, std::vector<Target>> targets;
  for (const auto& file : written) {
    for (std::size_t i = 0; i < file->boxes().size(); ++i) {
      targets[file->boxes()[i].name].push_back({file.get(), i});
    }
  }
  std::map<std::string, Digest128> digests;
  std::vector<std::string> names;
  for (const auto& [name, boxes] : targets) {
    names.push_back(name);
    digests[name] = {};
  }
  std::mutex telling;
  const auto told = [&](std::uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(telling);
    if (settings.progress) settings.progress(bytes);
  };
  for_each_tensor(from, names, [&](const std::string& name) {
    digests.at(name) =
        TensorCopy(from, name, band_bytes(settings.most_memory)).run(targets.at(name), told);
  });
  finish(written, save.written());
  for (const auto& [name, digest] : digests) save.written().tensors.at(name).digest = digest;
  save.commit(content);
}

}  // namespace mt
