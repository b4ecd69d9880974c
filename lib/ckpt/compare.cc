#include "ckpt/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/small_floats.h"
#include "base/threads.h"
#include "ckpt/manifest.h"
#include "ckpt/stored_file.h"

namespace mt {
namespace {

constexpr std::uint64_t kBand = std::uint64_t{1} << 20;  // bytes a thread reads at a time

// `told`, one thread at a time.
class Telling {
 public:
  explicit Telling(const BytesRead& told) : told_(told) {}
  void operator()(std::uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (told_) told_(bytes);
  }

 private:
  std::mutex mutex_;
  const BytesRead& told_;
};

std::vector<std::string> names_of(const TensorSource& reader) {
  std::vector<std::string> names;
  for (const auto& [name, info] : reader.tensors()) names.push_back(name);
  return names;
}

double number_at(const std::byte* data, DType type, std::size_t i) {
  const std::byte* const at = data + i * dtype_size(type);
  float x = 0;
  std::int32_t whole = 0;
  std::uint16_t half = 0;
  switch (type) {
    case DType::kI32:
      std::memcpy(&whole, at, sizeof whole);
      return whole;
    case DType::kU16:
      std::memcpy(&half, at, sizeof half);
      return half;
    case DType::kU8:
      return std::to_integer<int>(*at);
    default:
      convert_floats(at, type, &x, DType::kF32, 1);
      return x;
  }
}

// Those of a that are compared with b's: where one has no place for the optimizer's, the weights.
std::vector<std::string> compared_names(const TensorSource& a, const TensorSource& b) {
  const bool all = a.may_hold_optimizer() && b.may_hold_optimizer();
  std::vector<std::string> names;
  for (const auto& [name, info] : a.tensors()) {
    if (all || !info.optimizer) names.push_back(name);
  }
  return names;
}

// Reads and verifies all.
std::map<std::string, Digest128> verified_digests(const TensorSource& source,
                                                  const BytesRead& told) {
  Telling tell(told);
  source.check_carried();
  std::map<std::string, Digest128> digests;
  for (const std::string& name : names_of(source)) digests[name] = {};
  for_each_tensor(source, names_of(source), [&](const std::string& name) {
    const auto stream = source.rows(name, kBand);
    RowStream::Band band;
    while (stream->next(band)) tell(band.bytes);
    digests.at(name) = stream->digest();
  });
  return digests;
}

// The same as numbers, for many.
void widen(const std::byte* data, DType type, std::size_t count, std::vector<float>& out) {
  out.resize(count);
  if (type == DType::kF32 || type == DType::kBf16 || type == DType::kF16) {
    convert_floats(data, type, out.data(), DType::kF32, count);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<float>(number_at(data, type, i));
}

// "[3, 17]" of element i.
std::string index_text(const Shape& shape, std::int64_t i) {
  Shape at(shape.size());
  for (std::size_t d = shape.size(); d-- > 0; i /= shape[d]) at[d] = i % shape[d];
  return shape_text(at);
}

// Two tensors of one shape, the same rows of both at a time.
template <typename Body>
void in_step(const TensorSource& a, const TensorSource& b, const std::string& name,
             const Body& body) {
  const Shape& shape = a.tensors().at(name).shape;
  const RowShape rows(shape);
  const auto elements =
      static_cast<std::uint64_t>(std::max<std::int64_t>(1, element_count(rows.rest)));
  const std::uint64_t band_rows = std::max<std::uint64_t>(1, kBand / 4 / elements);
  const auto bytes = [&](const TensorSource& reader) {
    return band_rows * elements * dtype_size(reader.tensors().at(name).dtype);
  };
  const auto left = a.rows(name, bytes(a)), right = b.rows(name, bytes(b));
  RowStream::Band x, y;
  for (;;) {
    const bool more = left->next(x), also = right->next(y);
    MT_ASSERT(more == also);
    if (!more) return;
    MT_ASSERT(x.first == y.first && x.rows == y.rows);
    body(x, y, static_cast<std::size_t>(x.rows) * elements);
  }
}

std::string place_of_difference(const TensorSource& a, const TensorSource& b,
                                const std::string& name) {
  const auto& info = a.tensors().at(name);
  const std::size_t element = dtype_size(info.dtype);
  std::string text;
  std::int64_t before = 0;
  in_step(a, b, name, [&](const auto& x, const auto& y, std::size_t count) {
    if (text.empty() && std::memcmp(x.data, y.data, x.bytes) != 0) {
      const auto first = std::mismatch(x.data, x.data + x.bytes, y.data).first;
      const auto at = static_cast<std::size_t>(first - x.data) / element;
      TextStream out;
      out.precision(9);
      out << "tensor " << name << ": element "
          << index_text(info.shape, before + static_cast<std::int64_t>(at)) << ": "
          << number_at(x.data, info.dtype, at) << " and " << number_at(y.data, info.dtype, at);
      text = out.str();
    }
    before += static_cast<std::int64_t>(count);
  });
  MT_ASSERT(!text.empty());  // digests differ, so numbers do
  return text;
}

void verify_box(const CheckpointReader& reader, const std::string& tensor, const StoredBox& box) {
  constexpr std::size_t kPiece = std::size_t{128} << 10;  // read and hashed while in cache
  std::array<std::byte, kPiece> piece;                    // not a vector: nothing is set to zero
  const FileDescriptor file = reader.open(box.file);
  const std::string path = reader.directory() + "/" + box.file;
  StreamHash hash;
  for (std::uint64_t at = 0; at < box.bytes; at += kPiece) {
    const std::size_t bytes = std::min<std::uint64_t>(kPiece, box.bytes - at);
    read_fully_at(file.get(), piece.data(), bytes, box.byte_offset + at, path);
    hash.update(piece.data(), bytes);
  }
  check_box(path, tensor, box, hash.digest());
}

}  // namespace

void verify_hashes(const CheckpointReader& reader, const BytesRead& told) {
  Telling tell(told);
  reader.check_carried();
  struct Part {
    const std::string* tensor;
    const StoredBox* box;
  };
  std::vector<Part> parts;
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    for (const StoredBox& box : tensor.boxes) {
      if (box.bytes > 0) parts.push_back({&name, &box});
    }
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.box->bytes > b.box->bytes; });
  run_parts_or_throw(static_cast<std::int64_t>(parts.size()), threads(), [&](std::int64_t i) {
    const Part& part = parts[static_cast<std::size_t>(i)];
    verify_box(reader, *part.tensor, *part.box);
    tell(part.box->bytes);
  });
}

