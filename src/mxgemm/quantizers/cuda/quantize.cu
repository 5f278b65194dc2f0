// A matrix in FP32, bfloat16 or float16 -> packed MXFP4 with blocks along K, along M (of the
// transpose), or both from one read; the bits of the reference quantizer under every option.
//
// quantize_tiles   A block of 256 threads takes a tile of 128 x 128 elements through shared memory.
// A unit is what one thread
//                  quantizes alone: 32 consecutive elements along the contraction, 64 under a
//                  rotation of 64. Along K a warp's lanes are 32 rows, along M 32 columns (16-bit
//                  inputs: pairs of columns), so that the largest magnitude of a 32 x 32 tile is a
//                  reduction over lanes. Codes and scales leave through shared memory.
// quantize_rows    bfloat16 along K, contiguous, k = stored_k, closed rules and no other option:
// straight from memory. quantize_pairs   the same options in both directions. Limits           the
// contiguous axis of x is K; stored_k and stored_m are multiples of the unit.
#include "ptx.cuh"
#include "rounding.cuh"

#ifndef MX_INPUT
#define MX_INPUT 2  // 1: float32, 2: bfloat16, 3: float16
#endif
#ifndef MX_BIAS
#define MX_BIAS 0x200000  // of the closed scale rules; -1: search
#endif
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

#define MX_PLAIN \
  (MX_INPUT == 2 && MX_BIAS >= 0 && !MX_STOCHASTIC && !MX_ROTATION && !MX_BLOCK_2D && !MX_PRESCALE)

constexpr int kThreads = 256;
constexpr int kTile = 128;
constexpr int kBlock = 32;
constexpr int kBlocks = kTile / kBlock;
constexpr int kUnit = MX_ROTATION == 64 ? 64 : 32;
constexpr int kUnitBlocks = kUnit / kBlock;
constexpr bool kIs16Bit = MX_INPUT != 1;
constexpr int kElementBytes = kIs16Bit ? 2 : 4;
constexpr int kElementsPerWord = 4 / kElementBytes;
constexpr int kElementsPerVector = 16 / kElementBytes;
// 16 bytes more than the row, so that lanes that read down the rows fall into different banks.
constexpr int kPitch = kTile * kElementBytes + 16;
constexpr int kCodesPitch = kTile / 2 + 16;
constexpr u32 kInfinityBits = 0x7F800000;
constexpr int kE8m0One = 127, kE8m0Nan = 255, kLargestByte = 254;
// bfloat16 times a power of two is exact in float16 wherever rounding to E2M1 looks.
constexpr bool kRoundsInHalf = MX_INPUT == 2 && !MX_ROTATION && !MX_STOCHASTIC && !MX_PRESCALE;

// Mirrored by cuda/__init__.py, field by field.
struct Quantize {
  const u8* x;           // [rows, k]
  u8* codes;             // [rows, stored_k / 2]
  u8* scales;            // [rows, stored_k / 32]
  u8* codes_m;           // [k, stored_m / 2]
  u8* scales_m;          // [k, stored_m / 32]
  long long pitch;       // bytes from row to row of x
  u64 seed, signs;       // Philox key; bit i: element i of a rotation's period is negated
  u32 stream, stream_m;  // Philox streams of `codes` and `codes_m`
  int rows, k, stored_k, stored_m;
  int vectors;  // rows of x may be read 16 bytes at a time
};

DEVICE float half_to_float(u32 half) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(static_cast<u16>(half)));
  return f;
}

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

DEVICE int closed_byte(u32 amax_bits, u32 bias) {
  return max(static_cast<int>((amax_bits + bias) >> 23) - 2, 0);
}

DEVICE float code_value(u32 code) {
  const u32 size = code & 7;
  const float value = size < 2 ? 0.5f * size : __uint_as_float((size + kOneAsCode) << kHalfBits);
  return code & 8 ? -value : value;
}

DEVICE double squared_error(const float* v, int byte) {
  double total = 0.0;
  const double scale = ldexp(1.0, kE8m0One - byte);
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    const double y = v[i] * scale;
    const double error = y - code_value(nearest_code(static_cast<float>(y)));
    total = __dadd_rn(total, __dmul_rn(error, error));
  }
  return total;
}

// The floor rule's byte or the better of its neighbours, an earlier one winning a tie.
DEVICE int searched_byte(const float* v, u32 amax_bits) {
  const int start = closed_byte(amax_bits, 0);
  int best = start;
  double least = squared_error(v, start);
  for (int step = 1; step >= -1; step -= 2) {
    const int byte = min(max(start + step, 0), kLargestByte);
    const double error = squared_error(v, byte) * ldexp(1.0, 2 * (byte - start));
    if (error < least) {
      least = error;
      best = byte;
    }
  }
  return best;
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

// Two values below 8 that float16 holds exactly where it matters, to codes at bits 0..3 and 16..19.
// Times 2^-14 the grid of E2M1 lies on float16's own exponents, its subnormals included, and
// rounding is one integer addition.
DEVICE u32 code_pair(float low, float high) {
  u32 halves, sizes;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(high), "f"(low));
  asm("{\n.reg .b32 t;\nmul.rn.f16x2 t, %1, %2;\nabs.f16x2 t, t;\nmin.f16x2 %0, t, %3;\n}"
      : "=r"(sizes)
      : "r"(halves), "r"(0x04000400u), "r"(0x0E000E00u));  // 2^-14 and 6 * 2^-14
  const u32 rounded = sizes + 0x00FF00FFu + ((sizes >> 9) & 0x00010001u);
  return ((rounded >> 9) & 0x00070007u) | ((halves >> 12) & 0x00080008u);
}

