#include "quantize.h"

#include <algorithm>

#include "kernels.h"
#include "operands.h"
#include "parallel.h"

namespace mxgemm {
namespace {

constexpr int64_t kTaskElements = int64_t{1} << 18;  // about a core's cache

bool is_plain(const QuantizeCall& call) {
  return call.dtype == DType::kBFloat16 && call.rounding_bias != kSearch && !call.stochastic &&
         !call.rotation_size && !call.block_2d && call.prescale == 1.0f;
}

void quantize_strips(const Kernels& kernels, const QuantizeCall& call, int threads) {
  const int64_t strips = (call.rows + kStripRows - 1) / kStripRows;
  // A matrix of few rows is cut along k as well, at multiples of every rotation's period.
  const int64_t piece = std::max<int64_t>(64, kTaskElements / kStripRows);
  const int64_t pieces = (call.stored_k + piece - 1) / piece;
  parallel_for(strips * pieces, threads, [&](int64_t task, int) {
    const int64_t first = task / pieces * kStripRows, k = task % pieces * piece;
    kernels.quantize.strip(call, first,
                           static_cast<int>(std::min<int64_t>(kStripRows, call.rows - first)), k,
                           std::min(k + piece, call.stored_k));
  });
}

}  // namespace

void quantize(const Kernels& kernels, const QuantizeCall& call, int threads) {
  const bool fast = kernels.quantize.fast_rows && is_plain(call) && call.column_stride == 1 &&
                    call.k == call.stored_k;
  if (!fast) return quantize_strips(kernels, call, threads);
  const int64_t rows = std::max<int64_t>(1, kTaskElements / call.k);
  parallel_for((call.rows + rows - 1) / rows, threads, [&](int64_t task, int) {
    kernels.quantize.fast_rows(call, task * rows, std::min((task + 1) * rows, call.rows));
  });
}

void quantize_pair(const Kernels& kernels, const QuantizeCall& along_k, const QuantizeCall& along_m,
                   int threads) {
  const bool fast = kernels.quantize.fast_pair && is_plain(along_k) && is_plain(along_m) &&
                    along_k.column_stride == 1 && along_k.k == along_k.stored_k;
  if (!fast) {
    quantize_strips(kernels, along_k, threads);
    quantize_strips(kernels, along_m, threads);
    return;
  }
  const int64_t rows = along_k.rows, whole = rows / kBlock * kBlock;
  parallel_for((rows + kPairStripRows - 1) / kPairStripRows, threads, [&](int64_t task, int) {
    const int64_t first = task * kPairStripRows;
    const int64_t last = std::min(first + kPairStripRows, rows);
    const int64_t fast_last = std::min(last, whole);
    if (fast_last > first) {
      kernels.quantize.fast_pair(along_k, along_m, first, static_cast<int>(fast_last - first));
    }
    if (last < rows) return;
    // The last rows may fill no block along M, which ends in zeros.
    if (whole < rows)
      kernels.quantize.strip(along_k, whole, static_cast<int>(rows - whole), 0, along_k.stored_k);
    for (int64_t column = 0; column < along_m.rows && whole < along_m.stored_k;
         column += kStripRows) {
      kernels.quantize.strip(along_m, column,
                             static_cast<int>(std::min<int64_t>(kStripRows, along_m.rows - column)),
                             whole, along_m.stored_k);
    }
  });
}

}  // namespace mxgemm
