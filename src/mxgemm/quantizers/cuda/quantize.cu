// A matrix in FP32, bfloat16 or float16 -> packed MXFP4 with blocks along K, along M (of the
// transpose), or both from one read; the bits of the reference quantizer under every option.
//
// Work       A block of 256 threads takes a tile of 128 x 128 elements through shared memory. A
// unit
//            is what one thread quantizes alone: 32 consecutive elements along the contraction, 64
//            under a rotation of 64. Along K a warp's lanes are 32 rows, along M 32 columns (16-bit
//            inputs: pairs of columns), so that what the elements of a 32 x 32 tile share is worked
//            out over lanes. Codes and scales leave through shared memory.
// Limits     The contiguous axis of x is K; stored_k and stored_m are multiples of the unit.
#include "quantize.cuh"
#include "rounding.cuh"

#ifndef MX_STOCHASTIC
#define MX_STOCHASTIC 0
#endif
#ifndef MX_ROTATION
#define MX_ROTATION 0  // 0, 16, 32, 64
#endif
#ifndef MX_SIGNS
#define MX_SIGNS 0
#endif
#ifndef MX_BLOCK_2D
#define MX_BLOCK_2D 0
#endif
#ifndef MX_PRESCALE
#define MX_PRESCALE 0
#endif
#ifndef MX_ALONG
#define MX_ALONG 1  // 1: K, 2: M, 3: both
#endif

constexpr int kUnit = MX_ROTATION == 64 ? 64 : 32;
constexpr int kUnitBlocks = kUnit / kBlock;
constexpr bool kIs16Bit = MX_INPUT != 1;
constexpr int kElementBytes = kIs16Bit ? 2 : 4;
constexpr int kElementsPerWord = 4 / kElementBytes;
constexpr int kElementsPerVector = 16 / kElementBytes;
// 16 bytes more than the row, so that lanes that read down the rows fall into different banks.
constexpr int kPitch = kTile * kElementBytes + 16;
constexpr int kCodesPitch = kTile / 2 + 16;
constexpr int kLargestByte = 254;

// Element `part` of a word of x.
DEVICE float element(u32 word, int part) {
  if (MX_INPUT == 1) return __uint_as_float(word);
  if (MX_INPUT == 2) return __uint_as_float(part ? word & 0xFFFF0000u : word << 16);
  return half_to_float(part ? word >> 16 : word);
}

// 2^(127 - byte), also for the byte 254, whose reciprocal is subnormal.
DEVICE float reciprocal(int byte) {
  return byte == kLargestByte ? __uint_as_float(0x00400000) : power_of_two(kE8m0One - byte);
}

DEVICE float code_value(u32 code) {
  const u32 size = code & 7;
  const float value = size < 2 ? 0.5f * size : __uint_as_float((size + kOneAsCode) << kHalfBits);
  return code & 8 ? -value : value;
}

// (y - its code's value)^2 for y = x * scale.
DEVICE double squared_error(float x, double scale) {
  const double y = x * scale;
  const double error = y - code_value(nearest_code(static_cast<float>(y)));
  return __dmul_rn(error, error);
}

// The bytes that the search rule tries, in the order in which a tie is won.
constexpr int kCandidates = 3;
DEVICE int candidate_byte(int start, int candidate) {
  const int step = candidate == 2 ? -1 : candidate;
  return min(max(start + step, 0), kLargestByte);
}

struct Search {
  int start, best;
  double least;

  DEVICE void add(int byte, double total) {
    const double error = total * ldexp(1.0, 2 * (byte - start));
    if (error < least) {
      least = error;
      best = byte;
    }
  }
};

DEVICE Search search_from(u32 amax_bits) {
  const int start = closed_byte(amax_bits, 0);
  return {start, start, __longlong_as_double(0x7FF0000000000000)};
}

// Of a block that one thread holds.
DEVICE int searched_byte(const float* v, u32 amax_bits) {
  Search search = search_from(amax_bits);
#pragma unroll 1
  for (int candidate = 0; candidate < kCandidates; ++candidate) {
    const int byte = candidate_byte(search.start, candidate);
    const double scale = ldexp(1.0, kE8m0One - byte);
    double total = 0.0;
#pragma unroll
    for (int i = 0; i < kBlock; ++i) total = __dadd_rn(total, squared_error(v[i], scale));
    search.add(byte, total);
  }
  return search.best;
}

