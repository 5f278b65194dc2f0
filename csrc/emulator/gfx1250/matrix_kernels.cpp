#include "gfx1250/matrix_kernels.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MXGEMM_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MXGEMM_CLONES
#endif

namespace mxgemm::emulator::gfx1250 {
namespace {

using Floats = float __attribute__((vector_size(32), may_alias));
using Words = uint32_t __attribute__((vector_size(32), may_alias));
using UnalignedWords = uint32_t __attribute__((vector_size(32), may_alias, aligned(4)));
using UnalignedFloats = float __attribute__((vector_size(32), may_alias, aligned(4)));
constexpr int kVector = 8, kVectors = kRows / kVector;

}  // namespace

MXGEMM_CLONES void unpack_fp4(const uint32_t* words, int stride, float (*out)[kRows]) {
  // FP32 bits of 0, 0.5, 1, 1.5, 2, 3, 4, 6.
  const Words table = {0,          0x3F000000, 0x3F800000, 0x3FC00000,
                       0x40000000, 0x40400000, 0x40800000, 0x40C00000};
  for (int word = 0; word < 4; ++word)
    for (int half = 0; half < kVectors; ++half) {
      Words codes =
          *reinterpret_cast<const UnalignedWords*>(words + word * stride + half * kVector);
      for (int p = 0; p < 8; ++p, codes >>= 4) {
        auto* value = reinterpret_cast<Words*>(out[word * 8 + p] + half * kVector);
        *value = __builtin_shuffle(table, codes & 7) | (codes & 8) << 28;
      }
    }
}

MXGEMM_CLONES void multiply(const Tile& a, const Tile& b, int first, int last,
                            float (*sum)[kRows]) {
  constexpr int kStep = 4;
  for (int m = 0; m < kRows; m += kStep) {
    Floats acc[kStep][kVectors] = {};
    for (int k = first; k < last; ++k) {
      const auto* columns = reinterpret_cast<const Floats*>(b.value[k]);
#pragma GCC unroll 4
      for (int s = 0; s < kStep; ++s)
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) acc[s][v] += a.value[k][m + s] * columns[v];
    }
#pragma GCC unroll 4
    for (int s = 0; s < kStep; ++s)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v)
        reinterpret_cast<UnalignedFloats*>(sum[m + s])[v] = acc[s][v];
  }
}

}  // namespace mxgemm::emulator::gfx1250
