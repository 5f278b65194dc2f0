#include "gemm.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "parallel.h"
#include "scales.h"
#include "wide.h"

namespace mxgemm {
namespace {

constexpr size_t kRowBudget = size_t{4} << 20;  // bytes of packed A that stay in the shared cache
constexpr int kFewPanels = 4;       // column panels finished together by the few-rows path
constexpr int kTasksPerThread = 4;  // pieces for each thread, so that a slow core delays nobody
constexpr size_t kLine = 64;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

int64_t divide_up(int64_t x, int64_t y) { return (x + y - 1) / y; }
size_t align_line(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Column panels first .. first + count - 1, ready to read.
struct Columns {
  std::vector<ColumnPanel> panels;
  std::vector<ScaleRange> ranges;
  std::vector<uint8_t> poisoned;
};

// Makes panels from rows of B; codes, scales and what effective_scales reports.
ScaleRange build_panel(const Kernels& kernels, const Matrix& b, int64_t first_row, int count,
                       int64_t blocks, uint8_t* codes, uint8_t* scales, uint8_t* poisoned) {
  const uint8_t* source = b.codes + first_row * b.codes_stride;
  kernels.interleave(source, b.codes_stride, count, blocks, codes);
  ScaleRange range{kScaleOne, kScaleOne};
  for (int i = 0; i < kPanel; ++i) {
    if (i >= count) {
      for (int64_t k = 0; k < blocks; ++k) scales[k * kPanel + i] = kScaleOne;
      continue;
    }
    const RowScales row =
        effective_scales(source + i * b.codes_stride, b.scales + (first_row + i) * b.scales_stride,
                         blocks, scales + i, kPanel);
    range = i == 0 ? row.range : join(range, row.range);
    poisoned[i] = row.poisoned;
  }
  return range;
}

size_t panel_bytes(int64_t blocks) {
  return static_cast<size_t>(blocks) * (kPanelBlockBytes + kPanel);
}

// The column panels of one call, whether prepared before or made from B on demand in a thread's
// scratch memory.
class ColumnSource {
 public:
  ColumnSource(const Kernels& kernels, const GemmCall& call) : kernels_(kernels), call_(call) {}

  void get(int64_t first, int count, Buffer* scratch, Columns* out) const {
    out->panels.resize(count);
    out->ranges.resize(count);
    out->poisoned.assign(static_cast<size_t>(count) * kPanel, 0);
    const PreparedColumns* prepared = call_.prepared;
    const size_t bytes = panel_bytes(call_.blocks);
    if (!prepared) scratch->reserve(bytes * count);
    for (int i = 0; i < count; ++i) {
      const int64_t column = (first + i) * kPanel;
      const int columns = static_cast<int>(std::min<int64_t>(kPanel, call_.n - column));
      if (prepared) {
        out->panels[i] = prepared->panel(first + i);
        out->ranges[i] = prepared->ranges[first + i];
        std::memcpy(&out->poisoned[i * kPanel], &prepared->poisoned[column], columns);
      } else {
        uint8_t* codes = scratch->as<uint8_t>() + i * bytes;
        uint8_t* scales = codes + call_.blocks * kPanelBlockBytes;
        out->panels[i] = {codes, scales};
        out->ranges[i] = build_panel(kernels_, call_.b, column, columns, call_.blocks, codes,
                                     scales, &out->poisoned[i * kPanel]);
      }
    }
  }

 private:
  const Kernels& kernels_;
  const GemmCall& call_;
};

// Rows of A with effective scales, for one block of rows.
struct Rows {
  uint8_t* scales;     // [rows][blocks]
  uint8_t* poisoned;   // [rows]
  ScaleRange* ranges;  // [rows]
  int64_t first;

  RowPanel panel(const GemmCall& call, int64_t row, int rows) const {
    return {call.a.codes + row * call.a.codes_stride, call.a.codes_stride,
            scales + (row - first) * call.blocks, rows, call.blocks};
  }
  ScaleRange range(int64_t row, int rows) const {
    ScaleRange joined = ranges[row - first];
    for (int i = 1; i < rows; ++i) joined = join(joined, ranges[row - first + i]);
    return joined;
  }
  void read(const GemmCall& call, int64_t row, int rows) const {
    for (int64_t r = row; r < row + rows; ++r) {
      const RowScales found = effective_scales(call.a.codes + r * call.a.codes_stride,
                                               call.a.scales + r * call.a.scales_stride,
                                               call.blocks, scales + (r - first) * call.blocks, 1);
      ranges[r - first] = found.range;
      poisoned[r - first] = found.poisoned;
    }
  }
};

Rows allocate_rows(Workspace& workspace, int64_t first, int64_t count, int64_t blocks) {
  const size_t scale_bytes = align_line(static_cast<size_t>(count) * blocks);
  const size_t range_bytes = align_line(static_cast<size_t>(count) * sizeof(ScaleRange));
  workspace.scales.reserve(scale_bytes + range_bytes + static_cast<size_t>(count));
  auto* base = workspace.scales.as<uint8_t>();
  return {base, base + scale_bytes + range_bytes, reinterpret_cast<ScaleRange*>(base + scale_bytes),
          first};
}

template <class T>
void poison(const Rows& rows, const uint8_t* column_poisoned, const Piece& piece, T* acc) {
  for (int c = 0; c < piece.columns; ++c) {
    if (!column_poisoned[c]) continue;
    for (int r = 0; r < piece.rows; ++r) acc[r * piece.stride + c] = kNaN;
  }
  for (int r = 0; r < piece.rows; ++r) {
    if (rows.poisoned[piece.row + r - rows.first])
      std::fill_n(acc + r * piece.stride, piece.columns, T{kNaN});
  }
}

// Finishes a piece of D whose sums are in acc, or, where FP32 cannot hold its scales, are made here
// in FP64.
void finish_piece(const Kernels& kernels, const GemmCall& call, const Rows& rows,
                  const ColumnPanel* panels, const uint8_t* column_poisoned, const Piece& piece,
                  float* acc, bool wide) {
  if (!wide) {
    poison(rows, column_poisoned, piece, acc);
    kernels.finish(call.epilogue, piece, acc);
    return;
  }
  Piece wide_piece = piece;
  wide_piece.stride = divide_up(piece.columns, kPanel) * kPanel;
  std::vector<double> sums(static_cast<size_t>(piece.rows) * wide_piece.stride);
  for (int p = 0; p * kPanel < piece.columns; ++p) {
    wide_product(rows.panel(call, piece.row, piece.rows), panels[p], sums.data() + p * kPanel,
                 wide_piece.stride);
  }
  poison(rows, column_poisoned, wide_piece, sums.data());
  kernels.finish_wide(call.epilogue, wide_piece, sums.data());
}

bool needs_wide(const GemmCall& call, const Rows& rows, const Columns& columns, int64_t row,
                int num_rows, int panel, int count) {
  if (call.path == Path::kWide) return true;
  ScaleRange range = columns.ranges[panel];
  for (int p = panel + 1; p < panel + count; ++p) range = join(range, columns.ranges[p]);
  return !fits_fp32(rows.range(row, num_rows), range, call.blocks);
}

// Partial column sums of D: one row of doubles for each group of rows, summed in a fixed order at
// the end, so that the bits do not depend on the threads.
class BiasGradient {
 public:
  BiasGradient(const GemmCall& call, int64_t groups, Buffer* buffer)
      : call_(call), groups_(groups) {
    if (!call.bias_grad) return;
    const size_t count = static_cast<size_t>(groups) * call.n;
    buffer->reserve(count * sizeof(double));
    sums_ = buffer->as<double>();
    std::fill_n(sums_, count, 0.0);
  }
  double* group(int64_t index) const { return sums_ ? sums_ + index * call_.n : nullptr; }
  void write() const {
    if (!sums_) return;
    for (int64_t c = 0; c < call_.n; ++c) {
      double sum = 0;
      for (int64_t g = 0; g < groups_; ++g) sum += sums_[g * call_.n + c];
      call_.bias_grad[c] = static_cast<float>(sum);
    }
  }

 private:
  const GemmCall& call_;
  int64_t groups_;
  double* sums_ = nullptr;
};

void reserve_threads(Workspace& workspace, int threads) {
  const auto count = static_cast<size_t>(std::max(threads, 1));
  if (workspace.thread_columns.size() < count) workspace.thread_columns.resize(count);
  if (workspace.thread_tiles.size() < count) workspace.thread_tiles.resize(count);
}

void few_rows_gemm(const Kernels& kernels, const GemmCall& call, Workspace& workspace) {
  const int m = static_cast<int>(call.m);
  const Rows rows = allocate_rows(workspace, 0, m, call.blocks);
  rows.read(call, 0, m);
  workspace.rows.reserve(kernels.few_rows_form_bytes(m, call.blocks));
  kernels.pack_few_rows(rows.panel(call, 0, m), workspace.rows.as());

  const ColumnSource source(kernels, call);
  const BiasGradient bias_grad(call, 1, &workspace.partial);
  const int64_t panels = divide_up(call.n, kPanel);
  const int64_t stride = kFewPanels * kPanel;
  parallel_for(divide_up(panels, kFewPanels), call.threads, [&](int64_t task, int slot) {
    const int64_t first = task * kFewPanels;
    const int count = static_cast<int>(std::min<int64_t>(kFewPanels, panels - first));
    Columns columns;
    source.get(first, count, &workspace.thread_columns[slot], &columns);
    Buffer& tile = workspace.thread_tiles[slot];
    tile.reserve(static_cast<size_t>(m) * stride * sizeof(float));
    const bool wide = needs_wide(call, rows, columns, 0, m, 0, count);
    for (int p = 0; !wide && p < count; ++p) {
      kernels.few(workspace.rows.as(), m, columns.panels[p], call.blocks,
                  tile.as<float>() + p * kPanel, stride);
    }
    const int64_t column = first * kPanel;
    const Piece piece{0,      column,
                      m,      static_cast<int>(std::min<int64_t>(count * kPanel, call.n - column)),
                      stride, bias_grad.group(0)};
    finish_piece(kernels, call, rows, columns.panels.data(), columns.poisoned.data(), piece,
                 tile.as<float>(), wide);
  });
  bias_grad.write();
}

// How the tile path cuts a block of rows times all columns into tasks.
struct TileGrid {
  int64_t column_tiles, tiles_per_task, column_tasks;  // a tile is tile_panels column panels wide
  int64_t row_steps, steps_per_task, row_tasks;        // a step is row_panels_per_step row panels
};

TileGrid make_grid(const Kernels& kernels, const GemmCall& call, int64_t rows) {
  TileGrid g;
  const int64_t tile_columns = kernels.tile_panels * kPanel;
  const int64_t wanted = int64_t{kTasksPerThread} * call.threads;
  g.column_tiles = divide_up(call.n, tile_columns);
  const auto fitting = static_cast<int64_t>(
      kernels.column_budget / std::max<size_t>(kernels.column_form_bytes(call.blocks), 1));
  g.tiles_per_task = std::max<int64_t>(1, std::min(fitting, g.column_tiles));
  if (call.threads > 1) {
    g.tiles_per_task = std::max<int64_t>(1, std::min(g.tiles_per_task, g.column_tiles / wanted));
  }
  g.column_tasks = divide_up(g.column_tiles, g.tiles_per_task);
  g.row_steps = divide_up(rows, int64_t{kernels.tile_rows} * kernels.row_panels_per_step);
  const int64_t cuts =
      call.threads > 1 ? std::clamp<int64_t>(wanted / g.column_tasks, 1, g.row_steps) : 1;
  g.steps_per_task = divide_up(g.row_steps, cuts);
  g.row_tasks = divide_up(g.row_steps, g.steps_per_task);
  return g;
}

// One block of rows of the tile path: what its tasks share.
struct TileBlock {
  const Kernels& kernels;
  const GemmCall& call;
  const Rows& rows;
  const uint8_t* packed;
  size_t form_bytes;
  int64_t first_row, num_rows;
  const BiasGradient& bias_grad;

  // Computes and finishes `num_rows` rows from `row` times one decoded tile of columns.
  void step(int64_t row, int64_t step_rows, const Columns& columns, const uint8_t* form,
            int64_t first_panel, int panel, int count, float* acc) const {
    const int tile_rows = kernels.tile_rows, width = kernels.tile_panels * kPanel;
    const auto row_panels = static_cast<int>(divide_up(step_rows, tile_rows));
    bool wide[16];
    for (int p = 0; p < row_panels; ++p) {
      const int64_t at = row + p * tile_rows;
      wide[p] = needs_wide(call, rows, columns, at,
                           static_cast<int>(std::min<int64_t>(tile_rows, row + step_rows - at)),
                           panel, count);
    }
    std::fill_n(acc, static_cast<size_t>(row_panels) * tile_rows * width, 0.0f);
    const uint8_t* a = packed + (row - first_row) / tile_rows * form_bytes;
    for (int64_t first = 0; first < call.blocks; first += kernels.chunk_blocks) {
      const int64_t last = std::min<int64_t>(first + kernels.chunk_blocks, call.blocks);
      for (int p = 0; p < row_panels; ++p) {
        if (!wide[p])
          kernels.tile(a + p * form_bytes, form, call.blocks, first, last,
                       acc + p * tile_rows * width);
      }
    }
    const int64_t column = (first_panel + panel) * kPanel;
    const int num_columns = static_cast<int>(std::min<int64_t>(count * kPanel, call.n - column));
    const int64_t group = row / (int64_t{tile_rows} * kernels.row_panels_per_step);
    for (int p = 0; p < row_panels; ++p) {
      const int64_t at = row + p * tile_rows;
      const Piece piece{
          at,          column, static_cast<int>(std::min<int64_t>(tile_rows, row + step_rows - at)),
          num_columns, width,  bias_grad.group(group)};
      finish_piece(kernels, call, rows, columns.panels.data() + panel,
                   columns.poisoned.data() + panel * kPanel, piece, acc + p * tile_rows * width,
                   wide[p]);
    }
  }

  void run(const TileGrid& grid, int64_t task, Buffer* column_scratch, Buffer* tile_scratch) const {
    const int64_t column_task = task / grid.row_tasks, row_task = task % grid.row_tasks;
    const int64_t first_tile = column_task * grid.tiles_per_task;
    const int64_t tiles = std::min(grid.tiles_per_task, grid.column_tiles - first_tile);
    const int64_t first_panel = first_tile * kernels.tile_panels;
    const int64_t panels =
        std::min(tiles * kernels.tile_panels, divide_up(call.n, kPanel) - first_panel);

    Columns columns;
    ColumnSource(kernels, call)
        .get(first_panel, static_cast<int>(panels), column_scratch, &columns);
    const size_t column_bytes = align_line(kernels.column_form_bytes(call.blocks));
    const size_t acc_count = static_cast<size_t>(kernels.tile_rows) * kernels.row_panels_per_step *
                             kernels.tile_panels * kPanel;
    tile_scratch->reserve(align_line(acc_count * sizeof(float)) + column_bytes * tiles);
    auto* acc = tile_scratch->as<float>();
    uint8_t* forms = tile_scratch->as<uint8_t>() + align_line(acc_count * sizeof(float));
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t panel = t * kernels.tile_panels;
      kernels.decode_columns(
          &columns.panels[panel],
          static_cast<int>(std::min<int64_t>(kernels.tile_panels, panels - panel)), call.blocks,
          forms + t * column_bytes);
    }
    const int64_t step_rows = int64_t{kernels.tile_rows} * kernels.row_panels_per_step;
    const int64_t first = first_row + row_task * grid.steps_per_task * step_rows;
    const int64_t last = std::min(first + grid.steps_per_task * step_rows, first_row + num_rows);
    for (int64_t row = first; row < last; row += step_rows) {
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t panel = t * kernels.tile_panels;
        step(row, std::min(step_rows, last - row), columns, forms + t * column_bytes, first_panel,
             static_cast<int>(panel),
             static_cast<int>(std::min<int64_t>(kernels.tile_panels, panels - panel)), acc);
      }
    }
  }
};

void tile_gemm(const Kernels& kernels, const GemmCall& call, Workspace& workspace) {
  const int64_t step_rows = int64_t{kernels.tile_rows} * kernels.row_panels_per_step;
  const size_t form_bytes = align_line(kernels.row_form_bytes(call.blocks));
  const int64_t block_steps = std::max<int64_t>(
      1, static_cast<int64_t>(kRowBudget / (form_bytes * kernels.row_panels_per_step)));
  const int64_t steps = divide_up(call.m, step_rows);
  // Blocks of equal size rather than a small last one.
  const int64_t block_rows = divide_up(steps, divide_up(steps, block_steps)) * step_rows;
  const BiasGradient bias_grad(call, steps, &workspace.partial);
  for (int64_t first = 0; first < call.m; first += block_rows) {
    const int64_t count = std::min(block_rows, call.m - first);
    const Rows rows = allocate_rows(workspace, first, count, call.blocks);
    const int64_t row_panels = divide_up(count, kernels.tile_rows);
    workspace.rows.reserve(static_cast<size_t>(row_panels) * form_bytes);
    auto* packed = workspace.rows.as<uint8_t>();
    parallel_for(row_panels, call.threads, [&](int64_t p, int) {
      const int64_t row = first + p * kernels.tile_rows;
      const int num_rows =
          static_cast<int>(std::min<int64_t>(kernels.tile_rows, first + count - row));
      rows.read(call, row, num_rows);
      kernels.pack_rows(rows.panel(call, row, num_rows), packed + p * form_bytes);
    });
    const TileBlock block{kernels, call, rows, packed, form_bytes, first, count, bias_grad};
    const TileGrid grid = make_grid(kernels, call, count);
    parallel_for(grid.column_tasks * grid.row_tasks, call.threads, [&](int64_t task, int slot) {
      block.run(grid, task, &workspace.thread_columns[slot], &workspace.thread_tiles[slot]);
    });
  }
  bias_grad.write();
}

}  // namespace

