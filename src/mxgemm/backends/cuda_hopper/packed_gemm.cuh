// What the kernels for packed weights share: the packed tile, their arguments, their walk.
//
// Tile       64 rows x 128 k in 4352 bytes, tiles in order [rows / 64][k / 128]: 4 pieces of 16
// rows
//            (row r = 16 piece + 8 half + i), each
//              codes    [half 2][step 4][i 8][word 4]: word q of row and step holds
//                       k = 32 step + 4 q .. + 3 in nibbles 0..3 and k = 32 step + 16 + 4 q .. + 3
//                       in nibbles 4..7, magnitudes in bits 0..2 of each nibble, signs as
//                       fold_tile_word wants them;
//              offsets  [i 8][step 4][half 2]: 8 * row of the fold table for the block, a byte
//              each.
//            So ldmatrix gives every lane of a wgmma its words of four steps, and one lane that
//            wants a whole block finds it in 16 bytes.
#pragma once
#include "e2m1.cuh"
#include "epilogue.cuh"
#include "ptx.cuh"

constexpr int kTileRows = 64, kTileK = 128;
constexpr int kStepK = 32, kSteps = kTileK / kStepK;  // k of one e4m3 wgmma: one MX block
constexpr int kPieces = 4, kPieceRows = kTileRows / kPieces;
constexpr int kPieceCodeBytes = kPieceRows * kTileK / 2;
constexpr int kPieceBytes = kPieceCodeBytes + kPieceRows * kSteps;
constexpr int kTileBytes = kPieces * kPieceBytes;
constexpr int kWideRow = 0x4000;  // power of a row that is not folded; larger than any other
constexpr int kEasyPower = 60;    // up to here powers may be multiplied one after the other

// Mirrored by launch.py, field by field.
struct PackedGemm {
  Epilogue epilogue;
  const u8* weights;  // packed tiles, or canonical codes [n, k / 2]
  const i16* a_powers;
  const i16* b_powers;
  const u8* a_scales;  // E8M0 [m, k / 32]
  const u8* b_scales;
  int m, n, k;
  int early;  // stages whose B may be asked for before the previous kernel has finished
};

// Tiles of kTokens rows of A x kRows rows of B; tokens fastest, so that a tile of B comes from
// memory once.
template <int kTokens, int kRows>
struct PackedWalk {
  int token_tiles, count, groups;  // groups of 128 k, a stage each

  DEVICE PackedWalk(const PackedGemm& g)
      : token_tiles((g.m + kTokens - 1) / kTokens),
        count(token_tiles * ((g.n + kRows - 1) / kRows)),
        groups((g.k + kTileK - 1) / kTileK) {}

  DEVICE int token(int tile) const { return tile % token_tiles * kTokens; }
  DEVICE int row(int tile) const { return tile / token_tiles * kRows; }
};

// A block's power: of its row when that is folded, of its own scale when the row is wide. A NaN
// block's bytes are NaN, whatever its power.
DEVICE int block_power(const u8* scales, int row, int rows, int block, int blocks, int power) {
  if (power != kWideRow) return power;
  if (row >= rows || block >= blocks) return 0;
  return scales[static_cast<long long>(row) * blocks + block] - (127 + kFoldTop);
}

// Largest scale and largest 255 - scale of some blocks, as two 16-bit numbers.
struct Extent {
  u32 both = 0;

  DEVICE void add(u32 scale) { both = max_u16x2(both, scale | (255 - scale) << 16); }
  DEVICE void add_four(u32 scales) {
    const u32 even = scales & 0x00FF00FFu, odd = (scales >> 8) & 0x00FF00FFu;
    const u32 top = max_u16x2(even, odd), low = max_u16x2(even ^ 0x00FF00FFu, odd ^ 0x00FF00FFu);
    both = max_u16x2(both, permute_bytes(top, low, 0x5410));
    both = max_u16x2(both, permute_bytes(top, low, 0x7632));
  }
  // The extent of kLanes neighbouring lanes' blocks.
  template <int kLanes>
  DEVICE void reduce() {
#pragma unroll
    for (int i = kLanes / 2; i > 0; i /= 2) both = max_u16x2(both, __shfl_xor_sync(~0u, both, i));
  }
  DEVICE int top() const { return both & 0xFFFF; }
  DEVICE bool is_wide() const { return top() + static_cast<int>(both >> 16) - 255 > kFoldWindow; }
  DEVICE int power() const {
    return both == 0 ? 0 : is_wide() ? kWideRow : top() - (127 + kFoldTop);
  }
};

// The extent of a row's blocks that are neither zeros nor NaN; by a whole warp.
DEVICE Extent nonzero_extent(const u8* codes, const u8* scales, long long row, int blocks) {
  Extent found;
  for (int i = threadIdx.x % kWarp; i < blocks; i += kWarp) {
    const U32x4 v = reinterpret_cast<const U32x4*>(codes)[row * blocks + i];
    const u32 scale = scales[row * blocks + i];
    if (((v.x | v.y | v.z | v.w) & 0x77777777u) != 0 && scale != kE8m0Nan) found.add(scale);
  }
  found.reduce<kWarp>();
  return found;
}

// Where a block's row of the fold table starts, from its scale and its row's power.
DEVICE u32 fold_offset(u32 scale, int power) {
  if (scale == kE8m0Nan) return 8 * kFoldNanRow;
  const int distance = power + 127 + kFoldTop - static_cast<int>(scale);
  return power == kWideRow ? 0 : 8 * min(max(distance, 0), kFoldWindow);
}
