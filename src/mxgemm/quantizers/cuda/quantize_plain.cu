// A matrix -> packed MXFP4 under a closed scale rule, to nearest even and without any other option,
// where rows can be read in vectors: the common case, bound by memory.
//
// quantize_rows    Along K, contiguous: four lanes a block, whole rows read and written in order.
// quantize_pairs   bfloat16 or float16 along K and along M from one read.
//   Work       Blocks of 256 threads, as many as fit, walk over tiles of 128 x 128: down kGroup of
//              them before they go on along K, so that what is written along M fills whole sectors
//              while it is in L2. A thread takes blocks of 32 elements of a row, then 32 rows of
//              two neighbouring columns.
//   Pipeline   MX_STAGES tiles in shared memory, filled by TMA, which reads zeros outside of x;
//              the next tile is asked for before this one is quantized.
//   Banks      TMA moves the 16-byte units of a row by its number modulo 8. Lanes read rows or
//              columns in an order that meets each bank once, and are laid out so that what they
//              write fills sectors of 32 bytes.
// Limits           k = stored_k is a multiple of 32; rows of x start at multiples of 16 bytes.
#include "quantize.cuh"

#ifndef MX_STAGES
#define MX_STAGES 2  // of quantize_pairs
#endif
#ifndef MX_BLOCKS_PER_MULTIPROCESSOR
#define MX_BLOCKS_PER_MULTIPROCESSOR 3
#endif

extern "C" __global__ void __launch_bounds__(kThreads)
    quantize_rows(const __grid_constant__ Quantize q) {
  constexpr int kEighths = 4;  // of a thread, kThreads apart
  const long long count = static_cast<long long>(q.rows) * (q.k / 8);
  const long long first = static_cast<long long>(blockIdx.x) * (kThreads * kEighths) + threadIdx.x;
  Eighth x[kEighths];
#pragma unroll
  for (int i = 0; i < kEighths; ++i) {
    const long long at = first + i * kThreads;
    x[i] = {};
    if (at < count) x[i] = load_eighth(q.x + at * kEighthBytes);
  }
#pragma unroll
  for (int i = 0; i < kEighths; ++i) {
    const long long at = first + i * kThreads;
    Scale scale;
    const u32 codes = quantize_eighth(x[i], scale);
    if (at >= count) continue;
    reinterpret_cast<u32*>(q.codes)[at] = codes;
    if (at % 4 == 0) q.scales[at / 4] = scale.byte;
  }
}

#if MX_INPUT != 1

constexpr int kGroup = 8;
constexpr int kVector = 8;        // elements of 16 bytes
constexpr int kHalfColumns = 64;  // a row of a half of the tile is 128 bytes
constexpr int kRowBytes = 128, kVectorBytes = 16;
constexpr int kHalfBytes = kTile * kRowBytes;
constexpr int kTileBytes = 2 * kHalfBytes;
constexpr int kUnitsMoved = kRowBytes | kVectorBytes;  // from a row to the next, its units moved

// Where tiles are: `group` counts rows of kGroup tiles, `rest` walks down and then along K.
struct Place {
  int group, rest;

  DEVICE void skip(int tiles, int per_group) {
    for (rest += tiles; rest >= per_group; rest -= per_group) ++group;
  }
  DEVICE int row() const { return (group * kGroup + rest % kGroup) * kTile; }
  DEVICE int k() const { return rest / kGroup * kTile; }
};

DEVICE void store_block(u8* codes, u8* scales, long long block, const u32 (&words)[4],
                        const Scale& scale) {
  const U32x4 v = {words[0], words[1], words[2], words[3]};
  reinterpret_cast<U32x4*>(codes)[block] = scale.finite ? v : U32x4{0, 0, 0, 0};
  scales[block] = scale.byte;
}

// A thread takes one block of a row; eight lanes two blocks of four rows.
DEVICE void quantize_along_k(const Quantize& q, u32 tile, int row0, int k0) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int block = lane % 2 + lane / 8 % 2 * 2, lane_row = lane / 2 % 4 + lane / 16 * 4;
#pragma unroll 1
  for (int row = warp * 8 + lane_row; row < kTile; row += kThreads / kBlocks) {
    const u32 first = tile + block / 2 * kHalfBytes + row * kRowBytes +
                      ((block % 2 * 4) ^ (row % 8)) * kVectorBytes;
    U32x4 x[4];
    u32 sizes = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x[j] = load_shared_u32x4(first ^ (j * kVectorBytes));
      sizes = larger_of(sizes, x[j]);
    }
    const Scale scale = scale_of(max(magnitude_bits(sizes, 0), magnitude_bits(sizes, 1)));
    const Factors factors = factors_of(scale, scale);
    u32 words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) words[j] = code_word(x[j], factors);
    if (row0 + row < q.rows && k0 + block * kBlock < q.k) {
      const long long at =
          static_cast<long long>(row0 + row) * (q.stored_k / kBlock) + k0 / kBlock + block;
      store_block(q.codes, q.scales, at, words, scale);
    }
  }
}