std::map<std::string, TensorNorm> tensor_norms(const TensorSource& reader, const BytesRead& told) {
  Telling tell(told);
  std::map<std::string, TensorNorm> norms;
  for (const auto& [name, info] : reader.tensors()) norms[name] = {};
  for_each_tensor(reader, names_of(reader), [&](const std::string& name) {
    const auto stream = reader.rows(name, kBand);
    const DType type = reader.tensors().at(name).dtype;
    RowStream::Band band;
    std::vector<float> numbers;
    double sum = 0;
    while (stream->next(band)) {
      widen(band.data, type, band.bytes / dtype_size(type), numbers);
      for (const float x : numbers) sum += static_cast<double>(x) * x;
      tell(band.bytes);
    }
    norms.at(name) = {std::sqrt(sum), stream->digest()};
  });
  return norms;
}

std::optional<std::string> first_difference(const TensorSource& a, const TensorSource& b,
                                            const BytesRead& told) {
  const auto left = verified_digests(a, told), right = verified_digests(b, told);
  std::vector<std::string> names = compared_names(a, b);
  for (const std::string& name : compared_names(b, a)) {
    if (!a.tensors().contains(name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const auto x = a.tensors().find(name), y = b.tensors().find(name);
    if (x == a.tensors().end() || y == b.tensors().end()) {
      return cat("tensor ", name, ": only in ",
                 x == a.tensors().end() ? b.directory() : a.directory());
    }
    const auto &p = x->second, &q = y->second;
    if (p.shape != q.shape || p.dtype != q.dtype || p.optimizer != q.optimizer) {
      const auto kind = [](const auto& info) {
        return cat(dtype_name(info.dtype), " ", shape_text(info.shape),
                   info.optimizer ? " of the optimizer" : "");
      };
      return cat("tensor ", name, ": ", kind(p), " and ", kind(q));
    }
    if (left.at(name) != right.at(name)) return place_of_difference(a, b, name);
  }
  return std::nullopt;
}

bool Differences::any() const {
  return !only_a.empty() || !only_b.empty() || !other_shape.empty() ||
         std::any_of(tensors.begin(), tensors.end(),
                     [](const TensorDifference& each) { return each.count > 0; });
}

namespace {

TensorDifference difference_of(const TensorSource& a, const TensorSource& b,
                               const std::string& name, Telling& tell) {
  const DType p = a.tensors().at(name).dtype, q = b.tensors().at(name).dtype;
  TensorDifference out{.name = name};
  double sum = 0, sum_a = 0;
  std::vector<float> left, right;
  in_step(a, b, name, [&](const auto& x, const auto& y, std::size_t count) {
    widen(x.data, p, count, left);
    widen(y.data, q, count, right);
    for (std::size_t i = 0; i < count; ++i) {
      const double difference = static_cast<double>(left[i]) - right[i];
      sum += difference * difference;
      sum_a += static_cast<double>(left[i]) * left[i];
      // Not a number stays.
      if (!(std::abs(difference) <= out.largest)) out.largest = std::abs(difference);
      const std::size_t size = dtype_size(p);
      const bool other = p == q ? std::memcmp(x.data + i * size, y.data + i * size, size) != 0
                                : left[i] != right[i];
      out.count += other ? 1 : 0;
    }
    tell(x.bytes + y.bytes);
  });
  out.norm = std::sqrt(sum);
  out.norm_a = std::sqrt(sum_a);
  return out;
}

}  // namespace

Differences differences(const TensorSource& a, const TensorSource& b, const BytesRead& told) {
  Differences out;
  std::vector<std::string> names;
  for (const std::string& name : compared_names(a, b)) {
    const auto other = b.tensors().find(name);
    if (other == b.tensors().end()) {
      out.only_a.push_back(name);
    } else if (other->second.shape != a.tensors().at(name).shape) {
      out.other_shape.push_back(name);
    } else {
      names.push_back(name);
    }
  }
  for (const std::string& name : compared_names(b, a)) {
    if (!a.tensors().contains(name)) out.only_b.push_back(name);
  }
  Telling tell(told);
  std::mutex mutex;
  for_each_tensor(a, names, [&](const std::string& name) {
    TensorDifference found = difference_of(a, b, name, tell);
    const std::lock_guard<std::mutex> lock(mutex);
    out.tensors.push_back(std::move(found));
  });
  std::sort(out.tensors.begin(), out.tensors.end(), [](const auto& x, const auto& y) {
    const bool nan_x = std::isnan(x.norm), nan_y = std::isnan(y.norm);
    if (nan_x != nan_y) return nan_x;
    if (!nan_x && x.norm != y.norm) return x.norm > y.norm;
    return x.name < y.name;
  });
  return out;
}

}  // namespace mt
