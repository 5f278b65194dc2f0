// The inner loops of a matrix operation, apart because they are compiled for several instruction
// sets.
#pragma once

#include <cstdint>

namespace mxgemm::emulator::gfx1250 {

constexpr int kRows = 16, kDepth = 128;

// [k][row or column], decoded.
struct alignas(64) Tile {
  float value[kDepth][kRows];
};

// 16 lanes' FP4 codes (bits 4p..4p+3 of word p/8, words `stride` apart) for p in [0, 32) to rows of
// `out`.
void unpack_fp4(const uint32_t* words, int stride, float (*out)[kRows]);

// sum[m][n] = sum over k in [first, last), ascending, of a[k][m] * b[k][n]. Each product of two
// codes is exact in FP32, so that fusing it with the addition changes nothing.
void multiply(const Tile& a, const Tile& b, int first, int last, float (*sum)[kRows]);

// acc[n] += sum[n] * 2^(scale_a + scale_b[n] - 254), the product rounded before the addition; every
// exponent in -126..127.
void scale_row(float* acc, const float* sum, int scale_a, const int32_t* scale_b);

}  // namespace mxgemm::emulator::gfx1250
