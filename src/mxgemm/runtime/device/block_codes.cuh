// Blocks of 32 values to E2M1 codes and their scale, under the closed scale rules, to nearest even.
//
// E2M1's magnitudes grow by halves up to 2, by ones up to 4 and by twos up to 6, so that for a
// magnitude y below 7 the code is
//
//   code = min(2 y, y + 2, y / 2 + 4)   rounded to an integer, ties to even,
//
// and rounding commutes with min. Added to a power of two whose last place is the line's unit, each
// line is rounded by the addition itself, and the bits end with the code. 16-bit values go two an
// instruction.
#pragma once
#include "ptx.cuh"

#ifndef MX_INPUT
#define MX_INPUT 2  // 1: float32, 2: bfloat16, 3: float16
#endif
#ifndef MX_BIAS
#define MX_BIAS 0x200000  // of the closed scale rules; -1: search
#endif

constexpr u32 kInfinityBits = 0x7F800000;
constexpr int kE8m0One = 127, kE8m0NanByte = 255;

DEVICE float half_to_float(u32 half) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(static_cast<u16>(half)));
  return f;
}

DEVICE int closed_byte(u32 amax_bits, u32 bias) {
  return max(static_cast<int>((amax_bits + bias) >> 23) - 2, 0);
}

#if MX_BIAS >= 0

// Only the floor rule leaves magnitudes of 7 and more, below 8.
constexpr bool kSaturates = MX_BIAS < 0x200000;

// What is stored for a block, and what its elements are multiplied by: 2^(127 - byte).
struct Scale {
  int byte;     // 255 for a block with NaN or Inf
  bool finite;  // else its codes are zeros
  u32 factor;   // in the format of x; float16: up to 2^13
  u32 rest;     // float16: what is left of 2^(127 - byte), which may be 2^26
};

DEVICE Scale scale_of(u32 amax_bits) {
  const bool finite = amax_bits < kInfinityBits;
  const int byte = amax_bits && finite ? closed_byte(amax_bits, MX_BIAS) : kE8m0One;
  Scale scale = {finite ? byte : kE8m0NanByte, finite, 0, 0};
  if (MX_INPUT == 3) {
    constexpr int kLargest = 13, kBias = 15;
    const int exponent = kE8m0One - byte, first = min(exponent, kLargest);
    // -15 is the least exponent, a subnormal's.
    scale.factor = first == -kBias ? 0x0200u : static_cast<u32>(first + kBias) << 10;
    scale.rest = static_cast<u32>(exponent - first + kBias) << 10;
  } else {
    scale.factor = static_cast<u32>(2 * kE8m0One - byte) << (MX_INPUT == 1 ? 23 : 7);
  }
  return scale;
}

// Nibbles from codes a byte each, the low ones from `even`; what else the bytes hold is dropped.
DEVICE u32 interleave(u32 even, u32 odd) {
  return (even & 0x0F0F0F0Fu) | ((odd << 4) & 0xF0F0F0F0u);
}

// A word of codes 0..7: `low` and `high` hold codes 0 2 1 3 and 4 6 5 7, a byte each.
DEVICE u32 nibbles(u32 low, u32 high) {
  return interleave(permute_bytes(low, high, 0x5410), permute_bytes(low, high, 0x7632));
}

#if MX_INPUT == 1

struct Factors {
  u32 factor;
};

DEVICE Factors factors_of(const Scale& scale) { return {scale.factor}; }

// 8 consecutive values.
struct Eighth {
  U32x4 low, high;
};

DEVICE Eighth load_eighth(const u8* x) {
  const U32x4* vectors = reinterpret_cast<const U32x4*>(x);
  return {load_streamed(vectors), load_streamed(vectors + 1)};
}

// The code is the last byte.
DEVICE u32 magnitude_code(u32 x, const Factors& factors) {
  constexpr float kMagic = 8388608.f;  // 2^23
  const float y = __fmul_rn(fabsf(__uint_as_float(x)), __uint_as_float(factors.factor));
  const u32 halves = __float_as_uint(__fmaf_rn(y, 2.f, kMagic)),
            ones = __float_as_uint(__fadd_rn(y, kMagic + 2.f)),
            twos = __float_as_uint(__fmaf_rn(y, 0.5f, kMagic + 4.f));
  const u32 code = min(min(halves, ones), twos);
  return kSaturates ? min(code, __float_as_uint(kMagic + 7.f)) : code;
}

// Codes of x0 x2 x1 x3, a byte each, with their signs.
DEVICE u32 signed_codes(const U32x4& x, const Factors& factors) {
  const u32 even = permute_bytes(magnitude_code(x.x, factors), magnitude_code(x.z, factors), 0x40),
            odd = permute_bytes(magnitude_code(x.y, factors), magnitude_code(x.w, factors), 0x40);
  // prmt's replicating mode (selector bit 3): 0xFF where a byte's top bit is set.
  const u32 signs =
      permute_bytes(permute_bytes(x.x, x.z, 0xFB), permute_bytes(x.y, x.w, 0xFB), 0x5410);
  return permute_bytes(even, odd, 0x5410) | (signs & 0x08080808u);
}

