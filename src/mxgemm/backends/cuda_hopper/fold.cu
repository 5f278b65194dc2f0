// Packed MXFP4 rows -> E4M3 rows and one power of two a row, for one or two operands in one launch.
//
//   folded[row][k] = code * 2^6 * 2^-(top - scale),  power[row] = top - 127 - 6,  top = largest scale of the row
//
// so that folded * 2^power is the value, exactly, while top - scale <= 14. Blocks of zeros have no say in `top` and need no
// window. Also zeroes the tickets of the GEMM that follows. A row with a wider spread is left unfolded (distance 0 everywhere) and marked kWideRow: the GEMM scales it block by
// block. A NaN block becomes E4M3 NaNs and has no say either. Powers past the last row, up to a multiple of 128, are 0.
//
// Work       MX_WARPS warps a row, 8 warps a block; a lane takes 16 codes (8 bytes in, 16 out), so loads and stores of a warp
//            are contiguous. A row is read once when 8 chunks a lane hold it, else its rest
//            once more from L2.
// Limits     k % 32 == 0; pointers 16-byte aligned.
#include "e2m1.cuh"
#include "ptx.cuh"

#ifndef MX_WARPS
#define MX_WARPS 1
#endif

constexpr int kThreads = 256;
constexpr int kRowsPerBlock = kThreads / kWarp / MX_WARPS;
constexpr int kChunks = 8;
constexpr int kLanesPerRow = kWarp * MX_WARPS;
constexpr int kWideRow = 0x4000;
constexpr int kPowersMultiple = 128;
constexpr int kNoScale = -1;  // what a row without any nonzero block has for `top`

// Mirrored by launch.py, field by field.
struct FoldOperand {
  const u8* codes;   // [rows, k / 2], rows `codes_pitch` bytes apart
  const u8* scales;  // [rows, k / 32], rows `scales_pitch` bytes apart
  U32x4* folded;     // [rows, k / 16]
  i16* powers;       // [rows rounded up to 128]
  long long codes_pitch, scales_pitch;
  int rows;
};

struct Extent {
  int top, bottom;  // largest and smallest scale of the nonzero finite blocks seen
};

DEVICE void widen(Extent& extent, U32x2 codes, int scale) {
  const bool counts = ((codes.x | codes.y) & 0x77777777u) != 0 && scale != kE8m0Nan;
  if (counts) {
    extent.top = max(extent.top, scale);
    extent.bottom = min(extent.bottom, scale);
  }
}

// The extent over all lanes of the row.
DEVICE Extent reduce(Extent extent, Extent* partial) {
  extent.top = __reduce_max_sync(~0u, extent.top);
  extent.bottom = __reduce_min_sync(~0u, extent.bottom);
  if (MX_WARPS == 1) return extent;
  const int warp = threadIdx.x / kWarp, first = warp / MX_WARPS * MX_WARPS;
  if (threadIdx.x % kWarp == 0) partial[warp] = extent;
  __syncthreads();
  for (int i = first; i < first + MX_WARPS; ++i) {
    extent.top = max(extent.top, partial[i].top);
    extent.bottom = min(extent.bottom, partial[i].bottom);
  }
  return extent;
}

extern "C" __global__ void __launch_bounds__(kThreads, 3)
    fold_rows(const FoldOperand first, const FoldOperand second, int k, int* tickets,
              int num_tickets) {
  __shared__ U32x2 table[kFoldTableRows];
  __shared__ Extent partial[kThreads / kWarp];
  let_next_grid_start();
  fill_fold_table(table);
  if (blockIdx.x == 0 && threadIdx.x < num_tickets) tickets[threadIdx.x] = 0;

  const int lane = threadIdx.x % kLanesPerRow;
  const int first_rows = (first.rows + kPowersMultiple - 1) / kPowersMultiple * kPowersMultiple;
  int row = blockIdx.x * kRowsPerBlock + threadIdx.x / kLanesPerRow;
  const bool is_second = row >= first_rows;
  if (is_second) row -= first_rows;
  const int chunks = row < (is_second ? second.rows : first.rows) ? k / 16 : 0;
  const long long codes_pitch = is_second ? second.codes_pitch : first.codes_pitch;
  const long long scales_pitch = is_second ? second.scales_pitch : first.scales_pitch;
  const U32x2* codes = reinterpret_cast<const U32x2*>(
      (is_second ? second.codes : first.codes) + row * codes_pitch);
  const u8* scales = (is_second ? second.scales : first.scales) + row * scales_pitch;
  U32x4* folded =
      (is_second ? second.folded : first.folded) + static_cast<long long>(row) * (k / 16);
  i16* powers = is_second ? second.powers : first.powers;

  U32x2 held[kChunks];
  Extent extent = {kNoScale, kE8m0Nan};
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int chunk = i * kLanesPerRow + lane;
    held[i] = {0, 0};
    if (chunk < chunks) held[i] = load_streamed(codes + chunk);
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int chunk = i * kLanesPerRow + lane;
    if (chunk < chunks) widen(extent, held[i], scales[chunk / 2]);
  }
  for (int chunk = kChunks * kLanesPerRow + lane; chunk < chunks; chunk += kLanesPerRow) {
    widen(extent, codes[chunk], scales[chunk / 2]);
  }
  __syncthreads();  // the table
  extent = reduce(extent, partial);

  const bool wide = extent.top - extent.bottom > kFoldWindow;
  if (lane == 0) {
    powers[row] = wide                     ? kWideRow
                  : extent.top == kNoScale ? 0
                                           : extent.top - (127 + kFoldTop);
  }
  auto fold = [&](int chunk, U32x2 word) {
    const int scale = scales[chunk / 2];
    // A block of zeros may lie anywhere: the clamp keeps it inside the table, and its codes are zeros in every row of it.
    const int distance = wide ? 0 : min(max(extent.top - scale, 0), kFoldWindow);
    const U32x2 entry = table[scale == kE8m0Nan ? kFoldNanRow : distance];
    const U32x2 low = fold_word(word.x, entry), high = fold_word(word.y, entry);
    folded[chunk] = {low.x, low.y, high.x, high.y};
  };
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int chunk = i * kLanesPerRow + lane;
    if (chunk < chunks) fold(chunk, held[i]);
  }
  for (int chunk = kChunks * kLanesPerRow + lane; chunk < chunks; chunk += kLanesPerRow) {
    fold(chunk, codes[chunk]);
  }
}
