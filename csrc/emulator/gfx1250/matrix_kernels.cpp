#include "gfx1250/matrix_kernels.h"

#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MXGEMM_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MXGEMM_CLONES
#endif

namespace mxgemm::emulator::gfx1250 {
namespace {

using Floats = float __attribute__((vector_size(32)));
using Words = uint32_t __attribute__((vector_size(32)));
constexpr int kVector = 8, kVectors = kRows / kVector;

}  // namespace

MXGEMM_CLONES void unpack_fp4(const uint32_t* words, int stride, float (*out)[kRows]) {
  // FP32 bits of 0, 0.5, 1, 1.5, 2, 3, 4, 6.
  const Words table = {0, 0x3F000000, 0x3F800000, 0x3FC00000, 0x40000000, 0x40400000, 0x40800000, 0x40C00000};
  for (int word = 0; word < 4; ++word)
    for (int half = 0; half < kVectors; ++half) {
      Words codes;
      std::memcpy(&codes, words + word * stride + half * kVector, sizeof codes);
      for (int p = 0; p < 8; ++p, codes >>= 4) {
        const Words value = __builtin_shuffle(table, codes & 7) | (codes & 8) << 28;
        std::memcpy(out[word * 8 + p] + half * kVector, &value, sizeof value);
      }
    }
}

MXGEMM_CLONES void multiply(const Tile& a, const Tile& b, int first, int last, float (*sum)[kRows]) {
  constexpr int kStep = 4;
  for (int m = 0; m < kRows; m += kStep) {
    Floats acc[kStep][kVectors] = {};
    for (int k = first; k < last; ++k) {
      Floats columns[kVectors];
      std::memcpy(columns, b.value[k], sizeof columns);
      for (int s = 0; s < kStep; ++s)
        for (int v = 0; v < kVectors; ++v) acc[s][v] += a.value[k][m + s] * columns[v];
    }
    std::memcpy(sum[m], acc, sizeof acc);
  }
}

}  // namespace mxgemm::emulator::gfx1250
