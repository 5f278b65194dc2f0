#include "gemm.h"

#include <algorithm>
#include <limits>

#include "bias_gradient.h"
#include "parallel.h"
#include "scales.h"
#include "schedule.h"
#include "wide.h"

namespace mxgemm {
namespace {

constexpr size_t kRowBudget = size_t{4} << 20;  // bytes of packed A that stay in the shared cache
constexpr int kFewPanels = 4;         // column panels finished together by the few-rows path
constexpr int kFewPiecesPerTask = 4;  // of so many panels, one behind the other
constexpr int64_t kRowMajorLeastBlocks = 8;
constexpr size_t kLine = 64;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

size_t align_line(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

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

void few_rows_gemm(const Kernels& kernels, const GemmCall& call, Workspace& workspace) {
  const int m = static_cast<int>(call.m);
  const Rows rows = allocate_rows(workspace, 0, m, call.blocks);
  rows.read(call, 0, m);
  workspace.rows.reserve(kernels.few_rows_form_bytes(m, call.blocks));
  kernels.pack_few_rows(rows.panel(call, 0, m), workspace.rows.as());

  const ColumnSource source(kernels, call.prepared, call.b, call.n, call.blocks);
  const BiasGradient bias_grad(call.bias_grad, call.n, 1, &workspace.partial);
  const int64_t panels = divide_up(call.n, kPanel);
  const int64_t stride = kFewPanels * kPanel;
  const auto piece_of = [&](int64_t first, int slot, Columns* columns) {
    const int count = static_cast<int>(std::min<int64_t>(kFewPanels, panels - first));
    source.get(first, count, &workspace.thread_columns[slot], columns);
    Buffer& tile = workspace.thread_tiles[slot];
    tile.reserve(static_cast<size_t>(m) * stride * sizeof(float));
    const bool wide = needs_wide(call, rows, *columns, 0, m, 0, count);
    for (int p = 0; !wide && p < count; ++p) {
      kernels.few(workspace.rows.as(), m, columns->panels[p], call.blocks,
                  tile.as<float>() + p * kPanel, stride);
    }
    const int64_t column = first * kPanel;
    const Piece piece{0,      column,
                      m,      static_cast<int>(std::min<int64_t>(count * kPanel, call.n - column)),
                      stride, bias_grad.group(0)};
    finish_piece(kernels, call, rows, columns->panels.data(), columns->poisoned.data(), piece,
                 tile.as<float>(), wide);
  };
  const int64_t pieces = divide_up(panels, kFewPanels);
  const int64_t own = pieces_per_task(pieces, call.threads, kFewPiecesPerTask);
  parallel_for(divide_up(pieces, own), call.threads, [&](int64_t task, int slot) {
    Columns columns;
    for (int64_t i = task * own; i < std::min((task + 1) * own, pieces); ++i)
      piece_of(i * kFewPanels, slot, &columns);
  });
  bias_grad.write();
}

// A few rows times a canonical B, whose rows are read as they lie in memory.
void row_major_gemm(const Kernels& kernels, const GemmCall& call, Workspace& workspace) {
  const int m = static_cast<int>(call.m);
  const Rows rows = allocate_rows(workspace, 0, m, call.blocks);
  rows.read(call, 0, m);
  workspace.rows.reserve(kernels.row_major_form_bytes(m, call.blocks));
  kernels.pack_row_major(rows.panel(call, 0, m), workspace.rows.as());

  const ColumnSource source(kernels, nullptr, call.b, call.n, call.blocks);
  const BiasGradient bias_grad(call.bias_grad, call.n, 1, &workspace.partial);
  const int64_t stride = kFewPanels * kPanel;
  const int64_t scales_stride = divide_up(call.blocks, kScalePad) * kScalePad;
  parallel_for(divide_up(call.n, stride), call.threads, [&](int64_t task, int slot) {
    const int64_t first = task * stride;
    const int count = static_cast<int>(std::min(stride, call.n - first));
    Buffer& tile = workspace.thread_tiles[slot];
    const size_t acc_bytes = align_line(static_cast<size_t>(m * stride) * sizeof(float));
    tile.reserve(acc_bytes + static_cast<size_t>(stride * scales_stride));
    auto* acc = tile.as<float>();
    uint8_t* scales = tile.as<uint8_t>() + acc_bytes;
    const uint8_t* codes = call.b.codes + first * call.b.codes_stride;
    Columns columns;
    columns.poisoned.resize(count);
    ScaleRange range{};
    for (int i = 0; i < count; ++i) {
      uint8_t* own = scales + i * scales_stride;
      const RowScales row =
          effective_scales(codes + i * call.b.codes_stride,
                           call.b.scales + (first + i) * call.b.scales_stride, call.blocks, own, 1);
      std::fill(own + call.blocks, own + scales_stride, kScaleOne);
      range = i == 0 ? row.range : join(range, row.range);
      columns.poisoned[i] = row.poisoned;
    }
    const bool wide = !fits_fp32(rows.range(0, m), range, call.blocks);
    if (wide) {
      source.get(task * kFewPanels, static_cast<int>(divide_up(count, kPanel)),
                 &workspace.thread_columns[slot], &columns);
    } else {
      kernels.row_major(workspace.rows.as(), m,
                        {codes, call.b.codes_stride, scales, scales_stride, count}, call.blocks,
                        acc, stride);
    }
    const Piece piece{0, first, m, count, stride, bias_grad.group(0)};
    finish_piece(kernels, call, rows, columns.panels.data(), columns.poisoned.data(), piece, acc,
                 wide);
  });
  bias_grad.write();
}

// How the tile path cuts a block of rows times all columns into tasks.
struct TileGrid {
  int64_t column_tiles, tiles_per_task, column_tasks;  // a tile is tile_panels column panels wide
  int64_t row_steps, steps_per_task, row_tasks;        // a step is row_panels_per_step row panels
};

TileGrid make_grid(const Kernels& kernels, const GemmCall& call, const Schedule& schedule,
                   int64_t rows) {
  TileGrid g;
  const int64_t tile_columns = kernels.tile_panels * kPanel;
  const int64_t wanted = int64_t{kTasksPerThread} * call.threads;
  g.column_tiles = divide_up(call.n, tile_columns);
  const auto fitting = static_cast<int64_t>(
      kernels.column_budget / std::max<size_t>(kernels.column_form_bytes(schedule), 1));
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
  const Schedule& schedule;
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
    for (int group = 0; group < schedule.num_groups; ++group) {
      for (int p = 0; p < row_panels; ++p) {
        if (!wide[p])
          kernels.tile(a + p * form_bytes, form, schedule, group, acc + p * tile_rows * width);
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
    ColumnSource(kernels, call.prepared, call.b, call.n, call.blocks)
        .get(first_panel, static_cast<int>(panels), column_scratch, &columns);
    const size_t column_bytes = align_line(kernels.column_form_bytes(schedule));
    const size_t acc_count = static_cast<size_t>(kernels.tile_rows) * kernels.row_panels_per_step *
                             kernels.tile_panels * kPanel;
    tile_scratch->reserve(align_line(acc_count * sizeof(float)) + column_bytes * tiles);
    auto* acc = tile_scratch->as<float>();
    uint8_t* forms = tile_scratch->as<uint8_t>() + align_line(acc_count * sizeof(float));
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t panel = t * kernels.tile_panels;
      kernels.decode_columns(
          &columns.panels[panel],
          static_cast<int>(std::min<int64_t>(kernels.tile_panels, panels - panel)), schedule,
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
  const CallSchedule call_schedule(kernels, call);
  const Schedule schedule = call_schedule.view();
  const size_t form_bytes = align_line(kernels.row_form_bytes(schedule));
  const int64_t block_steps = std::max<int64_t>(
      1, static_cast<int64_t>(kRowBudget / (form_bytes * kernels.row_panels_per_step)));
  const int64_t steps = divide_up(call.m, step_rows);
  // Blocks of equal size rather than a small last one.
  const int64_t block_rows = divide_up(steps, divide_up(steps, block_steps)) * step_rows;
  const BiasGradient bias_grad(call.bias_grad, call.n, steps, &workspace.partial);
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
      kernels.pack_rows(rows.panel(call, row, num_rows), schedule, packed + p * form_bytes);
    });
    const TileBlock block{kernels,    call,  schedule, rows,     packed,
                          form_bytes, first, count,    bias_grad};
    const TileGrid grid = make_grid(kernels, call, schedule, count);
    parallel_for(grid.column_tasks * grid.row_tasks, call.threads, [&](int64_t task, int slot) {
      block.run(grid, task, &workspace.thread_columns[slot], &workspace.thread_tiles[slot]);
    });
  }
  bias_grad.write();
}

Path choose_path(const Kernels& kernels, const GemmCall& call) {
  // A sum over a quarter of each vector's blocks needs a few of them to round no more often than a
  // sum over blocks.
  const bool row_major =
      !call.prepared && call.m <= kernels.row_major_rows && call.blocks >= kRowMajorLeastBlocks;
  const bool free = call.path == Path::kAutomatic;
  if ((free || call.path == Path::kRowMajor) && row_major) return Path::kRowMajor;
  if (call.path == Path::kFewRows || call.path == Path::kRowMajor) return Path::kFewRows;
  return free && call.m <= kernels.few_rows ? Path::kFewRows : Path::kTile;
}

}  // namespace

void gemm(const Kernels& kernels, const GemmCall& call) {
  BorrowedWorkspace workspace;
  reserve_threads(*workspace, call.threads);
  switch (choose_path(kernels, call)) {
    case Path::kRowMajor:
      return row_major_gemm(kernels, call, *workspace);
    case Path::kFewRows:
      return few_rows_gemm(kernels, call, *workspace);
    default:
      return tile_gemm(kernels, call, *workspace);
  }
}

}  // namespace mxgemm