// Eight codes of eight values, the first in the lowest nibble.
DEVICE u32 code_word(const float* y, u64 seed, u32 stream, u64 first) {
  u32 word = 0;
  if (kRoundsInHalf) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 pair = code_pair(y[2 * i], y[2 * i + 1]);
      word |= (pair | pair >> 12) << (8 * i) & (0xFFu << (8 * i));
    }
    return word;
  }
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

// Quantizes one unit, whose blocks' largest magnitudes are `amax`; `first` is the index of its
// first element in the matrix.
DEVICE void quantize_unit(float (&v)[kUnit], const Quantize& q, u32 stream, u64 first,
                          u32 (&codes)[kUnit / 8], int (&bytes)[kUnitBlocks],
                          const u32 (&amax)[kUnitBlocks]) {
#pragma unroll
  for (int b = 0; b < kUnitBlocks; ++b) {
    const u32 bits = amax[b];
    const bool finite = bits < kInfinityBits;
    int byte;
    if (MX_BIAS < 0) {
      byte = finite && bits ? searched_byte(v + b * kBlock, bits) : kE8m0One;
    } else {
      byte = bits ? closed_byte(bits, MX_BIAS) : kE8m0One;
    }
    const float scale = reciprocal(finite ? byte : kE8m0One);
#pragma unroll
    for (int w = 0; w < kBlock / 8; ++w) {
      float y[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        y[i] = __fmul_rn(v[b * kBlock + 8 * w + i], scale);
        if (MX_PRESCALE) y[i] = __fmul_rn(y[i], 0.75f);
      }
      const u32 word = code_word(y, q.seed, stream, first + b * kBlock + 8 * w);
      codes[b * kBlock / 8 + w] = finite ? word : 0;
    }
    bytes[b] = finite ? byte : kE8m0Nan;
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
    float v[kUnit];
#pragma unroll
    for (int i = 0; i < kUnit / kElementsPerVector; ++i) {
      const U32x4 x =
          *reinterpret_cast<const U32x4*>(tile + row * kPitch + start * kElementBytes + i * 16);
      const u32 words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int j = 0; j < kElementsPerVector; ++j) {
        v[i * kElementsPerVector + j] = element(words[j / kElementsPerWord], j % kElementsPerWord);
      }
    }
    if (MX_ROTATION) rotate(v, q.signs);
    u32 amax[kUnitBlocks], codes[kUnit / 8];
    int bytes[kUnitBlocks];
#pragma unroll
    for (int b = 0; b < kUnitBlocks; ++b) {
      amax[b] = largest(v + b * kBlock);
      if (MX_BLOCK_2D) amax[b] = __reduce_max_sync(~0u, amax[b]);
    }
    const u64 first = static_cast<u64>(row0 + row) * q.stored_k + k0 + start;
    quantize_unit(v, q, q.stream, first, codes, bytes, amax);
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
      const u64 first = static_cast<u64>(k0 + column + c) * q.stored_m + row0 + start;
      quantize_unit(v[c], q, q.stream_m, first, codes, bytes, amax[c]);
      stage(s, column + c, start / kBlock, codes, bytes);
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
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

#if MX_PLAIN
// The plain options on bfloat16, two elements an instruction.

// As code_pair, of a pair of bfloat16.
DEVICE u32 code_pair_packed(u32 pair) { return code_pair(element(pair, 0), element(pair, 1)); }

// Larger magnitude of each half; a NaN stays the largest.
DEVICE u32 larger_pair(u32 sizes, u32 pair) {
  u32 result;
  asm("{\n.reg .b32 t;\nabs.bf16x2 t, %2;\nmax.NaN.bf16x2 %0, %1, t;\n}"
      : "=r"(result)
      : "r"(sizes), "r"(pair));
  return result;
}

// Exact: bfloat16 has the exponents of FP32, and what falls below them rounds to zero anyway.
DEVICE u32 multiply_pair(u32 a, u32 b) {
  u32 product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

struct Scale {
  int byte;
  u32 factor;  // 2^(127 - byte) as bfloat16
  bool finite;
};

DEVICE Scale plain_scale(u32 amax_bits) {
  const bool finite = amax_bits < kInfinityBits;
  const int byte = amax_bits && finite ? closed_byte(amax_bits, MX_BIAS) : kE8m0One;
  return {finite ? byte : kE8m0Nan, static_cast<u32>(2 * kE8m0One - byte) << 7, finite};
}

// 8 elements of a block that four neighbouring lanes hold; returns their codes, and the scale of
// the block.
DEVICE u32 quantize_eighth(const U32x4& x, Scale& scale) {
  const u32 words[4] = {x.x, x.y, x.z, x.w};
  u32 pair = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) pair = larger_pair(pair, words[i]);
  u32 bits = max(pair & 0xFFFF0000u, pair << 16);
  bits = max(bits, __shfl_xor_sync(~0u, bits, 1));
  bits = max(bits, __shfl_xor_sync(~0u, bits, 2));
  scale = plain_scale(bits);
  const u32 factor = scale.factor * 0x10001u;
  u32 codes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) codes[i] = code_pair_packed(multiply_pair(words[i], factor));
  const u32 low = codes[0] + (codes[1] << 8), high = codes[2] + (codes[3] << 8);
  const u32 even = permute_bytes(low, high, 0x5410), odd = permute_bytes(low, high, 0x7632);
  return scale.finite ? even + (odd << 4) : 0;
}

