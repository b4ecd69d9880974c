#include "base/hash.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "base/digest_run.h"
#include "base/error.h"
#include "base/threads.h"

namespace mt {

namespace {

using Wide = DigestSum;

Wide wide(const Digest128& digest) {
  return Wide{digest.high} << 64 | digest.low;
}

Digest128 narrow(Wide value) {
  return {static_cast<std::uint64_t>(value), static_cast<std::uint64_t>(value >> 64)};
}

// A box as runs of elements with consecutive global indices: dims that are whole join the run.
struct Runs {
  std::int64_t count = 1, length = 1;
  std::vector<std::int64_t> extent, stride;  // of the outer dims
  std::int64_t first = 0;                    // global index of the first element
};

Runs find_runs(std::span<const std::int64_t> shape, std::span<const std::int64_t> offset,
               std::span<const std::int64_t> extent) {
  MT_ASSERT(shape.size() == offset.size() && shape.size() == extent.size());
  Runs runs;
  std::int64_t stride = 1;
  bool whole = true;
  for (std::size_t d = shape.size(); d-- > 0;) {
    MT_ASSERT(offset[d] >= 0 && extent[d] >= 0 && extent[d] <= shape[d] &&
              offset[d] <= shape[d] - extent[d]);
    runs.first += offset[d] * stride;
    if (whole) {
      runs.length *= extent[d];
    } else {
      runs.count *= extent[d];
      runs.extent.insert(runs.extent.begin(), extent[d]);
      runs.stride.insert(runs.stride.begin(), stride);
    }
    whole = whole && extent[d] == shape[d];
    MT_ASSERT(!__builtin_mul_overflow(stride, std::max<std::int64_t>(shape[d], 1), &stride));
  }
  return runs;
}

std::int64_t run_start(const Runs& runs, std::int64_t run) {
  std::int64_t index = runs.first;
  for (std::size_t d = runs.extent.size(); d-- > 0;) {
    index += run % runs.extent[d] * runs.stride[d];
    run /= runs.extent[d];
  }
  return index;
}

template <typename Bits>
Wide digest_box(const void* data, const Runs& runs) {
  constexpr std::int64_t kPiece = 1 << 16;  // elements; one thread's unit of work in a long run
  if (runs.length == 0 || runs.count == 0) {
    return 0;
  }
  // A part is a piece of one long run, or several short runs.
  const std::int64_t pieces = (runs.length + kPiece - 1) / kPiece;
  const std::int64_t runs_of_part = kPiece / (runs.length + 1) + 1;
  const std::int64_t groups = (runs.count + runs_of_part - 1) / runs_of_part;
  const auto* const bytes = static_cast<const std::byte*>(data);
  Wide total = 0;
  std::mutex adding;
  const auto add_part = [&](std::int64_t part) {
    const std::int64_t at = part % pieces * kPiece;
    const std::int64_t first = part / pieces * runs_of_part;
    Wide sum = 0;
    for (std::int64_t run = first; run < std::min(first + runs_of_part, runs.count); ++run) {
      sum += digest_run<Bits>(
          bytes + (run * runs.length + at) * static_cast<std::int64_t>(sizeof(Bits)),
          std::min(kPiece, runs.length - at),
          static_cast<std::uint64_t>(run_start(runs, run) + at));
    }
    const std::lock_guard<std::mutex> lock(adding);
    total += sum;
  };
  run_parts(
      groups * pieces, threads(),
      [](const void* context, std::int64_t part, int) {
        (*static_cast<const decltype(add_part)*>(context))(part);
      },
      &add_part);
  return total;
}

// The library chooses its vectors at the first long input, and without a lock.
void choose_vectors() {
  static const bool chosen = [] {
    const std::vector<char> input(1024);
    static_cast<void>(XXH3_128bits(input.data(), input.size()));
    return true;
  }();
  static_cast<void>(chosen);
}

}  // namespace

std::string to_hex(const Digest128& digest) {
  const char* const digits = "0123456789abcdef";
  std::string text;
  for (const std::uint64_t word : {digest.high, digest.low}) {
    for (int shift = 60; shift >= 0; shift -= 4) {
      text += digits[word >> shift & 15U];
    }
  }
  return text;
}

Digest128 from_hex(const std::string& text, const std::string& where) {
  const bool right =
      text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!right) {
    throw DataError(cat(where, ": expected a hash of 32 lower-case hexadecimal digits, found \"",
                        text.substr(0, 40), "\""));
  }
  return {std::stoull(text.substr(16), nullptr, 16), std::stoull(text.substr(0, 16), nullptr, 16)};
}

