// How a row is folded: one power of two for all of it, and what is left for each of its blocks.
#pragma once
#include "e2m1.cuh"
#include "powers.cuh"
#include "ptx.cuh"

constexpr int kNoScale = -1;  // `top` of a row without any nonzero block

// Largest and smallest scale of some blocks.
struct Extent {
  int top, bottom;

  DEVICE void add(int scale) {
    top = max(top, scale);
    bottom = min(bottom, scale);
  }
  DEVICE bool is_wide() const { return top - bottom > kFoldWindow; }
  DEVICE int power() const {
    return is_wide() ? kWideRow : top == kNoScale ? 0 : top - (127 + kFoldTop);
  }
  // Of the fold table, for a block of the row. A block of zeros may lie anywhere: the clamp keeps
  // it inside the table, and its codes are zeros in every row of it.
  DEVICE int table_row(int scale) const {
    if (scale == static_cast<int>(kE8m0Nan)) return kFoldNanRow;
    return is_wide() ? 0 : min(max(top - scale, 0), kFoldWindow);
  }
};

constexpr Extent kNothing = {kNoScale, static_cast<int>(kE8m0Nan)};

// The extent over all lanes of a row, to which kWarps warps of the block belong; `partial` has room
// for one extent a warp.
template <int kWarps>
DEVICE Extent reduce(Extent extent, Extent* partial) {
  extent.top = __reduce_max_sync(~0u, extent.top);
  extent.bottom = __reduce_min_sync(~0u, extent.bottom);
  if (kWarps == 1) return extent;
  const int warp = threadIdx.x / kWarp, row = warp / kWarps;
  named_barrier(1 + row, kWarp * kWarps);  // the last reduction has been read
  if (threadIdx.x % kWarp == 0) partial[warp] = extent;
  named_barrier(1 + row, kWarp * kWarps);
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    extent.top = max(extent.top, partial[row * kWarps + i].top);
    extent.bottom = min(extent.bottom, partial[row * kWarps + i].bottom);
  }
  return extent;
}
