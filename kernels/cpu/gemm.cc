// The product. Every element of c is one chain of fused multiply-adds in the order of the
// contraction, which starts at 0 or at c: the blocks below cut rows, columns and the contraction
// for the caches and the threads, but a cut of the contraction only parks the chain in c, so no cut
// changes a bit.
//
// Blocks: a part of a (its rows times some of the contraction) is packed once for all threads; then
// each thread takes columns of c by turns, packs their part of b for itself, and multiplies it with
// the packed a, whose blocks of kBlockRows rows and kBlockSteps steps stay in the second level
// cache. Between the packing of a and the end of a part no thread waits for another.
#include "kernels/cpu/gemm.h"

#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/parallel.h"

namespace mt::cpu::MT_KERNEL_SET {
namespace product {
namespace {

// Of the contraction, for one packed block: a panel of b stays in the first level cache.
constexpr std::int64_t kBlockSteps = 384;
// Rows of a, for one block: with kBlockSteps steps about 300 KB.
constexpr std::int64_t kBlockRows = 196 / kTileRows * kTileRows;
// Panels of b that a thread packs at once.
constexpr std::int64_t kTaskPanels = 256 / kTileCols;
// Rows and elements of a that are packed at once: in the third level cache.
constexpr std::int64_t kPartRows = 2048 / kTileRows * kTileRows;
constexpr std::int64_t kPartElements = std::int64_t{1} << 21;

// How a product is cut.
struct Cut {
  std::int64_t part_rows;    // of c; a multiple of kTileRows
  std::int64_t part_steps;   // of the contraction; a multiple of block_steps
  std::int64_t block_steps;  // of the contraction in one packed block
  std::int64_t task_panels;  // columns of c for one task, in panels
  std::int64_t task_rows;    // rows of a part for one task, in panels of a
  std::int64_t packed_a;     // floats for a part of a
  std::int64_t packed_b;     // floats for a task's columns and block_steps

  Cut(const Gemm& g, int threads) {
    const std::int64_t blocks = parts_of(g.k, kBlockSteps);
    block_steps = parts_of(parts_of(g.k, blocks), 8) * 8;
    part_rows = least(parts_of(g.m, kTileRows) * kTileRows, kPartRows);
    const std::int64_t part_blocks = parts_of(kPartElements, part_rows * block_steps);
    part_steps = least(part_blocks, parts_of(g.k, block_steps)) * block_steps;

    // Columns first; rows only where there are too few columns to keep the threads busy.
    constexpr std::int64_t kTasksPerThread = 4;
    const std::int64_t tasks = threads == 1 ? 1 : kTasksPerThread * threads;
    const std::int64_t panels = parts_of(g.n, kTileCols);
    task_panels = least(kTaskPanels, parts_of(panels, tasks));
    const std::int64_t row_panels = part_rows / kTileRows;
    constexpr std::int64_t kLeastRowPanels = 4;
    const std::int64_t row_tasks = least(parts_of(tasks, parts_of(panels, task_panels)),
                                         parts_of(row_panels, kLeastRowPanels));
    task_rows = parts_of(row_panels, row_tasks);

    packed_a = row_panels * panel_stride(kTileRows, block_steps) * (part_steps / block_steps);
    packed_b = task_panels * panel_stride(kTileCols, block_steps);
  }
};

// One part: rows [i, i + rows) of c and steps [p, p + steps) of the contraction.
struct Part {
  const Gemm& g;
  const Cut& cut;
  std::int64_t i, rows, p, steps;
  float* packed_a;

