// Rows gathered by token and position, and their gradients scattered in the order of the tokens.
#include "kernels/cpu/columns.h"
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector.h"

namespace mt::cpu::MT_KERNEL_SET {

namespace {

Floats load_bf16(const std::uint16_t* p, Whole) {
  std::uint32_t bits[16];
  for (int i = 0; i < 16; ++i) {
    bits[i] = static_cast<std::uint32_t>(p[i]) << 16;
  }
  return floats_of_bits(load_ints(bits));
}
Floats load_bf16(const std::uint16_t* p, Part part) {
  std::uint16_t some[16] = {};
  for (int i = 0; i < part.n; ++i) {
    some[i] = p[i];
  }
  return load_bf16(some, Whole{});
}

void embedding_forward_bf16(const EmbeddingForward& f) {
  const auto* const words = static_cast<const std::uint16_t*>(f.words);
  const auto* const positions = static_cast<const std::uint16_t*>(f.positions);
  parallel_rows(f.count, f.cols, [&](std::int64_t t) {
    const std::int64_t row = f.tokens[t] - f.first;
    const bool here = row >= 0 && row < f.rows;
    float* out = static_cast<float*>(f.out) + t * f.cols;
    sweep(0, f.cols, [&](std::int64_t i, auto part) {
      Floats w = here ? load_bf16(words + row * f.cols + i, part) : all(0.0F);
      if (positions != nullptr) {
        w = w + load_bf16(positions + f.position_ids[t] * f.cols + i, part);
      }
      store(out + i, w, part);
    });
  });
}

}  // namespace

void embedding_forward(DType dtype, const EmbeddingForward& f) {
  require_f32(dtype);
  if (f.table_type == DType::kBf16) {
    return embedding_forward_bf16(f);
  }
  require_f32(f.table_type);
  parallel_rows(f.count, f.cols, [&](std::int64_t t) {
    const std::int64_t row = f.tokens[t] - f.first;
    const float* word =
        row < 0 || row >= f.rows ? nullptr : static_cast<const float*>(f.words) + row * f.cols;
    const float* position = f.positions == nullptr ? nullptr
                                                   : static_cast<const float*>(f.positions) +
                                                         f.position_ids[t] * f.cols;
    float* out = static_cast<float*>(f.out) + t * f.cols;
    sweep(0, f.cols, [&](std::int64_t i, auto part) {
      const Floats w = word == nullptr ? all(0.0F) : load(word + i, part);
      store(out + i, position == nullptr ? w : w + load(position + i, part), part);
    });
  });
}

void embedding_backward(DType dtype, const EmbeddingBackward& b) {
  require_f32(dtype);
  const std::int64_t slice = columns_of_slice(b.cols);  // a token may come again anywhere
  auto add_row = [](float* sum, const float* dy, std::int64_t begin, std::int64_t end) {
    sweep(begin, end, [&](std::int64_t i, auto part) {
      store(sum + i, load(sum + i, part) + load(dy + i, part), part);
    });
  };
  const auto columns = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = 0; t < b.count; ++t) {
      const float* dy = static_cast<const float*>(b.dy) + t * b.cols;
      const std::int64_t row = b.tokens[t] - b.first;
      if (b.dwords != nullptr && row >= 0 && row < b.rows) {
        add_row(static_cast<float*>(b.dwords) + row * b.cols, dy, begin, end);
      }
      if (b.dpositions != nullptr) {
        add_row(static_cast<float*>(b.dpositions) + b.position_ids[t] * b.cols, dy, begin, end);
      }
    }
  };
  parallel_pieces(b.cols, slice, b.count * b.cols > kChunk, columns);
}

}  // namespace mt::cpu::MT_KERNEL_SET
