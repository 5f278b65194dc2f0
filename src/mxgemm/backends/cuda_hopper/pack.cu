// The packed form of a weight, and the way back to folded rows.
//
// Tile       64 rows x 128 k in 4352 bytes, tiles in order [rows / 64][k / 128]. Row r = 16 warp +
// 8 half + lane / 4 of a tile
//            lies where the wgmma lanes that multiply it read it:
//              codes    [warp 4][half 2][lane 32][word 4]: word s of lane holds k = 32 s + 4 (lane
//              % 4) .. + 3 in nibbles 0..3
//                       and k = 32 s + 16 + 4 (lane % 4) .. + 3 in nibbles 4..7, magnitudes in bits
//                       0..2 of each nibble, signs as fold_tile_word wants them;
//              offsets  [warp 4][lane / 4][half 2][step 4]: 8 * row of the fold table for block s,
//              a byte each.
// Powers     int16 a row, as fold.cu makes them; kWideRow with offsets 0 where the row cannot be
// folded. Pads       rows up to a multiple of 128 and k up to a multiple of 128 are zeros.
#include "e2m1.cuh"
#include "ptx.cuh"

constexpr int kThreads = 128;
constexpr int kTileRows = 64, kTileK = 128, kSteps = 4;
constexpr int kTileCodeBytes = kTileRows * kTileK / 2;
constexpr int kTileBytes = kTileCodeBytes + kTileRows * kSteps;
constexpr int kWideRow = 0x4000;

DEVICE u8* tile_of(u8* tiles, int row, int group, int groups) {
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

  const int warp = row / 16 % 4, half = row / 8 % 2, lane_row = row % 8;
  for (int block = lane; block < groups * kSteps; block += kWarp) {
    const bool stored = exists && block < blocks;
    const U32x4 v = stored ? codes[block] : U32x4{0, 0, 0, 0};
    const int scale = stored ? scales[block] : 0;
    const int distance = wide ? 0 : min(max(top - scale, 0), kFoldWindow);
    const int step = block % kSteps;
    u8* tile = tile_of(tiles, row, block / kSteps, groups);
    tile[kTileCodeBytes + warp * 64 + lane_row * 8 + half * 4 + step] =
        8 * (scale == kE8m0Nan ? kFoldNanRow : distance);
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const u32 low = words[t / 2] >> (t % 2 * 16), high = words[2 + t / 2] >> (t % 2 * 16);
      const u32 word = tile_word((low & 0xFFFF) | (high << 16));
      u8* target = tile + warp * 1024 + half * 512 + (lane_row * 4 + t) * 16 + step * 4;
      *reinterpret_cast<u32*>(target) = word;
    }
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
    const u8* tile =
        tiles + (static_cast<long long>(blockIdx.y) * groups + group) * kTileBytes + warp * 1024;
    const U32x2 offsets = *reinterpret_cast<const U32x2*>(tile + kTileCodeBytes - warp * 1024 +
                                                          warp * 64 + lane / 4 * 8);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const U32x4 v = load_streamed(reinterpret_cast<const U32x4*>(tile + half * 512) + lane);
      const u32 words[kSteps] = {v.x, v.y, v.z, v.w};
      const u32 row = mine + (lane / 4 + 8 * half) * kPitch + lane % 4 * 4;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const u32 offset = ((half ? offsets.y : offsets.x) >> (8 * step)) & 255;
        const U32x2 bytes = fold_tile_word(words[step], table[offset / 8]);
        store_shared_u32(row + step * 32, bytes.x);
        store_shared_u32(row + step * 32 + 16, bytes.y);
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int piece = i * kWarp + lane, row = piece / 8, column = group * kTileK + piece % 8 * 16;
      if (first_row + row < rows && column < k) {
        folded[(static_cast<long long>(first_row + row) * k + column) / 16] =
            load_shared_u32x4(mine + row * kPitch + piece % 8 * 16);
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
