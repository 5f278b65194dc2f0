// E2M1 codes folded into E4M3: code * 2^(6 - distance) is an E4M3 value, exactly, for distance
// 0..14 (row maximum scale minus block scale). One table row of 8 bytes a distance turns 8 codes
// into 8 bytes with two byte permutes.
#pragma once
#include "ptx.cuh"

constexpr int kFoldTop = 6;         // 6 * 2^6 = 384 is the largest folded value; E4M3 ends at 448
constexpr int kFoldWindow = 14;     // 0.5 * 2^(6 - 14) = 2^-9 is E4M3's smallest subnormal
constexpr int kFoldTableRows = 16;  // distances 0..14, then the NaN row
constexpr int kFoldNanRow = 15;
constexpr u32 kE4m3Nan = 0x7F;
constexpr u32 kE8m0Nan = 255;

// E4M3 byte of the magnitude code (0..7) at a distance (0..14, or kFoldNanRow).
DEVICE u32 fold_byte(int code, int distance) {
  constexpr u64 kHalves = 0x0C08060403020100ull;  // magnitudes in halves: 0 1 2 3 4 6 8 12
  constexpr u64 kBytes = 0x7C7874706C686000ull;   // E4M3 of magnitude * 2^6
  if (distance == kFoldNanRow) return kE4m3Nan;
  const int byte = static_cast<int>((kBytes >> (8 * code)) & 255) - 8 * distance;
  const int halves = static_cast<int>((kHalves >> (8 * code)) & 255);
  return code == 0 ? 0 : byte >= 8 ? byte : halves << (kFoldWindow - distance);
}

// Fills table[kFoldTableRows] with the threads of a block (at least 128); the caller synchronizes.
DEVICE void fill_fold_table(U32x2* table) {
  if (threadIdx.x < 8 * kFoldTableRows) {
    reinterpret_cast<u8*>(table)[threadIdx.x] = fold_byte(threadIdx.x & 7, threadIdx.x >> 3);
  }
}

// 8 codes of a word, low nibble first, to 8 E4M3 bytes.
DEVICE U32x2 fold_word(u32 word, U32x2 row) {
  const u32 selector = word & 0x77777777u;
  // prmt's sign-replicate mode (selector bit 3) on 0x80 bytes: 0xFF where the code is negative,
  // 0x80 where not.
  const u32 low_sign = permute_bytes(0x80808080u, 0x80808080u, word);
  const u32 high_sign = permute_bytes(0x80808080u, 0x80808080u, word >> 16);
  U32x2 bytes;
  bytes.x = permute_bytes(row.x, row.y, selector) | ((low_sign << 7) & 0x80808080u);
  bytes.y = permute_bytes(row.x, row.y, selector >> 16) | ((high_sign << 7) & 0x80808080u);
  return bytes;
}

// As fold_word for words of a packed tile (packed_gemm.cuh): bits 7, 15, 23, 31 hold the signs of
// codes 0..3 and bits 3, 11, 19, 27 those of codes 4..7, so that each half's signs lie where E4M3
// wants them.
DEVICE U32x2 fold_tile_word(u32 word, U32x2 row) {
  const u32 selector = word & 0x77777777u;
  U32x2 bytes;
  bytes.x = permute_bytes(row.x, row.y, selector) | (word & 0x80808080u);
  bytes.y = permute_bytes(row.x, row.y, selector >> 16) | ((word << 4) & 0x80808080u);
  return bytes;
}

// The word of a packed tile from a word of canonical codes; magnitudes stay in bits 0..2 of each
// nibble.
DEVICE u32 tile_word(u32 codes) {
  const u32 signs = codes & 0x88888888u;
  u32 word = codes & 0x77777777u;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    word |= ((signs >> (4 * i + 3)) & 1) << (8 * i + 7);   // codes 0..3
    word |= ((signs >> (4 * i + 19)) & 1) << (8 * i + 3);  // codes 4..7
  }
  return word;
}
