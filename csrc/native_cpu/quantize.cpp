#include "quantize.h"

#include <sys/mman.h>

#include <algorithm>

#include "kernels.h"
#include "operands.h"
#include "parallel.h"

namespace mxgemm {
namespace {

constexpr int64_t kTaskElements = int64_t{1} << 18;  // about a core's cache
// Columns and rows whose scale bytes fill a cache line: pieces of this size share none.
constexpr int64_t kLineOfScales = int64_t{64} * kBlock;

bool is_plain(const QuantizeCall& call) {
  return call.rounding_bias != kSearch && !call.stochastic && !call.rotation_size &&
         !call.block_2d && call.prescale == 1.0f && call.column_stride == 1;
}

// Asks for huge pages where memory was not touched before: with small ones, a first write to each
// page would take longer than what is computed for it.
void prefer_huge_pages(const QuantizeCall& call) {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const auto begin = (reinterpret_cast<uintptr_t>(call.codes) + kHugePage - 1) & -kHugePage;
  const auto end =
      (reinterpret_cast<uintptr_t>(call.codes) + call.rows * call.stored_k / 2) & -kHugePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
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

void quantize_rows(const Kernels& kernels, QuantizeCall call, int threads) {
  // Rows without gaps are one long row.
  if (call.row_stride == call.k && call.k == call.stored_k) {
    call.k = call.stored_k = call.row_stride = call.rows * call.k;
    call.rows = 1;
  }
  const int64_t whole = call.k / kBlock * kBlock;
  const int64_t rows = std::max<int64_t>(1, kTaskElements / call.stored_k);
  const int64_t groups = (call.rows + rows - 1) / rows;
  const int64_t pieces = (call.stored_k + kTaskElements - 1) / kTaskElements;
  parallel_for(groups * pieces, threads, [&](int64_t task, int) {
    const int64_t first = task / pieces * rows, begin = task % pieces * kTaskElements;
    const int64_t end = std::min(begin + kTaskElements, call.stored_k);
    for (int64_t row = first; row < std::min(first + rows, call.rows); ++row) {
      kernels.quantize.fast_row(call, row, begin, std::min(end, whole));
      // Columns past the last whole block end in zeros.
      if (end > whole) kernels.quantize.strip(call, row, 1, std::max(begin, whole), end);
    }
  });
}

// Rows [first, last) and columns [k_begin, k_end) of a pair.
void quantize_pair_piece(const Kernels& kernels, const QuantizeCall& along_k,
                         const QuantizeCall& along_m, int64_t first, int64_t last, int64_t k_begin,
                         int64_t k_end) {
  const int64_t whole = last / kBlock * kBlock;
  for (int64_t row = first; row < whole; row += kPairStripRows) {
    kernels.quantize.fast_pair(along_k, along_m, row,
                               static_cast<int>(std::min<int64_t>(kPairStripRows, whole - row)),
                               k_begin, k_end);
  }
  if (last < along_k.rows) return;
  // The last rows may fill no block along M, which ends in zeros.
  if (whole < last) {
    kernels.quantize.strip(along_k, whole, static_cast<int>(last - whole), k_begin, k_end);
  }
  for (int64_t column = k_begin; column < k_end && whole < along_m.stored_k; column += kStripRows) {
    kernels.quantize.strip(along_m, column,
                           static_cast<int>(std::min<int64_t>(kStripRows, k_end - column)), whole,
                           along_m.stored_k);
  }
}

}  // namespace

void quantize(const Kernels& kernels, const QuantizeCall& call, int threads) {
  prefer_huge_pages(call);
  if (kernels.quantize.fast_row && is_plain(call)) return quantize_rows(kernels, call, threads);
  quantize_strips(kernels, call, threads);
}

void quantize_pair(const Kernels& kernels, const QuantizeCall& along_k, const QuantizeCall& along_m,
                   int threads) {
  prefer_huge_pages(along_k);
  prefer_huge_pages(along_m);
  const bool fast =
      kernels.quantize.fast_pair && is_plain(along_k) && along_k.k == along_k.stored_k;
  if (!fast) {
    quantize_strips(kernels, along_k, threads);
    quantize_strips(kernels, along_m, threads);
    return;
  }
  // Pieces as tall as leaves a few to each thread: threads side by side in one line of scale bytes
  // would take it from each other.
  const int64_t columns = std::min(kLineOfScales, along_k.k);
  const int64_t across = (along_k.k + columns - 1) / columns;
  int64_t rows = kLineOfScales;
  while (rows > kPairStripRows && (along_k.rows + rows - 1) / rows * across < 2 * threads) {
    rows /= 2;
  }
  const int64_t down = (along_k.rows + rows - 1) / rows;
  parallel_for(across * down, threads, [&](int64_t task, int) {
    const int64_t first = task / across * rows, k = task % across * columns;
    quantize_pair_piece(kernels, along_k, along_m, first, std::min(first + rows, along_k.rows), k,
                        std::min(k + columns, along_k.k));
  });
}

}  // namespace mxgemm