// Contiguous x with k = stored_k: four lanes a block, whole rows read and written in order.
extern "C" __global__ void __launch_bounds__(kThreads)
    quantize_rows(const __grid_constant__ Quantize q) {
  constexpr int kVectors = 4;  // of a thread, kThreads apart
  const long long count = static_cast<long long>(q.rows) * (q.k / 8);
  const long long first = static_cast<long long>(blockIdx.x) * (kThreads * kVectors) + threadIdx.x;
  U32x4 x[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const long long at = first + i * kThreads;
    x[i] = {0, 0, 0, 0};
    if (at < count) x[i] = load_streamed(reinterpret_cast<const U32x4*>(q.x) + at);
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const long long at = first + i * kThreads;
    Scale scale;
    const u32 codes = quantize_eighth(x[i], scale);
    if (at >= count) continue;
    reinterpret_cast<u32*>(q.codes)[at] = codes;
    if (at % 4 == 0) q.scales[at / 4] = scale.byte;
  }
}

// Both directions, k = stored_k: rows are quantized on their way into the tile, columns out of it,
// a pair a thread.
extern "C" __global__ void __launch_bounds__(kThreads, 4)
    quantize_pairs(const __grid_constant__ Quantize q) {
  extern __shared__ __align__(16) u8 memory[];
  constexpr int kVectorsPerRow = kTile / 8, kBatch = 4;
  const int row0 = blockIdx.y * kTile, k0 = blockIdx.x * kTile;
  const Staged s = {memory + kTile * kPitch, memory + kTile * kPitch + kTile * kCodesPitch};
  const int column = threadIdx.x % kVectorsPerRow, k = k0 + column * 8;
#pragma unroll
  for (int start = 0; start < kTile; start += kBatch * kThreads / kVectorsPerRow) {
    U32x4 x[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int row = row0 + start + (i * kThreads + threadIdx.x) / kVectorsPerRow;
      x[i] = {0, 0, 0, 0};
      if (row < q.rows && k < q.k) {
        x[i] = load_streamed(reinterpret_cast<const U32x4*>(q.x + row * q.pitch + k * 2));
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int tile_row = start + (i * kThreads + threadIdx.x) / kVectorsPerRow;
      *reinterpret_cast<U32x4*>(memory + tile_row * kPitch + column * 16) = x[i];
      Scale scale;
      const u32 codes = quantize_eighth(x[i], scale);
      if (row0 + tile_row >= q.rows || k >= q.k) continue;
      const long long at = static_cast<long long>(row0 + tile_row) * q.stored_k + k;
      *reinterpret_cast<u32*>(q.codes + at / 2) = codes;
      if (column % 4 == 0) q.scales[at / kBlock] = scale.byte;
    }
  }
  __syncthreads();

  const int pair = threadIdx.x % (kTile / 2), block = threadIdx.x / (kTile / 2);
  u32 words[kBlock], sizes = 0;
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    words[i] = *reinterpret_cast<const u32*>(memory + (block * kBlock + i) * kPitch + pair * 4);
    sizes = larger_pair(sizes, words[i]);
  }
  const Scale scales[2] = {plain_scale(sizes << 16), plain_scale(sizes & 0xFFFF0000u)};
  const u32 factor = scales[0].factor | scales[1].factor << 16;
  u32 codes[2][kUnit / 8];
#pragma unroll
  for (int w = 0; w < kUnit / 8; ++w) {
    u32 half[2] = {
        0, 0};  // 4 codes of the first column in the low 16 bits, of the second in the high ones
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      half[i / 4] += code_pair_packed(multiply_pair(words[8 * w + i], factor)) << (4 * (i % 4));
    }
    codes[0][w] = scales[0].finite ? permute_bytes(half[0], half[1], 0x5410) : 0;
    codes[1][w] = scales[1].finite ? permute_bytes(half[0], half[1], 0x7632) : 0;
  }
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int byte[kUnitBlocks] = {scales[c].byte};
    stage(s, 2 * pair + c, block, codes[c], byte);
  }
  __syncthreads();
  write_out(s, q.codes_m, q.scales_m, k0, q.k, row0, q.stored_m);
}
#endif
