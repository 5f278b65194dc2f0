// FP32 values, already divided by their scale, to E2M1 codes: to nearest even and stochastically,
// saturating at 6, the sign kept of everything. Philox4x32-10 gives each element its word. Source:
// OCP MX v1.0; Salmon et al., SC 2011.
#pragma once
#include "ptx.cuh"

constexpr float kLargestE2m1 = 6.f;
constexpr int kHalfBits = 22;  // fraction bits of FP32 below E2M1's one mantissa bit
constexpr int kOneAsCode =
    126 * 2;  // (FP32 bits >> 22) of a normal E2M1 value is its code plus this

DEVICE u32 sign_code(float y) { return (__float_as_uint(y) >> 28) & 8; }

// E2M1's magnitudes grow by halves up to 2, by ones up to 4 and by twos from there: the code is the
// least of three lines, each of which is rounded by being added to 2^23, whose unit is 1.
DEVICE u32 nearest_code(float y) {
  constexpr float kMagic = 8388608.f;
  const float size = fabsf(y);
  const u32 halves = __float_as_uint(__fmaf_rn(size, 2.f, kMagic)),
            ones = __float_as_uint(__fadd_rn(size, kMagic + 2.f)),
            twos = __float_as_uint(__fmaf_rn(size, 0.5f, kMagic + 4.f));
  const u32 code = min(min(halves, ones), min(twos, __float_as_uint(kMagic + 7.f)));
  return (code & 7) | sign_code(y);
}

// Up from the lower neighbour exactly when word < fraction * 2^32.
DEVICE u32 stochastic_code(float y, u32 word) {
  const float size = fminf(fabsf(y), kLargestE2m1);
  const u32 bits = __float_as_uint(size);
  u32 low, threshold;
  if (size < 1.f) {
    low = size >= 0.5f;
    threshold = __float2uint_ru((size - 0.5f * low) * 8589934592.f);  // 2 * 2^32
  } else {
    low = (bits >> kHalfBits) - kOneAsCode;
    threshold = bits << (32 - kHalfBits);
  }
  return (low + (word < threshold)) | sign_code(y);
}

// The four words of elements 4 index .. 4 index + 3.
DEVICE U32x4 philox(u64 seed, u32 stream, u64 index) {
  u32 c0 = static_cast<u32>(index), c1 = static_cast<u32>(index >> 32), c2 = stream, c3 = 0;
  u32 k0 = static_cast<u32>(seed), k1 = static_cast<u32>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const u64 product0 = static_cast<u64>(0xD2511F53u) * c0,
              product1 = static_cast<u64>(0xCD9E8D57u) * c2;
    const u32 high0 = static_cast<u32>(product0 >> 32), high1 = static_cast<u32>(product1 >> 32);
    c0 = high1 ^ c1 ^ k0;
    c1 = static_cast<u32>(product1);
    c2 = high0 ^ c3 ^ k1;
    c3 = static_cast<u32>(product0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}
