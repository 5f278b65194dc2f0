// Packed MXFP4 rows -> E4M3 rows and one power of two a row, for one or two operands in one launch.
//
//   folded[row][k] = code * 2^6 * 2^-(top - scale),  power[row] = top - 127 - 6,  top = largest
//   scale of the row
//
// so that folded * 2^power is the value, exactly, while top - scale <= 14. Where the scales alone
// spread wider, blocks of zeros and NaN blocks are left out of `top`; where the rest still does,
// the row is left unfolded (distance 0 everywhere) and marked kWideRow: the GEMM scales it block by
// block. A NaN block becomes E4M3 NaNs. Powers past the last row, up to a multiple of 128, are 0
// where the grid goes that far: before a kernel that decodes its weight it does not.
// Also zeroes the tickets of the GEMM that follows.
//
// Work       MX_WARPS warps a row; a lane takes 16 codes (8 bytes in, 16 out) at a time, so that
//            loads and stores of a warp are contiguous. The codes and scales of kChunks of them are
//            all asked for at once, which is the whole row up to 512 * kChunks * MX_WARPS codes:
//            its scales are read once.
// Limits     k % 32 == 0; codes 8-byte, folded 16-byte aligned.
#include "fold_row.cuh"

#ifndef MX_WARPS
#define MX_WARPS 1
#endif
#ifndef MX_BLOCK_WARPS
#define MX_BLOCK_WARPS 8
#endif
#ifndef MX_CHUNKS
#define MX_CHUNKS 8
#endif

constexpr int kThreads = kWarp * MX_BLOCK_WARPS;
constexpr int kRowsPerBlock = MX_BLOCK_WARPS / MX_WARPS;
constexpr int kLanesPerRow = kWarp * MX_WARPS;
constexpr int kChunks = MX_CHUNKS;
constexpr int kBatch = kChunks * kLanesPerRow;
static_assert(MX_WARPS == 1 || kRowsPerBlock < 16, "a named barrier for every row");

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

// Codes and scales of some chunks of a row.
struct Batch {
  U32x2 words[kChunks];
  u32 scales[kChunks];
};

struct Row {
  const U32x2* codes;
  const u8* scales;
  int chunks;

  // Brings the row to L2, which stays coherent where the kernel before still writes it.
  DEVICE void prefetch() const {
    if (chunks == 0) return;
    prefetch_unaligned(codes, chunks * 8);
    prefetch_unaligned(scales, chunks / 2);
  }

  DEVICE void load(Batch& batch, int first) const {
    const U32x2* first_codes = codes + first;
    const u8* first_scale = scales + first / 2;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (first + i * kLanesPerRow < chunks) {
        batch.words[i] = load_streamed(first_codes + i * kLanesPerRow);
        batch.scales[i] = first_scale[i * kLanesPerRow / 2];
      }
    }
  }

  // Of all blocks, the first batch of which has been loaded.
  DEVICE Extent all_blocks(const Batch& batch, int lane) const {
    Extent extent = kNothing;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (lane + i * kLanesPerRow < chunks) extent.add(batch.scales[i]);
    }
#pragma unroll 1
    for (int i = lane + kBatch; i < chunks; i += kLanesPerRow) extent.add(scales[i / 2]);
    return extent;
  }

  // Blocks that are neither all zeros nor NaN.
  DEVICE Extent nonzero_blocks(int lane) const {
    Extent extent = kNothing;
#pragma unroll 1
    for (int i = lane; i < chunks; i += kLanesPerRow) {
      const U32x2 word = codes[i];
      const int scale = scales[i / 2];
      if (((word.x | word.y) & 0x77777777u) != 0 && scale != kE8m0Nan) extent.add(scale);
    }
    return extent;
  }
};

extern "C" __global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    fold_rows(const __grid_constant__ Fold fold) {
  __shared__ U32x2 table[kFoldTableRows];
  __shared__ Extent partial[kThreads / kWarp];
  const FoldOperand &first = fold.first, &second = fold.second;
  const int k = fold.k;

  const int lane = threadIdx.x % kLanesPerRow;
  const int first_rows = rows_with_powers(first.rows);
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

  if (lane == 0) row.prefetch();
  wait_for_previous_grid();
  if (blockIdx.x == 0 && fold.num_tickets) {  // the GEMM takes them before this grid has ended
    for (int i = threadIdx.x; i < fold.num_tickets; i += kThreads) fold.tickets[i] = 0;
    __threadfence();
    __syncthreads();
  }
  let_next_grid_start();  // whoever starts now finds what earlier kernels wrote

  Batch batch;
  row.load(batch, lane);
  fill_fold_table(table);
  Extent extent = reduce<MX_WARPS>(row.all_blocks(batch, lane), partial);
  if (extent.is_wide()) extent = reduce<MX_WARPS>(row.nonzero_blocks(lane), partial);
  __syncthreads();  // the table
  if (lane == 0) powers[index] = extent.power();
  for (int start = lane; start < row.chunks; start += kBatch) {
    if (start != lane) row.load(batch, start);
    U32x4* target = folded + start;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (start + i * kLanesPerRow < row.chunks) {
        const U32x2 entry = table[extent.table_row(batch.scales[i])];
        const U32x2 low = fold_word(batch.words[i].x, entry),
                    high = fold_word(batch.words[i].y, entry);
        target[i * kLanesPerRow] = {low.x, low.y, high.x, high.y};
      }
    }
  }
}