// Of a tile of 32 x 32 whose rows kLanes neighbouring lanes hold, kRows each. The sum has one
// order, row after row, so every lane adds up all of the tile, each of the first three for a
// candidate of its own.
template <int kLanes, int kRows>
DEVICE int searched_tile_byte(const float (&v)[kRows][kUnit], int block, u32 amax_bits) {
  Search search = search_from(amax_bits);
  const int mine = candidate_byte(search.start, threadIdx.x % kLanes % kCandidates);
  const double scale = ldexp(1.0, kE8m0One - mine);
  double total = 0.0;
#pragma unroll 1
  for (int lane = 0; lane < kLanes; ++lane) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int i = 0; i < kBlock; ++i) {
        const float x = __shfl_sync(~0u, v[row][block * kBlock + i], lane, kLanes);
        total = __dadd_rn(total, squared_error(x, scale));
      }
    }
  }
#pragma unroll
  for (int candidate = 0; candidate < kCandidates; ++candidate) {
    search.add(candidate_byte(search.start, candidate), __shfl_sync(~0u, total, candidate, kLanes));
  }
  return search.best;
}

// Byte of a block whose largest magnitude, or its tile's, is `amax_bits`: 255 where that is NaN or
// Inf.
template <int kLanes, int kRows>
DEVICE int block_byte(const float (&v)[kRows][kUnit], int row, int block, u32 amax_bits) {
  int byte;
  if (MX_BIAS >= 0) {
    byte = closed_byte(amax_bits, static_cast<u32>(MX_BIAS));
  } else if (MX_BLOCK_2D) {
    byte = searched_tile_byte<kLanes>(v, block, amax_bits);
  } else {
    byte = searched_byte(v[row] + block * kBlock, amax_bits);
  }
  if (amax_bits == 0) byte = kE8m0One;
  return amax_bits < kInfinityBits ? byte : kE8m0NanByte;
}

DEVICE void rotate(float (&v)[kUnit], u64 signs) {
  if (MX_SIGNS) {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      v[i] = __uint_as_float(__float_as_uint(v[i]) ^ static_cast<u32>((signs >> i & 1) << 31));
    }
  }
#pragma unroll
  for (int distance = 1; distance < MX_ROTATION; distance *= 2) {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      if (i & distance) continue;
      const float low = v[i], high = v[i + distance];
      v[i] = __fadd_rn(low, high);
      v[i + distance] = __fsub_rn(low, high);
    }
  }
  constexpr float kNormalisation = MX_ROTATION == 16   ? 0.25f
                                   : MX_ROTATION == 32 ? 0.17677669529663687f
                                                       : 0.125f;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) v[i] = __fmul_rn(v[i], kNormalisation);
}

// Eight codes of eight values, the first in the lowest nibble.
DEVICE u32 eight_codes(const float* y, u64 seed, u32 stream, u64 first) {
  u32 word = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    U32x4 words = {0, 0, 0, 0};
    if (MX_STOCHASTIC) words = philox(seed, stream, first / 4 + half);
    const u32 random[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value = y[4 * half + i];
      const u32 code = MX_STOCHASTIC ? stochastic_code(value, random[i]) : nearest_code(value);
      word |= code << (4 * (4 * half + i));
    }
  }
  return word;
}

// Codes of one unit, whose blocks have the scales `bytes`; `first` is the index of its first
// element in the matrix.
DEVICE void quantize_unit(const float (&v)[kUnit], const Quantize& q, u32 stream, u64 first,
                          const int (&bytes)[kUnitBlocks], u32 (&codes)[kUnit / 8]) {
#pragma unroll
  for (int b = 0; b < kUnitBlocks; ++b) {
    const bool finite = bytes[b] != kE8m0NanByte;
    const float scale = reciprocal(finite ? bytes[b] : kE8m0One);
#pragma unroll
    for (int w = 0; w < kBlock / 8; ++w) {
      float y[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        y[i] = __fmul_rn(v[b * kBlock + 8 * w + i], scale);
        if (MX_PRESCALE) y[i] = __fmul_rn(y[i], 0.75f);
      }
      const u32 word = eight_codes(y, q.seed, stream, first + b * kBlock + 8 * w);
      codes[b * kBlock / 8 + w] = finite ? word : 0;
    }
  }
}

