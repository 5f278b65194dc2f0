// The packed form of a weight, and the way back to folded rows.
//
// Tile       see packed_gemm.cuh.
// Powers     int16 a row, as fold.cu makes them; kWideRow with offsets 0 where the row cannot be
// folded. Pads       rows up to a multiple of 128 and k up to a multiple of 128 are zeros.
#include "e2m1.cuh"
#include "packed_gemm.cuh"
#include "ptx.cuh"

constexpr int kThreads = 128;

template <typename Byte>
DEVICE Byte* tile_of(Byte* tiles, int row, int group, int groups) {
  return tiles + (static_cast<long long>(row / kTileRows) * groups + group) * kTileBytes;
}

// One warp a row, padding rows included. Pitches are bytes from row to row.
extern "C" __global__ void __launch_bounds__(kThreads)
    pack_tiles(const u8* all_codes, const u8* all_scales, u8* tiles, i16* powers,
               long long codes_pitch, long long scales_pitch, int rows, int k) {
  const int row = blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int blocks = k / 32, groups = (k + kTileK - 1) / kTileK;
  const U32x4* codes = reinterpret_cast<const U32x4*>(all_codes + row * codes_pitch);
  const u8* scales = all_scales + row * scales_pitch;
  const bool exists = row < rows;

  int top = -1, bottom = kE8m0Nan;
  for (int block = lane; exists && block < blocks; block += kWarp) {
    const U32x4 v = codes[block];
    const int scale = scales[block];
    if (((v.x | v.y | v.z | v.w) & 0x77777777u) != 0 && scale != kE8m0Nan) {
      top = max(top, scale);
      bottom = min(bottom, scale);
    }
  }
  top = __reduce_max_sync(~0u, top);
  bottom = __reduce_min_sync(~0u, bottom);
  const bool wide = top - bottom > kFoldWindow;
  if (lane == 0) powers[row] = wide ? kWideRow : top < 0 ? 0 : top - (127 + kFoldTop);

  const int half = row / 8 % 2;
  for (int block = lane; block < groups * kSteps; block += kWarp) {
    const bool stored = exists && block < blocks;
    const U32x4 v = stored ? codes[block] : U32x4{0, 0, 0, 0};
    const int scale = stored ? scales[block] : 0;
    const int distance = wide ? 0 : min(max(top - scale, 0), kFoldWindow);
    const int step = block % kSteps;
    u8* piece =
        tile_of(tiles, row, block / kSteps, groups) + row / kPieceRows % kPieces * kPieceBytes;
    piece[kPieceCodeBytes + row % 8 * 8 + step * 2 + half] =
        8 * (scale == kE8m0Nan ? kFoldNanRow : distance);
    *reinterpret_cast<U32x4*>(piece + half * 512 + step * 128 + row % 8 * 16) = {
        tile_word(permute_bytes(v.x, v.z, 0x5410)), tile_word(permute_bytes(v.x, v.z, 0x7632)),
        tile_word(permute_bytes(v.y, v.w, 0x5410)), tile_word(permute_bytes(v.y, v.w, 0x7632))};
  }
}

// Tiles to folded rows E4M3 [rows, k], for the GEMM that takes both operands folded. A warp turns
// 16 rows x 128 k around in shared memory; the pitch of 144 bytes keeps both its writes and its
// reads free of bank conflicts.
constexpr int kPitch = kTileK + 16;
constexpr int kGroupsPerBlock = 4;

extern "C" __global__ void __launch_bounds__(kThreads)
    unpack_tiles(const u8* tiles, U32x4* folded, int rows, int k) {
  __shared__ U32x2 table[kFoldTableRows];
  __shared__ __align__(16) u8 turned[kThreads / kWarp][16 * kPitch];
  let_next_grid_start();
  fill_fold_table(table);
  __syncthreads();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int groups = (k + kTileK - 1) / kTileK, first_row = blockIdx.y * kTileRows + warp * 16;
  const u32 mine = shared_address(turned[warp]);
  const int last = min(groups, (static_cast<int>(blockIdx.x) + 1) * kGroupsPerBlock);
  for (int group = blockIdx.x * kGroupsPerBlock; group < last; ++group) {
    const u8* piece = tile_of(tiles, blockIdx.y * kTileRows, group, groups) + warp * kPieceBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const U32x4 v = load_streamed(reinterpret_cast<const U32x4*>(piece + half * 512) + lane);
      const int step = lane / 8;
      const U32x2 entry = table[piece[kPieceCodeBytes + lane % 8 * 8 + step * 2 + half] / 8];
      const U32x2 w0 = fold_tile_word(v.x, entry), w1 = fold_tile_word(v.y, entry);
      const U32x2 w2 = fold_tile_word(v.z, entry), w3 = fold_tile_word(v.w, entry);
      const u32 target = mine + (lane % 8 + 8 * half) * kPitch + step * 32;
      store_shared_u32x4(target, {w0.x, w1.x, w2.x, w3.x});
      store_shared_u32x4(target + 16, {w0.y, w1.y, w2.y, w3.y});
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int chunk = i * kWarp + lane, row = chunk / 8, column = group * kTileK + chunk % 8 * 16;
      if (first_row + row < rows && column < k) {
        folded[(static_cast<long long>(first_row + row) * k + column) / 16] =
            load_shared_u32x4(mine + row * kPitch + chunk % 8 * 16);
      }
    }
    __syncwarp();
  }
}

// sums[n] = partial[0][n] + partial[1][n] + .., in that order: the same bits on every run.
extern "C" __global__ void __launch_bounds__(kThreads)
    add_rows(const float* partial, float* sums, int count, int columns) {
  const int column = blockIdx.x * kThreads + threadIdx.x;
  if (column >= columns) return;
  float total = 0.f;
  for (int i = 0; i < count; ++i) total += partial[static_cast<long long>(i) * columns + column];
  sums[column] = total;
}