DEVICE u32 code_word(const Eighth& x, const Factors& factors) {
  return nibbles(signed_codes(x.low, factors), signed_codes(x.high, factors));
}

// FP32 bits of the largest magnitude; those of NaN and Inf are kInfinityBits or more.
DEVICE u32 largest_bits(const Eighth& x) {
  const u32 words[8] = {x.low.x, x.low.y, x.low.z, x.low.w, x.high.x, x.high.y, x.high.z, x.high.w};
  u32 bits = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) bits = max(bits, words[i] & 0x7FFFFFFFu);
  return bits;
}

#else

#if MX_INPUT == 2
#define MX_PAIR "bf16x2"
constexpr u32 kMagic = 0x42804280, kHalf = 0x3F003F00;  // 64 and 0.5
#else
#define MX_PAIR "f16x2"
constexpr u32 kMagic = 0x60006000, kHalf = 0x38003800;  // 512 and 0.5
#endif
constexpr u32 kUnits = 0x00010001;  // a half, in the last place of both halves

DEVICE u32 fma_pair(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn." MX_PAIR " %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

DEVICE u32 multiply_pair(u32 a, u32 b) {
  u32 d;
  asm("mul.rn." MX_PAIR " %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

DEVICE u32 abs_pair(u32 a) { return a & 0x7FFF7FFFu; }

// Larger magnitude of each half, as bits: those of a NaN are the largest.
DEVICE u32 larger_pair(u32 sizes, u32 pair) { return max_u16x2(sizes, abs_pair(pair)); }

// FP32 bits of the low (0) or high (1) half of what larger_pair gave; those of NaN and Inf are
// kInfinityBits or more.
DEVICE u32 magnitude_bits(u32 sizes, int part) {
  if (MX_INPUT == 2) return part ? sizes & 0xFFFF0000u : sizes << 16;
  return __float_as_uint(half_to_float(part ? sizes >> 16 : sizes & 0xFFFFu));
}

// What a pair is multiplied by on its way to each line; its halves may belong to two blocks.
struct Factors {
  u32 whole, half, quarter, rest;
};

DEVICE Factors factors_of(const Scale& low, const Scale& high) {
  const u32 whole = low.factor | high.factor << 16, half = multiply_pair(whole, kHalf);
  return {whole, half, multiply_pair(half, kHalf), low.rest | high.rest << 16};
}
DEVICE Factors factors_of(const Scale& scale) { return factors_of(scale, scale); }

// Codes of a pair's magnitudes, if their blocks are finite, in the last bits of bytes 0 and 2. The
// lines are divided by 2 and their unit is a half: twice a factor could overflow. Powers of two
// scale exactly wherever rounding looks.
DEVICE u32 magnitude_codes(u32 pair, const Factors& factors) {
  u32 y = abs_pair(pair);
  if (MX_INPUT == 3) y = multiply_pair(y, factors.rest);
  const u32 halves = fma_pair(y, factors.whole, kMagic),
            ones = fma_pair(y, factors.half, kMagic + 2 * kUnits),
            twos = fma_pair(y, factors.quarter, kMagic + 4 * kUnits);
  const u32 code = min_u16x2(min_u16x2(halves, ones), twos);
  return kSaturates ? min_u16x2(code, kMagic + 7 * kUnits) : code;
}

// Codes of two pairs, a byte each, with their signs: low halves first. Bytes of blocks that are not
// finite hold anything.
DEVICE u32 signed_codes(u32 first, u32 second, const Factors& factors) {
  const u32 codes =
      permute_bytes(magnitude_codes(first, factors), magnitude_codes(second, factors), 0x6240);
  // prmt's replicating mode (selector bit 3): 0xFF where a byte's top bit is set.
  return codes | (permute_bytes(first, second, 0xFBD9) & 0x08080808u);
}

// 8 consecutive values.
using Eighth = U32x4;

DEVICE Eighth load_eighth(const u8* x) { return load_streamed(reinterpret_cast<const U32x4*>(x)); }

DEVICE u32 code_word(const Eighth& x, const Factors& factors) {
  return nibbles(signed_codes(x.x, x.y, factors), signed_codes(x.z, x.w, factors));
}

// Larger magnitudes of 8 values and of what was seen before.
DEVICE u32 larger_of(u32 sizes, const Eighth& x) {
  return larger_pair(larger_pair(larger_pair(larger_pair(sizes, x.x), x.y), x.z), x.w);
}

DEVICE u32 largest_bits(const Eighth& x) {
  const u32 sizes = larger_of(0, x);
  return max(magnitude_bits(sizes, 0), magnitude_bits(sizes, 1));
}

#endif

constexpr int kEighthBytes = MX_INPUT == 1 ? 32 : 16;

// 8 values of a block that four neighbouring lanes hold: their codes, the first in the lowest
// nibble, and the scale of the block.
DEVICE u32 quantize_eighth(const Eighth& x, Scale& scale) {
  u32 bits = largest_bits(x);
  bits = max(bits, __shfl_xor_sync(~0u, bits, 1));
  bits = max(bits, __shfl_xor_sync(~0u, bits, 2));
  scale = scale_of(bits);
  const u32 codes = code_word(x, factors_of(scale));
  return scale.finite ? codes : 0;
}

#endif