std::unique_ptr<PreparedColumns> prepare_columns(const Kernels& kernels, const Matrix& b, int64_t n,
                                                 int64_t blocks, int threads) {
  auto prepared = std::make_unique<PreparedColumns>();
  prepared->columns = n;
  prepared->blocks = blocks;
  const int64_t panels = prepared->panels();
  prepared->codes = Buffer(static_cast<size_t>(panels) * blocks * kPanelBlockBytes);
  prepared->scales = Buffer(static_cast<size_t>(panels) * blocks * kPanel);
  prepared->ranges.resize(panels);
  prepared->poisoned.assign(static_cast<size_t>(panels) * kPanel, 0);
  parallel_for(panels, threads, [&](int64_t p, int) {
    const int64_t row = p * kPanel;
    prepared->ranges[p] =
        build_panel(kernels, b, row, static_cast<int>(std::min<int64_t>(kPanel, n - row)), blocks,
                    prepared->codes.as<uint8_t>() + p * blocks * kPanelBlockBytes,
                    prepared->scales.as<uint8_t>() + p * blocks * kPanel, &prepared->poisoned[row]);
  });
  return prepared;
}

void gemm(const Kernels& kernels, const GemmCall& call) {
  BorrowedWorkspace workspace;
  reserve_threads(*workspace, call.threads);
  const bool few =
      call.path == Path::kFewRows || (call.path == Path::kAutomatic && call.m <= kernels.few_rows);
  if (few) {
    few_rows_gemm(kernels, call, *workspace);
  } else {
    tile_gemm(kernels, call, *workspace);
  }
}

