#include "base/small_floats.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace mt {
namespace {

constexpr std::uint32_t kSign = 0x80000000U;
constexpr std::uint32_t kInfinity = 0x7F800000U;

// An element of each type as its bits, from and to f32.
struct F32 {
  using Bits = float;
  static float widen(float x) { return x; }
  static float round(float x) { return x; }
};
struct Bf16 {
  using Bits = std::uint16_t;
  static float widen(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
  // No branch, so that loops are vectorised.
  static std::uint16_t round(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
    const std::uint32_t nan = bits | 0x400000U;  // quiet, and no NaN whose payload is lost
    return static_cast<std::uint16_t>(((bits & ~kSign) > kInfinity ? nan : rounded) >> 16);
  }
};
struct F16 {
  using Bits = std::uint16_t;
  static float widen(std::uint16_t bits) {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    const std::uint32_t exponent = (bits >> 10) & 31U;
    const std::uint32_t mantissa = bits & 0x3FFU;
    if (exponent == 0) {
      const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
      return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
    }
    const std::uint32_t wide = exponent == 31 ? 255 : exponent + 112;
    return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
  }
  static std::uint16_t round(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = (bits & kSign) >> 16;
    const std::uint32_t magnitude = bits & ~kSign;
    std::uint32_t small = 0;
    if (magnitude > kInfinity) {
      small = 0x7E00U;
    } else if (magnitude >= 0x47800000U) {  // 65536; what rounds up to it carries over below
      small = 0x7C00U;
    } else if (magnitude < 0x38800000U) {
      // Below 2^-14: a multiple of 2^-24, to which the sum with 0.5 rounds.
      small = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
    } else {
      small = (magnitude - (112U << 23) + 0xFFFU + ((magnitude >> 13) & 1U)) >> 13;
    }
    return static_cast<std::uint16_t>(sign | small);
  }
};

template <typename From, typename To>
void convert(const std::byte* from, std::byte* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    typename From::Bits in;
    std::memcpy(&in, from + i * sizeof(in), sizeof(in));
    const typename To::Bits out = To::round(From::widen(in));
    std::memcpy(to + i * sizeof(out), &out, sizeof(out));
  }
}

bool finite(float x) {
  return (std::bit_cast<std::uint32_t>(x) & ~kSign) < kInfinity;
}

// Whether any of the elements is finite and becomes infinite; no branch, as above.
template <typename From, typename To>
bool any_beyond(const std::byte* from, std::size_t count) {
  bool any = false;
  for (std::size_t i = 0; i < count; ++i) {
    typename From::Bits in;
    std::memcpy(&in, from + i * sizeof(in), sizeof(in));
    const float x = From::widen(in);
    any |= finite(x) & !finite(To::widen(To::round(x)));
  }
  return any;
}

// f(F32{}), f(Bf16{}) or f(F16{}).
template <typename F>
void with_float_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f(F32{});
    case DType::kBf16:
      return f(Bf16{});
    case DType::kF16:
      return f(F16{});
    default:
      throw UsageError(
          cat("expected elements of type f32, bf16 or f16, found ", dtype_name(dtype)));
  }
}

}  // namespace

std::uint16_t to_bf16(float x) {
  return Bf16::round(x);
}
float from_bf16(std::uint16_t bits) {
  return Bf16::widen(bits);
}
std::uint16_t to_f16(float x) {
  return F16::round(x);
}
float from_f16(std::uint16_t bits) {
  return F16::widen(bits);
}

void convert_floats(const void* from, DType from_type, void* to, DType to_type, std::size_t count) {
  if (count == 0) return;  // an empty buffer may be null
  if (from_type == to_type) {
    std::memmove(to, from, count * dtype_size(to_type));
    return;
  }
  with_float_type(from_type, [&](auto in) {
    with_float_type(to_type, [&](auto out) {
      convert<decltype(in), decltype(out)>(static_cast<const std::byte*>(from),
                                           static_cast<std::byte*>(to), count);
    });
  });
}

std::size_t first_beyond(const void* from, DType from_type, DType to_type, std::size_t count) {
  constexpr std::size_t kSome = 4096;
  std::size_t first = count;
  with_float_type(from_type, [&](auto in) {
    with_float_type(to_type, [&](auto out) {
      const auto* const bytes = static_cast<const std::byte*>(from);
      const std::size_t size = sizeof(typename decltype(in)::Bits);
      const auto any = [&](std::size_t begin, std::size_t some) {
        return any_beyond<decltype(in), decltype(out)>(bytes + begin * size, some);
      };
      for (std::size_t i = 0; i < count && first == count; i += kSome) {
        const std::size_t some = std::min(kSome, count - i);
        if (!any(i, some)) continue;
        first = i;
        while (!any(first, 1)) ++first;
      }
    });
  });
  return first;
}

}  // namespace mt