// Largest magnitude of a block, as bits; those of NaN and Inf are kInfinityBits or more.
DEVICE u32 largest(const float* v) {
  u32 bits = 0;
#pragma unroll
  for (int i = 0; i < kBlock; ++i) bits = max(bits, __float_as_uint(v[i]) & 0x7FFFFFFFu);
  return bits;
}

DEVICE void load_tile(const Quantize& q, u8* tile, int row0, int k0) {
  constexpr int kVectorsPerRow = kTile / kElementsPerVector;
  if (q.vectors) {
#pragma unroll 8
    for (int i = threadIdx.x; i < kTile * kVectorsPerRow; i += kThreads) {
      const int row = i / kVectorsPerRow, column = i % kVectorsPerRow * kElementsPerVector;
      U32x4 v = {0, 0, 0, 0};
      if (row0 + row < q.rows && k0 + column < q.k) {
        v = load_streamed(reinterpret_cast<const U32x4*>(q.x + (row0 + row) * q.pitch +
                                                         (k0 + column) * kElementBytes));
      }
      *reinterpret_cast<U32x4*>(tile + row * kPitch + column * kElementBytes) = v;
    }
    return;
  }
  for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
    const int row = i / kTile, column = i % kTile;
    const bool inside = row0 + row < q.rows && k0 + column < q.k;
    const u8* source =
        q.x + (row0 + row) * q.pitch + static_cast<long long>(k0 + column) * kElementBytes;
    u8* target = tile + row * kPitch + column * kElementBytes;
    if (kIs16Bit) {
      *reinterpret_cast<u16*>(target) = inside ? *reinterpret_cast<const u16*>(source) : 0;
    } else {
      *reinterpret_cast<u32*>(target) = inside ? *reinterpret_cast<const u32*>(source) : 0;
    }
  }
}

// Where codes and scales of a tile wait for their way out: [128 rows of the output].
struct Staged {
  u8* codes;   // pitch kCodesPitch
  u8* scales;  // 4 a row
};

DEVICE void stage(const Staged& s, int row, int block, const u32 (&codes)[kUnit / 8],
                  const int (&bytes)[kUnitBlocks]) {
#pragma unroll
  for (int b = 0; b < kUnitBlocks; ++b) {
    const U32x4 v = {codes[4 * b], codes[4 * b + 1], codes[4 * b + 2], codes[4 * b + 3]};
    *reinterpret_cast<U32x4*>(s.codes + row * kCodesPitch + (block + b) * 16) = v;
    s.scales[row * kBlocks + block + b] = bytes[b];
  }
}

// Rows row0.. of an output matrix of `rows` rows, contraction elements k0.. of `stored`.
DEVICE void write_out(const Staged& s, u8* codes, u8* scales, int row0, int rows, int k0,
                      int stored) {
  for (int i = threadIdx.x; i < kTile * kBlocks; i += kThreads) {
    const int row = i / kBlocks, block = i % kBlocks;
    if (row0 + row >= rows || k0 + block * kBlock >= stored) continue;
    const long long at =
        static_cast<long long>(row0 + row) * (stored / kBlock) + k0 / kBlock + block;
    *reinterpret_cast<U32x4*>(codes + at * 16) =
        *reinterpret_cast<const U32x4*>(s.codes + row * kCodesPitch + block * 16);
    scales[at] = s.scales[i];
  }
}

DEVICE void along_k(const Quantize& q, const u8* tile, const Staged& s, int row0, int k0) {
#pragma unroll 1
  for (int unit = threadIdx.x; unit < kTile * kTile / kUnit; unit += kThreads) {
    const int row = unit / kWarp % kBlocks * kWarp + unit % kWarp, start = unit / kTile * kUnit;
    float v[1][kUnit];
#pragma unroll
    for (int i = 0; i < kUnit / kElementsPerVector; ++i) {
      const U32x4 x =
          *reinterpret_cast<const U32x4*>(tile + row * kPitch + start * kElementBytes + i * 16);
      const u32 words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int j = 0; j < kElementsPerVector; ++j) {
        v[0][i * kElementsPerVector + j] =
            element(words[j / kElementsPerWord], j % kElementsPerWord);
      }
    }
    if (MX_ROTATION) rotate(v[0], q.signs);
    u32 codes[kUnit / 8];
    int bytes[kUnitBlocks];
#pragma unroll
    for (int b = 0; b < kUnitBlocks; ++b) {
      u32 amax = largest(v[0] + b * kBlock);
      if (MX_BLOCK_2D) amax = __reduce_max_sync(~0u, amax);
      bytes[b] = block_byte<kWarp>(v, 0, b, amax);
    }
    const u64 first = static_cast<u64>(row0 + row) * q.stored_k + k0 + start;
    quantize_unit(v[0], q, q.stream, first, bytes, codes);
    stage(s, row, start / kBlock, codes, bytes);
  }
}

