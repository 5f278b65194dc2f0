// Row powers of canonical operands, from their scales: as fold.cu finds them.
#pragma once
#include "e2m1.cuh"
#include "packed_gemm.cuh"
#include "ptx.cuh"

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

// Stores the powers of kRows rows from `first` on as int16 at `target`; by a warp, two rows at a
// time. Rows past the last get that one's.
template <int kRows>
DEVICE void find_row_powers(const u8* codes, const u8* scales, int first, int num_rows, int blocks,
                            u32 target) {
  constexpr int kPairs = 4, kHalf = kWarp / 2;
  static_assert(kRows % (2 * kPairs) == 0, "whole batches");
  const int lane = threadIdx.x % kHalf, half = threadIdx.x % kWarp / kHalf;
  const bool vectors = (reinterpret_cast<u64>(scales) | blocks) % 16 == 0;
  for (int batch = 0; batch < kRows; batch += 2 * kPairs) {
    Extent extents[kPairs];
    if (vectors) {
      for (int i = lane; i < blocks / 16; i += kHalf) {
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          const long long row = min(first + batch + 2 * pair + half, num_rows - 1);
          const U32x4 v = reinterpret_cast<const U32x4*>(scales + row * blocks)[i];
          extents[pair].add_four(v.x);
          extents[pair].add_four(v.y);
          extents[pair].add_four(v.z);
          extents[pair].add_four(v.w);
        }
      }
    } else {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const long long row = min(first + batch + 2 * pair + half, num_rows - 1);
        for (int i = lane; i < blocks; i += kHalf) extents[pair].add(scales[row * blocks + i]);
      }
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int row = batch + 2 * pair;
      extents[pair].reduce<kHalf>();
      const u32 wide = __ballot_sync(~0u, extents[pair].is_wide());
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        if ((wide >> (kHalf * which)) & 1) {
          const long long at = min(first + row + which, num_rows - 1);
          const Extent again = nonzero_extent(codes, scales, at, blocks);
          if (half == which) extents[pair] = again;
        }
      }
      if (lane == 0) store_shared_u16(target + 2 * (row + half), extents[pair].power());
    }
  }
}
