// A matrix -> packed MXFP4 under a closed scale rule, to nearest even and without any other option,
// where rows can be read in vectors: the common case, bound by memory.
//
// quantize_rows    Along K, contiguous: four lanes a block, whole rows read and written in order.
// quantize_pairs   bfloat16 or float16 along M, and along K too unless `codes` is null, from one
//                  read.
//   Work       Blocks of 256 threads, as many as fit, walk over tiles: down kGroup of them before
//              they go on along K, so that what is written along M fills whole lines while it is
//              in L2. A thread takes blocks of 32 elements of a row, then 32 rows of two
//              neighbouring columns.
//   Pipeline   One tile in shared memory, filled by TMA, which reads zeros outside of x. While a
//              block waits for its tile the multiprocessor's other blocks are at work; a second
//              tile a block instead of a third block was slower (H200, 2026-11-30).
//   Banks      TMA moves the 16-byte units of a row by its number modulo 8. Lanes read rows or
//              columns in an order that spreads them over the banks. Eight neighbouring lanes,
//              which is what the memory system takes at once of 16 bytes each, write as few and as
//              long stretches of rows of the output as the tile has blocks.
// Limits           k = stored_k is a multiple of 32; rows of x start at multiples of 16 bytes.
#include "quantize.cuh"

// Of quantize_pairs; given by cuda/__init__.py.
#ifndef MX_GROUP
#define MX_TILE_ROWS 128
#define MX_TILE_COLUMNS 256
#define MX_BLOCKS_PER_MULTIPROCESSOR 3
#define MX_GROUP 32
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

constexpr int kGroup = MX_GROUP;
constexpr int kTileRows = MX_TILE_ROWS, kTileColumns = MX_TILE_COLUMNS;
constexpr int kRowBlocks = kTileRows / kBlock, kColumnBlocks = kTileColumns / kBlock;
constexpr int kVector = 8;        // elements of 16 bytes
constexpr int kPartColumns = 64;  // a row of a part of the tile is 128 bytes
constexpr int kRowBytes = 128, kVectorBytes = 16;
constexpr int kPartBytes = kTileRows * kRowBytes;
constexpr int kTileBytes = kTileColumns / kPartColumns * kPartBytes;
constexpr int kUnitsMoved = kRowBytes | kVectorBytes;  // from a row to the next, its units moved

// Where tiles are: `group` counts rows of kGroup tiles, `rest` walks down and then along K.
struct Place {
  int group, rest;

  DEVICE void skip(int tiles, int per_group) {
    for (rest += tiles; rest >= per_group; rest -= per_group) ++group;
  }
  DEVICE int row() const { return (group * kGroup + rest % kGroup) * kTileRows; }
  DEVICE int k() const { return rest / kGroup * kTileColumns; }
};

DEVICE void store_block(u8* codes, u8* scales, long long block, const u32 (&words)[4],
                        const Scale& scale) {
  const U32x4 v = {words[0], words[1], words[2], words[3]};
  reinterpret_cast<U32x4*>(codes)[block] = scale.finite ? v : U32x4{0, 0, 0, 0};
  scales[block] = scale.byte;
}

DEVICE void swap(u32& a, u32& b) {
  const u32 c = a;
  a = b;
  b = c;
}

// A thread takes one block of a row, neighbouring lanes neighbouring blocks.
DEVICE void quantize_along_k(const Quantize& q, u32 tile, int row0, int k0) {
  const int block = threadIdx.x % kColumnBlocks;
  // Blocks whose banks are the same read their vectors in different orders: vector j ^ moved.
  const int moved = kColumnBlocks == 8 ? block / 2 : block / 2 * 2;
#pragma unroll 1
  for (int row = threadIdx.x / kColumnBlocks; row < kTileRows; row += kThreads / kColumnBlocks) {
    const u32 first = tile + block / 2 * kPartBytes + row * kRowBytes +
                      ((block % 2 * 4 + moved) ^ (row % 8)) * kVectorBytes;
    U32x4 x[4];
    u32 sizes = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x[j] = load_shared_u32x4(first ^ (j * kVectorBytes));
      sizes = larger_of(sizes, x[j]);
    }
    const Scale scale = scale_of(max(magnitude_bits(sizes, 0), magnitude_bits(sizes, 1)));
    const Factors factors = factors_of(scale);
    u32 words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) words[j] = code_word(x[j], factors);
    if (row0 + row >= q.rows || k0 + block * kBlock >= q.k) continue;
    if (moved & 1) swap(words[0], words[1]), swap(words[2], words[3]);
    if (moved & 2) swap(words[0], words[2]), swap(words[1], words[3]);
    const long long at =
        static_cast<long long>(row0 + row) * (q.stored_k / kBlock) + k0 / kBlock + block;
    store_block(q.codes, q.scales, at, words, scale);
  }
}

