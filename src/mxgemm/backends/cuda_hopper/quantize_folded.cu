// A matrix -> folded rows from one read: the bits of quantize_rows followed by fold_rows.
//
// Work       MX_WARPS warps a row, which they keep in registers: a lane quantizes kEighths vectors
// of
//            8 elements, the row's scales meet in shared memory, and the codes leave as E4M3.
// Limits     A closed scale rule, to nearest even, no other option; k = stored_k is a multiple of
//            32, at most 256 * kEighths * MX_WARPS; rows of x start at multiples of 16 bytes.
#include "block_codes.cuh"
#include "fold_row.cuh"

#ifndef MX_WARPS
#define MX_WARPS 4
#endif

constexpr int kThreads = MX_WARPS > 8 ? kWarp * MX_WARPS : 256;
constexpr int kRowsPerBlock = kThreads / kWarp / MX_WARPS;
constexpr int kLanesPerRow = kWarp * MX_WARPS;
constexpr int kEighths = MX_INPUT == 1 ? 4 : 8;

// Mirrored by quantize_folded.py, field by field.
struct QuantizeFolded {
  const u8* x;    // [rows, k], rows `pitch` bytes apart
  U32x2* folded;  // [rows, k / 8]
  u8* scales;     // [rows, k / 32]
  i16* powers;    // [rows rounded up to 128]
  long long pitch;
  int rows, k;
};

extern "C" __global__ void __launch_bounds__(kThreads)
    quantize_folded(const __grid_constant__ QuantizeFolded q) {
  __shared__ U32x2 table[kFoldTableRows];
  __shared__ Extent partial[kThreads / kWarp];
  const int lane = threadIdx.x % kLanesPerRow;
  const int row = blockIdx.x * kRowsPerBlock + threadIdx.x / kLanesPerRow;
  const int count = row < q.rows ? q.k / 8 : 0;

  Eighth x[kEighths];
  const u8* source = q.x + row * q.pitch + lane * kEighthBytes;
#pragma unroll
  for (int i = 0; i < kEighths; ++i) {
    x[i] = {};
    if (lane + i * kLanesPerRow < count) {
      x[i] = load_eighth(source + i * kLanesPerRow * kEighthBytes);
    }
  }
  fill_fold_table(table);
  u32 codes[kEighths];
  int scales[kEighths];
  Extent all = kNothing, nonzero = kNothing;
#pragma unroll
  for (int i = 0; i < kEighths; ++i) {
    Scale scale;
    codes[i] = quantize_eighth(x[i], scale);
    scales[i] = scale.byte;
    if (lane + i * kLanesPerRow >= count) continue;
    all.add(scale.byte);
    if (codes[i] & 0x77777777u) nonzero.add(scale.byte);
  }
  Extent extent = reduce<MX_WARPS>(all, partial);
  if (extent.is_wide()) extent = reduce<MX_WARPS>(nonzero, partial);
  __syncthreads();  // the table
  if (lane == 0) q.powers[row] = extent.power();

  const long long first = static_cast<long long>(row) * (q.k / 8) + lane;
#pragma unroll
  for (int i = 0; i < kEighths; ++i) {
    if (lane + i * kLanesPerRow >= count) continue;
    const long long at = first + i * kLanesPerRow;
    q.folded[at] = fold_word(codes[i], table[extent.table_row(scales[i])]);
    if (lane % 4 == 0) q.scales[at / 4] = scales[i];
  }
}