Digest128 xxh3_128(const void* data, std::size_t bytes) {
  choose_vectors();
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return {hash.low64, hash.high64};
}

struct StreamHash::State {
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> xxh{XXH3_createState()};
};

StreamHash::StreamHash() : state_(std::make_unique<State>()) {
  choose_vectors();
  if (state_->xxh == nullptr || XXH3_128bits_reset(state_->xxh.get()) != XXH_OK) {
    throw EnvironmentError("out of memory for a hash");
  }
}
StreamHash::~StreamHash() = default;
StreamHash::StreamHash(StreamHash&&) noexcept = default;
StreamHash& StreamHash::operator=(StreamHash&&) noexcept = default;

void StreamHash::update(const void* data, std::size_t bytes) {
  if (bytes > 0) {
    MT_ASSERT(XXH3_128bits_update(state_->xxh.get(), data, bytes) == XXH_OK);
  }
}

Digest128 StreamHash::digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh.get());
  return {hash.low64, hash.high64};
}

Digest128 tensor_digest(const void* data, DType dtype, std::span<const std::int64_t> global_shape,
                        std::span<const std::int64_t> offset,
                        std::span<const std::int64_t> extent) {
  const Runs runs = find_runs(global_shape, offset, extent);
  switch (dtype_size(dtype)) {
    case 4:
      return narrow(digest_box<std::uint32_t>(data, runs));
    case 2:
      return narrow(digest_box<std::uint16_t>(data, runs));
    default:
      return narrow(digest_box<std::uint8_t>(data, runs));
  }
}

Digest128 operator+(const Digest128& a, const Digest128& b) {
  return narrow(wide(a) + wide(b));
}

struct BoxDigest::State {
  std::size_t element = 0;
  Runs runs;
  std::int64_t at = 0;  // elements of the box that came

  template <typename Bits>
  Wide add(const std::byte* data, std::int64_t count) {
    Wide sum = 0;
    while (count > 0) {
      const std::int64_t run = at / runs.length;
      const std::int64_t inside = at - run * runs.length;
      const std::int64_t length = std::min(count, runs.length - inside);
      sum +=
          digest_run<Bits>(data, length, static_cast<std::uint64_t>(run_start(runs, run) + inside));
      data += length * static_cast<std::int64_t>(sizeof(Bits));
      at += length;
      count -= length;
    }
    return sum;
  }
};

BoxDigest::BoxDigest(DType dtype, std::span<const std::int64_t> global_shape,
                     std::span<const std::int64_t> offset, std::span<const std::int64_t> extent)
    : state_(std::make_unique<State>()) {
  state_->element = dtype_size(dtype);
  state_->runs = find_runs(global_shape, offset, extent);
}
BoxDigest::~BoxDigest() = default;

void BoxDigest::update(const void* data, std::size_t bytes) {
  const auto count = static_cast<std::int64_t>(bytes / state_->element);
  MT_ASSERT(bytes % state_->element == 0 &&
            count <= state_->runs.count * state_->runs.length - state_->at);
  const auto* const from = static_cast<const std::byte*>(data);
  const Wide sum = state_->element == 4   ? state_->add<std::uint32_t>(from, count)
                   : state_->element == 2 ? state_->add<std::uint16_t>(from, count)
                                          : state_->add<std::uint8_t>(from, count);
  sum_ = narrow(wide(sum_) + sum);
}

}  // namespace mt