  [[nodiscard]] std::int64_t row_panels() const { return parts_of(rows, kTileRows); }
  [[nodiscard]] std::int64_t blocks() const { return parts_of(steps, cut.block_steps); }
  [[nodiscard]] std::int64_t steps_of(std::int64_t block) const {
    return least(cut.block_steps, steps - block * cut.block_steps);
  }
  [[nodiscard]] float* packed_block(std::int64_t block) const {
    return packed_a + block * row_panels() * panel_stride(kTileRows, cut.block_steps);
  }
};

void pack_part_of_a(const Part& part, int threads) {
  const Gemm& g = part.g;
  // Panels for a thread at once: many where a line of memory holds elements of several.
  const std::int64_t chunk = g.a_transposed ? 32 : 8;
  const std::int64_t chunks = parts_of(part.row_panels(), chunk);
  parallel_parts(chunks * part.blocks(), threads, [&](std::int64_t unit, int) {
    const std::int64_t block = unit / chunks;
    const std::int64_t first = unit % chunks * chunk;
    const std::int64_t p = part.p + block * part.cut.block_steps;
    const float* const a = static_cast<const float*>(g.a);
    pack_a({.data = a + (g.a_transposed ? p * g.lda + part.i : part.i * g.lda + p),
            .ld = g.lda,
            .steps_contiguous = !g.a_transposed,
            .count = part.rows,
            .steps = part.steps_of(block)},
           first, least(first + chunk, part.row_panels()), part.packed_block(block));
  });
}

// Columns [j, j + cols) times the panels [first, last) of a: one panel of b.
void multiply_panel(const Part& part, std::int64_t block, std::int64_t first, std::int64_t last,
                    const float* panel_b, std::int64_t j, std::int64_t cols) {
  const Gemm& g = part.g;
  const std::int64_t steps = part.steps_of(block);
  const std::int64_t stride = panel_stride(kTileRows, steps);
  const float* const a = part.packed_block(block);
  float* const c = static_cast<float*>(g.c);
  const std::int64_t p = part.p + block * part.cut.block_steps;
  const bool zero = p == 0 && g.output == Output::kOverwrite;
  const bool done = p + steps == g.k;
  const bool more = done && (g.bias != nullptr || g.residual != nullptr || g.gelu != nullptr);
  for (std::int64_t panel = first; panel < last; ++panel) {
    const std::int64_t row = panel * kTileRows;
    const int rows = static_cast<int>(least(kTileRows, part.rows - row));
    const TileFunction tile = tile_of(rows);
    float* const to = c + (part.i + row) * g.ldc + j;
    if (cols == kTileCols) {
      tile(steps, a + panel * stride, panel_b, to, g.ldc, zero);
    } else {
      float edge[kTileRows * kTileCols] = {};
      for (int r = 0; r < rows && !zero; ++r) {
        __builtin_memcpy(edge + r * kTileCols, to + r * g.ldc,
                         static_cast<std::size_t>(cols) * sizeof(float));
      }
      tile(steps, a + panel * stride, panel_b, edge, kTileCols, zero);
      for (int r = 0; r < rows; ++r) {
        __builtin_memcpy(to + r * g.ldc, edge + r * kTileCols,
                         static_cast<std::size_t>(cols) * sizeof(float));
      }
    }
    if (more) {
      finish(g, part.i + row, j, rows, cols);
    }
  }
}

// The panels [first, last) of b times the panels [row_first, row_last) of the part's a.
void multiply(const Part& part, std::int64_t first, std::int64_t last, std::int64_t row_first,
              std::int64_t row_last, float* packed_b) {
  const Gemm& g = part.g;
  constexpr std::int64_t kBlockPanels = kBlockRows / kTileRows;
  const std::int64_t j = first * kTileCols;
  const std::int64_t cols = least(last * kTileCols, g.n) - j;
  const float* const b = static_cast<const float*>(g.b);
  for (std::int64_t block = 0; block < part.blocks(); ++block) {
    const std::int64_t steps = part.steps_of(block);
    const std::int64_t p = part.p + block * part.cut.block_steps;
    if (g.b_type == DType::kBf16) {
      pack_b_bf16({.data = static_cast<const std::uint16_t*>(g.b) + j * g.ldb + p,
                   .ld = g.ldb,
                   .count = cols,
                   .steps = steps},
                  last - first, packed_b);
    } else {
      pack_b({.data = b + (g.b_transposed ? j * g.ldb + p : p * g.ldb + j),
              .ld = g.ldb,
              .steps_contiguous = g.b_transposed,
              .count = cols,
              .steps = steps},
             0, last - first, packed_b);
    }
    for (std::int64_t row = row_first; row < row_last; row += kBlockPanels) {
      const std::int64_t row_end = least(row + kBlockPanels, row_last);
      for (std::int64_t panel = first; panel < last; ++panel) {
        const float* const panel_b = packed_b + (panel - first) * panel_stride(kTileCols, steps);
        const std::int64_t column = panel * kTileCols;
        multiply_panel(part, block, row, row_end, panel_b, column, least(kTileCols, g.n - column));
      }
    }
  }
}

void packed(const Gemm& g, int threads) {
  const Cut cut(g, threads);
  const std::int64_t floats = cut.packed_a + threads * cut.packed_b;
  float* const memory =
      static_cast<float*>(scratch(static_cast<std::size_t>(floats) * sizeof(float)));
  for (std::int64_t i = 0; i < g.m; i += cut.part_rows) {
    for (std::int64_t p = 0; p < g.k; p += cut.part_steps) {
      const Part part{.g = g,
                      .cut = cut,
                      .i = i,
                      .rows = least(cut.part_rows, g.m - i),
                      .p = p,
                      .steps = least(cut.part_steps, g.k - p),
                      .packed_a = memory};
      pack_part_of_a(part, threads);
      const std::int64_t panels = parts_of(g.n, kTileCols);
      const std::int64_t column_tasks = parts_of(panels, cut.task_panels);
      const std::int64_t row_tasks = parts_of(part.row_panels(), cut.task_rows);
      parallel_parts(column_tasks * row_tasks, threads, [&](std::int64_t task, int thread) {
        const std::int64_t column = task / row_tasks * cut.task_panels;
        const std::int64_t row = task % row_tasks * cut.task_rows;
        multiply(part, column, least(column + cut.task_panels, panels), row,
                 least(row + cut.task_rows, part.row_panels()),
                 memory + cut.packed_a + thread * cut.packed_b);
      });
    }
  }
}

// Threads for a product of that many multiplications, of which each thread should have at least
// `grain`: waking one costs some microseconds.
int threads_for(double multiplications, double grain) {
  const int most = threads();
  const double worth = multiplications / grain;
  return worth >= most ? most : worth < 2 ? 1 : static_cast<int>(worth);
}

// k = 0: the chains are empty.
void no_steps(const Gemm& g) {
  for (std::int64_t i = 0; i < g.m; ++i) {
    float* const row = static_cast<float*>(g.c) + i * g.ldc;
    for (std::int64_t j = 0; j < g.n && g.output == Output::kOverwrite; ++j) {
      row[j] = 0.0F;
    }
    finish(g, i, 0, 1, g.n);
  }
}

}  // namespace
}  // namespace product

void gemm(DType dtype, const Gemm& g) {
  require_f32(dtype);
  if (g.b_type != DType::kF32 && (g.b_type != DType::kBf16 || !g.b_transposed)) {
    refuse_dtype(g.b_type);
  }
  if (g.m <= 0 || g.n <= 0) {
    return;
  }
  const double multiplications =
      static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
  if (g.k <= 0) {
    product::no_steps(g);
  } else if (g.m <= (g.b_transposed ? product::kFewRows : product::kFewRowsOfPlain)) {
    product::few_rows(g, product::threads_for(multiplications, 2e5));
  } else {
    product::packed(g, product::threads_for(multiplications, 1e6));
  }
}

}  // namespace mt::cpu::MT_KERNEL_SET
