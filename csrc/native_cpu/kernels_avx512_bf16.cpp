// bfloat16 rows times packed B by AVX512_BF16, for processors that have it beside AVX-512 VNNI.
//
// vdpbf16ps multiplies two pairs and adds them to an FP32 sum. It takes subnormal operands as zeros
// and returns zeros for subnormal results, so it must meet neither: pack_row lets only rows through
// whose values are zero or at least 2^-99 in magnitude. bfloat16 has 8 bits, so that every product
// with a code and every sum of them is a multiple of 2^-107, far above the subnormal numbers. How
// often one instruction rounds depends on the maker (once, or after each of the two products); the
// declared FP32 sum over k allows for both.
#include <immintrin.h>

#include "kernels.h"

namespace mxgemm {
namespace {

#include "ask_ahead_x86.inl"
#include "float_formats.inl"
#include "weight_only_avx512.inl"
#include "weight_only_rows.inl"

// The code's value as bfloat16, all codes twice.
alignas(64) constexpr uint16_t kBf16[32] = {
    0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0,  //
    0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0,  //
    0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0,  //
    0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0};

// Two k a step: a column's byte s % 4 of its s / 4-th 32 bits.
struct Bf16Step {
  using Value = uint32_t;  // two bfloat16, even k low
  static constexpr int kSteps = kBlock / 2;

  static __m512i decode(const uint8_t* block, int s) {
    const __m512i q = _mm512_loadu_si512(block + s / 4 * 64);
    // Bits 8j and 8j + 4 of each column move to the ends of its two 16-bit lanes. A table index has
    // 5 bits, but the table is repeated, so that the bit above a nibble does not matter.
    const uint64_t j = 8 * static_cast<uint64_t>(s % 4);
    const uint64_t column = j | (j + 4) << 16;
    const __m512i from =
        _mm512_set1_epi64(static_cast<int64_t>(column | (column + 0x0000000000200020u) << 32));
    const __m512i indices = _mm512_multishift_epi64_epi8(from, q);
    return _mm512_permutexvar_epi16(indices, _mm512_load_si512(kBf16));
  }
  static __m512 add(__m512i b, const uint32_t* a, __m512 sum) {
    const __m512i pair = _mm512_set1_epi32(static_cast<int32_t>(*a));
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(b), reinterpret_cast<__m512bh>(pair));
  }
};

bool pack_row(const void* x, DType dtype, int64_t k, int64_t blocks, int rows, int row,
              void* form) {
  return for_each_block(x, dtype, k, blocks, [&](int64_t b, const float* values) {
    uint16_t* out = static_cast<uint16_t*>(form) + (b * rows + row) * kBlock;
    for (int i = 0; i < kBlock; ++i) out[i] = static_cast<uint16_t>(bits_of(values[i]) >> 16);
  });
}

}  // namespace

const WeightOnly* avx512_bf16_weight_only() {
  static constexpr WeightOnly kernel = {"vdpbf16ps", 2, pack_row, multiply_plain<Bf16Step>};
  return &kernel;
}

}  // namespace mxgemm
