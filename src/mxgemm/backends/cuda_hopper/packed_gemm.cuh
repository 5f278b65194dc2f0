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
#include "powers.cuh"
#include "ptx.cuh"

constexpr int kTileRows = 64, kTileK = 128;
constexpr int kStepK = 32, kSteps = kTileK / kStepK;  // k of one e4m3 wgmma: one MX block
constexpr int kPieces = 4, kPieceRows = kTileRows / kPieces;
constexpr int kPieceCodeBytes = kPieceRows * kTileK / 2;
constexpr int kPieceBytes = kPieceCodeBytes + kPieceRows * kSteps;
constexpr int kTileBytes = kPieces * kPieceBytes;

// Mirrored by launch.py, field by field.
struct PackedGemm {
  Epilogue epilogue;
  const u8* weights;  // packed tiles, or canonical codes [n, k / 2]
  const i16* a_powers;
  const i16* b_powers;
  const u8* a_scales;  // E8M0 [m, k / 32]
  const u8* b_scales;
  int m, n, k;
  int early;  // stages whose B may be asked for before the previous kernel, which folds A, has
              // finished; 0: none. gemm_decoded.cu asks for the groups that its lanes hold instead.
};

// Tiles of kTokens rows of A x kRows rows of B; tokens fastest, so that a tile of B comes from
// memory once. The blocks of a cluster have the same rows of B, and perhaps no tokens.
template <int kTokens, int kRows, int kCluster>
struct PackedWalk {
  int token_tiles, count, groups;  // groups of 128 k, a stage each

  DEVICE PackedWalk(const PackedGemm& g)
      : token_tiles((g.m + kCluster * kTokens - 1) / (kCluster * kTokens) * kCluster),
        count(token_tiles * ((g.n + kRows - 1) / kRows)),
        groups((g.k + kTileK - 1) / kTileK) {}

  // All of A's rows in one tile: no division, on which the first copies would wait.
  DEVICE bool has_one_tile() const { return kCluster == 1 && token_tiles == 1; }
  DEVICE int token(int tile) const { return has_one_tile() ? 0 : tile % token_tiles * kTokens; }
  DEVICE int row(int tile) const { return (has_one_tile() ? tile : tile / token_tiles) * kRows; }
};

// A block's power: of its row when that is folded, of its own scale when the row is wide. A NaN
// block's bytes are NaN, whatever its power.
DEVICE int block_power(const u8* scales, int row, int rows, int block, int blocks, int power) {
  if (power != kWideRow) return power;
  if (row >= rows || block >= blocks) return 0;
  return scales[static_cast<long long>(row) * blocks + block] - (127 + kFoldTop);
}
