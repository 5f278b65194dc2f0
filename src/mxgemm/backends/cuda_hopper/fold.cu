// Packed MXFP4 rows -> E4M3 rows and one power of two a row, for one or two operands in one launch.
//
//   folded[row][k] = code * 2^6 * 2^-(top - scale),  power[row] = top - 127 - 6,  top = largest
//   scale of the row
//
// so that folded * 2^power is the value, exactly, while top - scale <= 14. Where the scales alone
// spread wider, blocks of zeros and NaN blocks are left out of `top`; where the rest still does,
// the row is left unfolded (distance 0 everywhere) and marked kWideRow: the GEMM scales it block by
// block. A NaN block becomes E4M3 NaNs. Powers past the last row, up to a multiple of 128, are 0.
// Also zeroes the tickets of the GEMM that follows.
//
// Work       MX_WARPS warps a row, 8 warps a block; a lane takes 16 codes (8 bytes in, 16 out), so
// loads and stores of a warp
//            are contiguous; the next kChunks chunks are loaded while these are folded.
// Limits     k % 32 == 0; codes 8-byte, folded 16-byte aligned.
#include "e2m1.cuh"
#include "ptx.cuh"

#ifndef MX_WARPS
#define MX_WARPS 1
#endif

constexpr int kThreads = 256;
constexpr int kRowsPerBlock = kThreads / kWarp / MX_WARPS;
constexpr int kLanesPerRow = kWarp * MX_WARPS;
constexpr int kChunks = MX_WARPS == 1 ? 8 : 2;
constexpr int kWideRow = 0x4000;
constexpr int kPowersMultiple = 128;
constexpr int kNoScale = -1;  // `top` of a row without any nonzero block

// Mirrored by launch.py, field by field.
struct FoldOperand {
  const u8* codes;   // [rows, k / 2], rows `codes_pitch` bytes apart
  const u8* scales;  // [rows, k / 32], rows `scales_pitch` bytes apart
  U32x4* folded;     // [rows, k / 16]
  i16* powers;       // [rows rounded up to 128]
  long long codes_pitch, scales_pitch;
  int rows;
};

struct Fold {
  FoldOperand first, second;  // the second may have no rows
  int* tickets;
  int num_tickets, k;
};

// Largest and smallest scale of some blocks.
struct Extent {
  int top, bottom;

  DEVICE void add(int scale) {
    top = max(top, scale);
    bottom = min(bottom, scale);
  }
  DEVICE bool is_wide() const { return top - bottom > kFoldWindow; }
};

constexpr Extent kNothing = {kNoScale, static_cast<int>(kE8m0Nan)};

// The extent over all lanes of the row.
DEVICE Extent reduce(Extent extent, Extent* partial) {
  extent.top = __reduce_max_sync(~0u, extent.top);
  extent.bottom = __reduce_min_sync(~0u, extent.bottom);
  if (MX_WARPS == 1) return extent;
  const int warp = threadIdx.x / kWarp, first = warp / MX_WARPS * MX_WARPS;
  __syncthreads();
  if (threadIdx.x % kWarp == 0) partial[warp] = extent;
  __syncthreads();
  for (int i = first; i < first + MX_WARPS; ++i) {
    extent.top = max(extent.top, partial[i].top);
    extent.bottom = min(extent.bottom, partial[i].bottom);
  }
  return extent;
}

struct Row {
  const U32x2* codes;
  const u8* scales;
  int chunks;

  DEVICE Extent all_blocks(int lane) const {
    Extent extent = kNothing;
    const int blocks = chunks / 2;
    if (reinterpret_cast<unsigned long long>(scales) % 4 == 0 && blocks % 4 == 0) {
      for (int i = lane; i < blocks / 4; i += kLanesPerRow) {
        const u32 four = reinterpret_cast<const u32*>(scales)[i];
#pragma unroll
        for (int j = 0; j < 4; ++j) extent.add((four >> (8 * j)) & 255);
      }
    } else {
      for (int i = lane; i < blocks; i += kLanesPerRow) extent.add(scales[i]);
    }
    return extent;
  }

  // Blocks that are neither all zeros nor NaN.
  DEVICE Extent nonzero_blocks(int lane) const {
    Extent extent = kNothing;
    for (int i = lane; i < chunks; i += kLanesPerRow) {
      const U32x2 word = codes[i];
      const int scale = scales[i / 2];
      if (((word.x | word.y) & 0x77777777u) != 0 && scale != kE8m0Nan) extent.add(scale);
    }
    return extent;
  }

  DEVICE void load(U32x2 (&words)[kChunks], int first, int lane) const {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = first + i * kLanesPerRow + lane;
      if (chunk < chunks) words[i] = load_streamed(codes + chunk);
    }
  }
};

extern "C" __global__ void __launch_bounds__(kThreads, 3)
    fold_rows(const __grid_constant__ Fold fold) {
  __shared__ U32x2 table[kFoldTableRows];
  __shared__ Extent partial[kThreads / kWarp];
  fill_fold_table(table);
  wait_for_previous_grid();
  let_next_grid_start();  // whoever starts now finds what earlier kernels wrote
  if (blockIdx.x == 0 && threadIdx.x < fold.num_tickets) fold.tickets[threadIdx.x] = 0;
  const FoldOperand &first = fold.first, &second = fold.second;
  const int k = fold.k;

  const int lane = threadIdx.x % kLanesPerRow;
  const int first_rows = (first.rows + kPowersMultiple - 1) / kPowersMultiple * kPowersMultiple;
  int index = blockIdx.x * kRowsPerBlock + threadIdx.x / kLanesPerRow;
  const bool is_second = index >= first_rows;
  if (is_second) index -= first_rows;
  const long long codes_pitch = is_second ? second.codes_pitch : first.codes_pitch;
  const long long scales_pitch = is_second ? second.scales_pitch : first.scales_pitch;
  Row row;
  row.codes = reinterpret_cast<const U32x2*>((is_second ? second.codes : first.codes) +
                                             index * codes_pitch);
  row.scales = (is_second ? second.scales : first.scales) + index * scales_pitch;
  row.chunks = index < (is_second ? second.rows : first.rows) ? k / 16 : 0;
  U32x4* folded =
      (is_second ? second.folded : first.folded) + static_cast<long long>(index) * (k / 16);
  i16* powers = is_second ? second.powers : first.powers;

  U32x2 next[kChunks];
  row.load(next, 0, lane);
  Extent extent = reduce(row.all_blocks(lane), partial);
  if (extent.is_wide()) extent = reduce(row.nonzero_blocks(lane), partial);
  const bool wide = extent.is_wide();
  __syncthreads();  // the table
  if (lane == 0) {
    powers[index] = wide ? kWideRow : extent.top == kNoScale ? 0 : extent.top - (127 + kFoldTop);
  }
  for (int start = 0; start < row.chunks; start += kChunks * kLanesPerRow) {
    U32x2 words[kChunks];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) words[i] = next[i];
    row.load(next, start + kChunks * kLanesPerRow, lane);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = start + i * kLanesPerRow + lane;
      if (chunk < row.chunks) {
        const int scale = row.scales[chunk / 2];
        // A block of zeros may lie anywhere: the clamp keeps it inside the table, and its codes are
        // zeros in every row of it.
        const int distance = wide ? 0 : min(max(extent.top - scale, 0), kFoldWindow);
        const U32x2 entry = table[scale == kE8m0Nan ? kFoldNanRow : distance];
        const U32x2 low = fold_word(words[i].x, entry), high = fold_word(words[i].y, entry);
        folded[chunk] = {low.x, low.y, high.x, high.y};
      }
    }
  }
}
