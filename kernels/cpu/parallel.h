// Loops over parts on the threads of the process, for the kernels of one set.
#pragma once

#include <cstdint>

#include "base/threads.h"

namespace mt::cpu::MT_KERNEL_SET {

// f(part, thread) for each part of [0, parts), by up to `most` threads. What a part computes must
// not depend on who computes it.
template <typename F>
[[gnu::always_inline]] inline void parallel_parts(std::int64_t parts, int most, const F& f) {
  if (most <= 1 || parts <= 1) {
    for (std::int64_t part = 0; part < parts; ++part) {
      f(part, 0);
    }
    return;
  }
  run_parts(
      parts, most,
      [](const void* context, std::int64_t part, int thread) {
        (*static_cast<const F*>(context))(part, thread);
      },
      &f);
}

// f(begin, end) for the pieces of [0, count) of `piece` each, on all threads if there is more than
// one.
template <typename F>
[[gnu::always_inline]] inline void parallel_pieces(std::int64_t count, std::int64_t piece,
                                                   bool worth, const F& f) {
  const auto body = [&](std::int64_t part, int) {
    const std::int64_t begin = part * piece;
    f(begin, begin + piece < count ? begin + piece : count);
  };
  parallel_parts((count + piece - 1) / piece, worth ? threads() : 1, body);
}

// f(row) for each of `rows` rows of `cols` elements, some thousand elements at a time.
template <typename F>
[[gnu::always_inline]] inline void parallel_rows(std::int64_t rows, std::int64_t cols, const F& f) {
  constexpr std::int64_t kPiece = 16384;
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      f(row);
    }
  };
  parallel_pieces(rows, kPiece / (cols + 1) + 1, rows * cols > kPiece, body);
}

}  // namespace mt::cpu::MT_KERNEL_SET
