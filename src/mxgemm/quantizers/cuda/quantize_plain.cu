// A matrix -> packed MXFP4 under a closed scale rule, to nearest even and without any other option,
// where rows can be read in vectors: the common case, bound by memory.
//
// quantize_rows    Along K, contiguous: four lanes a block, whole rows read and written in order.
// quantize_pairs   bfloat16 or float16 along M, and along K too unless `codes` is null, from one
//                  read.
//   Work       One block of 512 threads a multiprocessor walks over tiles of 256 x 256: down kGroup
//              of them before it goes on along K, together with all other blocks. A tile is four
//              parts of 64 columns. A thread takes 32 rows of two columns of the parts as they
//              come, then blocks of 32 elements of whole rows, so that both outputs are written in
//              whole lines of 128 bytes, by eight neighbouring lanes: written in halves and
//              quarters, they cost memory a third of its throughput.
//   Pipeline   A ring of seven parts in shared memory, filled by TMA, which reads zeros outside of
//              x; emptied four at a time when a tile is done, while three of the next are there.
//   Banks      TMA moves the 16-byte units of a row by its number modulo 8. Lanes read rows or
//              columns in an order that spreads them over the banks.
// Limits           k = stored_k is a multiple of 32; rows of x start at multiples of 16 bytes.
#include "quantize.cuh"

// Of quantize_pairs; given by cuda/__init__.py.
#ifndef MX_GROUP
#define MX_GROUP 8
#define MX_PAIRS_THREADS 512
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
constexpr int kPairsThreads = MX_PAIRS_THREADS;
constexpr int kSide = 256, kSideBlocks = kSide / kBlock;
constexpr int kPartColumns = 64, kParts = kSide / kPartColumns;
constexpr int kRing = 7;    // parts in shared memory
constexpr int kVector = 8;  // elements of 16 bytes
constexpr int kRowBytes = 128, kVectorBytes = 16;
constexpr int kPartBytes = kSide * kRowBytes;
constexpr int kUnitsMoved = kRowBytes | kVectorBytes;  // from a row to the next, its units moved

// Where tiles are: `group` counts rows of kGroup tiles, `rest` walks down and then along K.
struct Place {
  int group, rest;

  DEVICE void skip(int tiles, int per_group) {
    for (rest += tiles; rest >= per_group; rest -= per_group) ++group;
  }
  DEVICE int row() const { return (group * kGroup + rest % kGroup) * kSide; }
  DEVICE int k() const { return rest / kGroup * kSide; }
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

// The ring: part number `index` of all that a block works on lies in slot index % kRing.
struct Ring {
  u32 parts, barriers;

  DEVICE u32 part(int index) const { return parts + index % kRing * kPartBytes; }
  DEVICE u32 barrier(int index) const { return barriers + index % kRing * 8; }
  DEVICE void wait(int index) const { mbarrier_wait(barrier(index), index / kRing & 1); }
};

// A thread takes one block of a row, neighbouring lanes neighbouring blocks.
DEVICE void quantize_along_k(const Quantize& q, const Ring& ring, int index, int row0, int k0) {
  const int block = threadIdx.x % kSideBlocks;
  const u32 part = ring.part(index + block / 2);
  // Blocks whose banks are the same read their vectors in different orders: vector j ^ moved.
  const int moved = block / 2;
#pragma unroll 1
  for (int row = threadIdx.x / kSideBlocks; row < kSide; row += kPairsThreads / kSideBlocks) {
    const u32 first = part + row * kRowBytes + ((block % 2 * 4 + moved) ^ (row % 8)) * kVectorBytes;
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

// A thread takes 32 rows of two columns of a part, neighbouring lanes blocks of rows below one
// another. It reads row i ^ moved in the place of row i, which takes the lanes into different
// banks; the rows of a word are put in order when its bytes are gathered.
DEVICE void quantize_along_m(const Quantize& q, u32 part, int thread, int row0, int k0) {
  const int block = thread % kSideBlocks, place = block % 4, moved = 2 * place;
  const int column = thread / kSideBlocks * 2, unit = column / kVector;
  const u32 first = part + (block * kBlock + moved) * kRowBytes + (unit ^ moved) * kVectorBytes +
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

extern "C" __global__ void __launch_bounds__(kPairsThreads, 1)
    quantize_pairs(const __grid_constant__ TensorMap x, const __grid_constant__ Quantize q) {
  extern __shared__ __align__(1024) u8 memory[];
  __shared__ __align__(8) u64 filled[kRing];
  const Ring ring = {shared_address(memory), shared_address(filled)};
  const int groups = (q.stored_m + kGroup * kSide - 1) / (kGroup * kSide);
  const int per_group = (q.k + kSide - 1) / kSide * kGroup;
  // On to the block's next tile, past those below the matrix that the last group has.
  const auto advance = [&](Place& place, int tiles) {
    do {
      place.skip(tiles, per_group);
      tiles = gridDim.x;
    } while (place.group < groups && place.row() >= q.stored_m);
  };
  Place place = {0, 0};
  advance(place, blockIdx.x);

  // What the first thread asks for next.
  Place asked = place;
  int asked_index = 0;
  const auto ask = [&](int parts) {
    for (int i = 0; i < parts && asked.group < groups; ++i) {
      const u32 barrier = ring.barrier(asked_index);
      mbarrier_expect(barrier, kPartBytes);
      const int k = asked.k() + asked_index % kParts * kPartColumns;
      tma_load(ring.part(asked_index), &x, barrier, k, asked.row());
      if (++asked_index % kParts == 0) advance(asked, gridDim.x);
    }
  };

  // Prologue
  if (threadIdx.x == 0) {
    for (int i = 0; i < kRing; ++i) mbarrier_init(ring.barrier(i), 1);
    mbarrier_init_fence();
    ask(kRing);
  }
  __syncthreads();

  // Steady state
  constexpr int kPartThreads = kSideBlocks * kPartColumns / 2;
  const int half = threadIdx.x / kPartThreads, thread = threadIdx.x % kPartThreads;
  for (int index = 0; place.group < groups; index += kParts) {
#pragma unroll 1
    for (int part = half; part < kParts; part += kPairsThreads / kPartThreads) {
      ring.wait(index + part);
      const int k0 = place.k() + part * kPartColumns;
      quantize_along_m(q, ring.part(index + part), thread, place.row(), k0);
    }
    if (q.codes != nullptr) {
      for (int part = 0; part < kParts; ++part) ring.wait(index + part);
      quantize_along_k(q, ring, index, place.row(), place.k());
    }
    advance(place, gridDim.x);
    __syncthreads();  // before this tile's memory is filled again
    if (threadIdx.x == 0) ask(kParts);
  }
}

#endif