DEVICE void along_m(const Quantize& q, const u8* tile, const Staged& s, int row0, int k0) {
  // Of a thread; units of 64 elements are so many registers that it takes one.
  constexpr int kColumns = kUnit == 64 ? 1 : kElementsPerWord;
#pragma unroll 1
  for (int unit = threadIdx.x; unit < kTile / kColumns * (kTile / kUnit); unit += kThreads) {
    const int column = unit % (kTile / kColumns) * kColumns,
              start = unit / (kTile / kColumns) * kUnit;
    u32 words[kUnit];
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      const u8* source = tile + (start + i) * kPitch + column * kElementBytes;
      if (kColumns == kElementsPerWord) {
        words[i] = *reinterpret_cast<const u32*>(source);
      } else {
        words[i] = *reinterpret_cast<const u16*>(source);
      }
    }
    float v[kColumns][kUnit];
    u32 amax[kColumns][kUnitBlocks];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < kUnit; ++i) v[c][i] = element(words[i], c);
      if (MX_ROTATION) rotate(v[c], q.signs);
#pragma unroll
      for (int b = 0; b < kUnitBlocks; ++b) amax[c][b] = largest(v[c] + b * kBlock);
    }
    if (MX_BLOCK_2D) {
#pragma unroll
      for (int b = 0; b < kUnitBlocks; ++b) {
        u32 shared_max = amax[0][b];
        if (kColumns == 2) shared_max = max(shared_max, amax[kColumns - 1][b]);
#pragma unroll
        for (int i = kBlock / kColumns / 2; i; i /= 2) {
          shared_max = max(shared_max, __shfl_xor_sync(~0u, shared_max, i));
        }
#pragma unroll
        for (int c = 0; c < kColumns; ++c) amax[c][b] = shared_max;
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      u32 codes[kUnit / 8];
      int bytes[kUnitBlocks];
#pragma unroll
      for (int b = 0; b < kUnitBlocks; ++b) {
        bytes[b] = block_byte<kWarp / kColumns>(v, c, b, amax[c][b]);
      }
      const u64 first = static_cast<u64>(k0 + column + c) * q.stored_m + row0 + start;
      quantize_unit(v[c], q, q.stream_m, first, bytes, codes);
      stage(s, column + c, start / kBlock, codes, bytes);
    }
  }
}

// What keeps more in registers than two blocks a multiprocessor leave a thread.
constexpr bool kNeedsRegisters = (MX_BIAS < 0 && MX_BLOCK_2D) || kUnit == 64;

extern "C" __global__ void __launch_bounds__(kThreads, kNeedsRegisters ? 1 : 2)
    quantize_tiles(const __grid_constant__ Quantize q) {
  extern __shared__ __align__(16) u8 memory[];
  const int row0 = blockIdx.y * kTile, k0 = blockIdx.x * kTile;
  const Staged s = {memory + kTile * kPitch, memory + kTile * kPitch + kTile * kCodesPitch};
  load_tile(q, memory, row0, k0);
  __syncthreads();
  if (MX_ALONG & 1) {
    along_k(q, memory, s, row0, k0);
    __syncthreads();
    write_out(s, q.codes, q.scales, row0, q.rows, k0, q.stored_k);
    if (MX_ALONG == 3) __syncthreads();
  }
  if (MX_ALONG & 2) {
    along_m(q, memory, s, row0, k0);
    __syncthreads();
    write_out(s, q.codes_m, q.scales_m, k0, q.k, row0, q.stored_m);
  }
}