void weight_only_gemm(const Kernels& kernels, const WeightOnlyCall& call) {
  BorrowedWorkspace workspace;
  reserve_threads(*workspace, call.threads);
  const int64_t k = call.blocks * kBlock;
  const int64_t element = call.x_dtype == DType::kFloat32 ? 4 : 2;
  workspace->rows.reserve(static_cast<size_t>(call.m) * k * sizeof(float));
  auto* x = workspace->rows.as<float>();
  parallel_for(call.m, call.threads, [&](int64_t r, int) {
    kernels.widen(static_cast<const uint8_t*>(call.x) + r * call.x_stride * element, call.x_dtype,
                  k, x + r * k);
  });
  const PreparedColumns& b = *call.prepared;
  parallel_for(b.panels(), call.threads, [&](int64_t p, int slot) {
    Buffer& tile = workspace->thread_tiles[slot];
    tile.reserve(static_cast<size_t>(call.m) * kPanel * sizeof(float));
    auto* acc = tile.as<float>();
    const int64_t column = p * kPanel;
    const int m = static_cast<int>(call.m);
    kernels.weight_only(x, m, b.panel(p), call.blocks, acc, kPanel);
    const Piece piece{0,      column,
                      m,      static_cast<int>(std::min<int64_t>(kPanel, call.n - column)),
                      kPanel, nullptr};
    for (int c = 0; c < piece.columns; ++c) {
      for (int r = 0; b.poisoned[column + c] && r < m; ++r) acc[r * kPanel + c] = kNaN;
    }
    kernels.finish(call.epilogue, piece, acc);
  });
}

}  // namespace mxgemm