// A thread takes 32 rows of two columns, neighbouring lanes blocks of rows below one another. It
// reads row i ^ moved in the place of row i, which takes the lanes into different banks; the rows
// of a word are put in order when its bytes are gathered.
DEVICE void quantize_two_columns(const Quantize& q, u32 tile, int row0, int k0, int column) {
  const int block = threadIdx.x % kRowBlocks, place = block % 4, moved = 2 * place;
  const int unit = column % kPartColumns / kVector;
  const u32 first = tile + column / kPartColumns * kPartBytes +
                    (block * kBlock + moved) * kRowBytes + (unit ^ moved) * kVectorBytes +
                    column % kVector * 2;
  u32 pairs[kBlock], sizes = 0;
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    pairs[i] = load_shared_u32((first ^ (i % 8 * kUnitsMoved)) + i / 8 * 8 * kRowBytes);
  }
#pragma unroll
  for (int i = 0; i < kBlock; ++i) sizes = larger_pair(sizes, pairs[i]);
  const Scale scales[2] = {scale_of(magnitude_bits(sizes, 0)), scale_of(magnitude_bits(sizes, 1))};
  const Factors factors = factors_of(scales[0], scales[1]);
  // Selectors of a word's bytes 0 1 4 5 (first column) and 2 3 6 7, byte i at place i ^ place.
  const u32 swapped = place % 2 ? 0x4501 : 0x5410;
  const u32 selector = place / 2 ? (swapped << 8 | swapped >> 8) & 0xFFFF : swapped;
  u32 words[2][4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    u32 four[2];  // codes of 4 rows: of the first column in the low half, of the second in the high
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const u32* rows = pairs + 8 * w + 4 * i;
      four[i] = interleave(signed_codes(rows[0], rows[2], factors),
                           signed_codes(rows[1], rows[3], factors));
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

DEVICE void quantize_along_m(const Quantize& q, u32 tile, int row0, int k0) {
#pragma unroll 1
  for (int pair = threadIdx.x / kRowBlocks; pair < kTileColumns / 2;
       pair += kThreads / kRowBlocks) {
    quantize_two_columns(q, tile, row0, k0, 2 * pair);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, MX_BLOCKS_PER_MULTIPROCESSOR)
    quantize_pairs(const __grid_constant__ TensorMap x, const __grid_constant__ Quantize q) {
  extern __shared__ __align__(1024) u8 memory[];
  __shared__ __align__(8) u64 filled;
  const u32 tile = shared_address(memory), barrier = shared_address(&filled);
  const int groups = (q.stored_m + kGroup * kTileRows - 1) / (kGroup * kTileRows);
  const int per_group = (q.k + kTileColumns - 1) / kTileColumns * kGroup;
  Place place = {0, 0};
  // On to the block's next tile, past those below the matrix that the last group has.
  const auto advance = [&](int tiles) {
    do {
      place.skip(tiles, per_group);
      tiles = gridDim.x;
    } while (place.group < groups && place.row() >= q.stored_m);
  };
  const auto load = [&] {
    mbarrier_expect(barrier, kTileBytes);
#pragma unroll
    for (int part = 0; part < kTileColumns / kPartColumns; ++part) {
      const int k = place.k() + part * kPartColumns;
      tma_load(tile + part * kPartBytes, &x, barrier, k, place.row());
    }
  };

  // Prologue
  advance(blockIdx.x);
  const bool leads = threadIdx.x == 0;
  if (leads) {
    mbarrier_init(barrier, 1);
    mbarrier_init_fence();
    if (place.group < groups) load();
  }
  __syncthreads();

  // Steady state
  for (int phase = 0; place.group < groups; phase ^= 1) {
    mbarrier_wait(barrier, phase);
    if (q.codes != nullptr) quantize_along_k(q, tile, place.row(), place.k());
    quantize_along_m(q, tile, place.row(), place.k());
    advance(gridDim.x);
    __syncthreads();  // before the tile's memory is filled again
    if (leads && place.group < groups) load();
  }
}

#endif
