#include "weight_only.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "bias_gradient.h"
#include "parallel.h"
#include "wide.h"

namespace mxgemm {
namespace {

constexpr size_t kFormBudget = size_t{1} << 20;  // bytes of rows that share one decoded panel
constexpr int64_t kFewestRows = 16;              // which is decoded for at least so many
constexpr int64_t kMostPanels = 16;              // one behind the other in a task
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Rows first .. first + count - 1 of X, as the kernel reads them.
struct RowGroup {
  int64_t first;
  int count;
  const uint8_t* form;
  const uint8_t* ordinary;  // per row; see WeightOnly::pack_row
};

class Product {
 public:
  Product(const Kernels& kernels, const WeightOnlyCall& call)
      : kernels_(kernels),
        call_(call),
        kernel_(call.x_dtype == DType::kBFloat16 && kernels.weight_only_bf16.multiply
                    ? kernels.weight_only_bf16
                    : kernels.weight_only),
        row_bytes_(static_cast<size_t>(call.blocks) * kBlock * kernel_.element_bytes) {}

  void run(Workspace& workspace) const {
    const int64_t rows =
        std::max(kFewestRows, static_cast<int64_t>(kFormBudget / std::max<size_t>(row_bytes_, 1)));
    const int64_t groups = divide_up(call_.m, rows), panels = divide_up(call_.n, kPanel);
    // More than one group of rows reads B more than once: then its panels are made once.
    std::unique_ptr<PreparedColumns> made;
    if (!call_.prepared && groups > 1)
      made = prepare_columns(kernels_, call_.b, call_.n, call_.blocks, call_.threads);
    const ColumnSource source(kernels_, made ? made.get() : call_.prepared, call_.b, call_.n,
                              call_.blocks);
    const BiasGradient bias_grad(call_.bias_grad, call_.n, groups, &workspace.partial);
    std::vector<uint8_t> ordinary(static_cast<size_t>(call_.m));
    workspace.rows.reserve(row_bytes_ * call_.m);
    auto* forms = workspace.rows.as<uint8_t>();
    const auto group = [&](int64_t g) {
      const int64_t first = g * rows;
      return RowGroup{first, static_cast<int>(std::min(rows, call_.m - first)),
                      forms + first * row_bytes_, ordinary.data() + first};
    };
    parallel_for(call_.m, call_.threads, [&](int64_t r, int) {
      const RowGroup all = group(r / rows);
      ordinary[r] =
          kernel_.pack_row(row(r), call_.x_dtype, call_.k, call_.blocks, all.count,
                           static_cast<int>(r - all.first), const_cast<uint8_t*>(all.form));
    });
    const int64_t own = pieces_per_task(panels, call_.threads, kMostPanels);
    const int64_t tasks = divide_up(panels, own);
    parallel_for(groups * tasks, call_.threads, [&](int64_t task, int slot) {
      const int64_t g = task / tasks, first = task % tasks * own;
      Columns columns;
      for (int64_t p = first; p < std::min(first + own, panels); ++p) {
        source.get(p, 1, &workspace.thread_columns[slot], &columns);
        piece(group(g), p, columns, bias_grad.group(g), &workspace.thread_tiles[slot]);
      }
    });
    bias_grad.write();
  }

 private:
  const void* row(int64_t r) const {
    const int64_t element = call_.x_dtype == DType::kFloat32 ? 4 : 2;
    return static_cast<const uint8_t*>(call_.x) + r * call_.x_stride * element;
  }

  void piece(const RowGroup& rows, int64_t panel, const Columns& columns, double* bias_grad,
             Buffer* tile) const {
    tile->reserve(static_cast<size_t>(rows.count) * kPanel * sizeof(float));
    auto* acc = tile->as<float>();
    kernel_.multiply(rows.form, rows.count, columns.panels[0], call_.blocks, acc, kPanel);
    const int64_t column = panel * kPanel;
    const int num_columns = static_cast<int>(std::min<int64_t>(kPanel, call_.n - column));
    for (int first = 0, last; first < rows.count; first = last) {
      // Rows of one kind are finished together.
      const bool wide = !rows.ordinary[first];
      last = first + 1;
      while (!wide && last < rows.count && rows.ordinary[last]) ++last;
      const Piece piece{rows.first + first, column, last - first, num_columns, kPanel, bias_grad};
      if (wide) {
        double sums[kPanel];
        wide_weight_only(row(piece.row), call_.x_dtype, call_.k, columns.panels[0], sums);
        poison(columns, piece, sums);
        kernels_.finish_wide(call_.epilogue, piece, sums);
      } else {
        poison(columns, piece, acc + first * kPanel);
        kernels_.finish(call_.epilogue, piece, acc + first * kPanel);
      }
    }
  }

  template <class T>
  static void poison(const Columns& columns, const Piece& piece, T* acc) {
    for (int c = 0; c < piece.columns; ++c) {
      for (int r = 0; columns.poisoned[c] && r < piece.rows; ++r) acc[r * kPanel + c] = kNaN;
    }
  }

  const Kernels& kernels_;
  const WeightOnlyCall& call_;
  const WeightOnly& kernel_;
  const size_t row_bytes_;
};

}  // namespace

void weight_only_gemm(const Kernels& kernels, const WeightOnlyCall& call) {
  BorrowedWorkspace workspace;
  reserve_threads(*workspace, call.threads);
  Product(kernels, call).run(*workspace);
}

}  // namespace mxgemm