// A thread takes 32 rows of two columns; four lanes the four blocks of rows. It reads row
// i ^ 2 block in the place of row i, which moves the lanes of a warp into different banks; the rows
// of a word are put in order when its bytes are gathered.
DEVICE void quantize_along_m(const Quantize& q, u32 tile, int row0, int k0) {
  const int block = threadIdx.x % kBlocks, column = threadIdx.x / kBlocks * 2;
  const int unit = column % kHalfColumns / kVector;
  const u32 first = tile + column / kHalfColumns * kHalfBytes +
                    (block * kBlock + 2 * block) * kRowBytes + (unit ^ (2 * block)) * kVectorBytes +
                    column % kVector * 2;
  u32 pairs[kBlock], sizes = 0;
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    pairs[i] = load_shared_u32((first ^ (i % 8 * kUnitsMoved)) + i / 8 * 8 * kRowBytes);
  }
#pragma unroll
  for (int i = 0; i < kBlock; i += 2) {
    sizes = larger_pair(larger_pair(sizes, pairs[i]), pairs[i + 1]);
  }
  const Scale scales[2] = {scale_of(magnitude_bits(sizes, 0)), scale_of(magnitude_bits(sizes, 1))};
  const Factors factors = factors_of(scales[0], scales[1]);
  // Selectors of a word's bytes 0 1 4 5 (first column) and 2 3 6 7, byte i at place i ^ block.
  const u32 moved = block % 2 ? 0x4501 : 0x5410,
            ordered = block / 2 ? moved << 8 | moved >> 8 : moved;
  const u32 selector = ordered & 0xFFFF;
  u32 words[2][4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    u32 four[2];  // codes of 4 rows: of the first column in the low half, of the second in the high
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const u32* rows = pairs + 8 * w + 4 * i;
      four[i] =
          signed_codes(rows[0], rows[2], factors) + signed_codes(rows[1], rows[3], factors) * 16;
    }
    words[0][w] = permute_bytes(four[0], four[1], selector);
    words[1][w] = permute_bytes(four[0], four[1], selector + 0x2222);
  }
  if (row0 + block * kBlock >= q.stored_m || k0 + column >= q.k) return;
  const int blocks = q.stored_m / kBlock;
  const long long at = static_cast<long long>(k0 + column) * blocks + row0 / kBlock + block;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    store_block(q.codes_m, q.scales_m, at + c * blocks, words[c], scales[c]);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, MX_BLOCKS_PER_MULTIPROCESSOR)
    quantize_pairs(const __grid_constant__ TensorMap x, const __grid_constant__ Quantize q) {
  extern __shared__ __align__(1024) u8 memory[];
  __shared__ __align__(8) u64 filled[MX_STAGES];
  const u32 tiles = shared_address(memory), barriers = shared_address(filled);
  const int groups = (q.stored_m + kGroup * kTile - 1) / (kGroup * kTile);
  const int per_group = (q.k + kTile - 1) / kTile * kGroup;
  const auto exists = [&](const Place& place) {
    return place.group < groups && place.row() < q.stored_m;
  };
  const auto load = [&](const Place& place, int stage) {
    const u32 barrier = barriers + stage * 8, tile = tiles + stage * kTileBytes;
    mbarrier_expect(barrier, kTileBytes);
    tma_load(tile, &x, barrier, place.k(), place.row());
    tma_load(tile + kHalfBytes, &x, barrier, place.k() + kHalfColumns, place.row());
  };
  const bool leads = threadIdx.x == 0;
  if (leads) {
    for (int stage = 0; stage < MX_STAGES; ++stage) mbarrier_init(barriers + stage * 8, 1);
    mbarrier_init_fence();
  }

  // Prologue
  Place next = {0, 0};
  next.skip(blockIdx.x, per_group);
  Place place = next;
  const auto advance = [&] {
    do {
      next.skip(gridDim.x, per_group);
    } while (next.group < groups && !exists(next));
  };
  while (next.group < groups && !exists(next)) next.skip(gridDim.x, per_group);
  place = next;
  if (leads && exists(place)) load(place, 0);
  __syncthreads();

  // Steady state
  for (int count = 0; exists(place); ++count) {
    advance();
    const int stage = count % MX_STAGES;
    if (MX_STAGES == 2 && leads && exists(next)) load(next, stage ^ 1);
    mbarrier_wait(barriers + stage * 8, count / MX_STAGES & 1);
    const u32 tile = tiles + stage * kTileBytes;
    quantize_along_k(q, tile, place.row(), place.k());
    quantize_along_m(q, tile, place.row(), place.k());
    place = next;
    if (!exists(place)) break;
    __syncthreads();  // before this tile's memory is filled again
    if (MX_STAGES == 1 && leads) load(place, 0);
  }
}

#endif
