// AVX-512 with VNNI and VBMI.
//
// A code times two is an integer of at most 12, and int8 has room to align the blocks of a run of
// K: where the scale bytes of a row's blocks lie within 2 of each other over kChunkBlocks blocks,
// each block is stored shifted left by its distance to the least of them. Then the whole run is one
// sum of integers, exact and below 2^24 (48 * 48 * 1024), scaled once. A run that is not like that
// keeps its blocks as they are and is scaled block by block.
//
// vpdpbusd takes one operand as unsigned: 128 is added to it, and constants of row and column (the
// starts and corrections) take out what that adds. On processors where it pays, the tile halves its
// multiplications; see generate_tiles.py.
#include <immintrin.h>

#include "kernels.h"

// Generated; see generate_tiles.py.
extern "C" {
void mxgemm_avx512_halving_block_6x48(const void* rows, const void* columns, int64_t blocks,
                                      float* acc);
void mxgemm_avx512_halving_group_6x48(const void* rows, const void* columns, int64_t blocks,
                                      float* acc, const int32_t* row_constants,
                                      const int32_t* column_constants);
void mxgemm_avx512_vnni_block_8x48(const void* rows, const void* columns, int64_t blocks,
                                   float* acc);
void mxgemm_avx512_vnni_group_8x48(const void* rows, const void* columns, int64_t blocks,
                                   float* acc, const int32_t* row_constants,
                                   const int32_t* column_constants);
}

namespace mxgemm {
namespace {

constexpr int kChunkBlocks = 32;  // a run: K = 1024
constexpr int kSpread = 2;        // binades that a run's scale bytes may spread
constexpr int kFewOffset = 12;    // makes twice a code's value nonnegative, in the few-rows kernel
constexpr int kTilePanels = 3;
constexpr int kTileColumns = kTilePanels * kPanel;
constexpr int kStepBytes = kPanel * 4;
constexpr int kPrefetchBytes = 2048;

template <bool halving>
constexpr int kRows = halving ? 6 : 8;

// Twice the value of each code, shifted left by 0 .. 3.
alignas(64) constexpr int8_t kShifted[64] = {
    0, 1, 2,  3,  4,  6,  8,  12, 0, -1, -2,  -3,  -4,  -6,  -8,  -12,  //
    0, 2, 4,  6,  8,  12, 16, 24, 0, -2, -4,  -6,  -8,  -12, -16, -24,  //
    0, 4, 8,  12, 16, 24, 32, 48, 0, -4, -8,  -12, -16, -24, -32, -48,  //
    0, 8, 16, 24, 32, 48, 64, 96, 0, -8, -16, -24, -32, -48, -64, -96};

inline int32_t row_exponent(int byte) {
  // Adding B's byte << 23 gives the bits of 2^(a + b - 254) / 4, the quarter because both operands
  // are doubled.
  return static_cast<int32_t>(static_cast<uint32_t>(byte - 129) << 23);
}

inline int32_t horizontal_sum(__m128i x) {
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4E));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0xB1));
  return _mm_cvtsi128_si32(x);
}

struct DecodedBlock {
  __m128i even, odd;
};

inline DecodedBlock decode_row_block(const uint8_t* codes, int shift) {
  const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(kShifted + 16 * shift));
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  const __m128i nibble = _mm_set1_epi8(15);
  return {_mm_shuffle_epi8(table, _mm_and_si128(x, nibble)),
          _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(x, 4), nibble))};
}

inline void store_row_block(const DecodedBlock& v, int8_t* out) {
  auto* target = reinterpret_cast<__m128i*>(out);
  _mm_storeu_si128(target, _mm_unpacklo_epi32(v.even, v.odd));
  _mm_storeu_si128(target + 1, _mm_unpackhi_epi32(v.even, v.odd));
}

inline int64_t num_groups(int64_t blocks) { return (blocks + kChunkBlocks - 1) / kChunkBlocks; }

inline int64_t group_end(int64_t group, int64_t blocks) {
  const int64_t end = (group + 1) * kChunkBlocks;
  return end < blocks ? end : blocks;
}

// One operand's form: for each block `width` x 32 bytes and two arrays int32 [width] of constants,
// as the tiles read them; then for each group the same two arrays; then for each group whether it
// is one run. For rows the arrays are starts and exponents, for columns exponents and corrections.
struct Form {
  uint8_t* base;
  int width;
  int64_t blocks;

  int64_t block_bytes() const { return int64_t{width} * (kBlock + 8); }
  uint8_t* block(int64_t b) const { return base + b * block_bytes(); }
  int32_t* block_constants(int64_t b) const {
    return reinterpret_cast<int32_t*>(block(b) + width * kBlock);
  }
  int32_t* group_constants(int64_t g) const {
    return reinterpret_cast<int32_t*>(block(blocks)) + g * 2 * width;
  }
  uint8_t* is_run() const {
    return reinterpret_cast<uint8_t*>(group_constants(num_groups(blocks)));
  }
};

inline Form form_of(const void* form, int width, int64_t blocks) {
  return {static_cast<uint8_t*>(const_cast<void*>(form)), width, blocks};
}

size_t form_bytes(int width, int64_t blocks) {
  const int64_t groups = num_groups(blocks);
  return static_cast<size_t>(blocks * width * (kBlock + 8) + groups * width * 8 + groups);
}

struct Range {
  int low, high;
};

inline Range scale_range(const uint8_t* scales, int64_t first, int64_t last) {
  Range range{scales[first], scales[first]};
  for (int64_t b = first + 1; b < last; ++b) {
    range.low = scales[b] < range.low ? scales[b] : range.low;
    range.high = scales[b] > range.high ? scales[b] : range.high;
  }
  return range;
}

// What the offset of the unsigned operand adds to a row's sums, negated.
template <bool halving>
inline int32_t row_start(const DecodedBlock& v) {
  const __m128i offset = _mm_set1_epi8(-128);
  if (halving) {
    return -horizontal_sum(
        _mm_dpbusd_epi32(_mm_setzero_si128(), _mm_xor_si128(v.even, offset), v.odd));
  }
  const __m128i sum = _mm_dpbusd_epi32(_mm_setzero_si128(), offset, v.even);
  return -horizontal_sum(_mm_dpbusd_epi32(sum, offset, v.odd));
}

template <bool halving>
void pack_rows(const RowPanel& rows, void* form) {
  constexpr int width = kRows<halving>;
  const Form f = form_of(form, width, rows.blocks);
  for (int64_t g = 0; g < num_groups(rows.blocks); ++g) f.is_run()[g] = 1;
  for (int r = 0; r < width; ++r) {
    for (int64_t g = 0; g < num_groups(rows.blocks); ++g) {
      const int64_t first = g * kChunkBlocks, last = group_end(g, rows.blocks);
      const bool inside = r < rows.rows;
      const uint8_t* scales = rows.scales + (inside ? r : 0) * rows.blocks;
      const Range range = scale_range(scales, first, last);
      const bool run = !inside || range.high - range.low <= kSpread;
      int32_t total = 0;
      for (int64_t b = first; b < last; ++b) {
        DecodedBlock v{_mm_setzero_si128(), _mm_setzero_si128()};
        const int base = run ? range.low : scales[b];
        if (inside)
          v = decode_row_block(rows.codes + r * rows.codes_stride + b * kBlockBytes,
                               scales[b] - base);
        store_row_block(v, reinterpret_cast<int8_t*>(f.block(b)) + r * kBlock);
        const int32_t start = row_start<halving>(v);
        total += start;
        f.block_constants(b)[r] = start;
        f.block_constants(b)[width + r] = row_exponent(base);
      }
      f.group_constants(g)[r] = total;
      f.group_constants(g)[width + r] = row_exponent(range.low);
      if (!run) f.is_run()[g] = 0;
    }
  }
}

// One panel's group: bytes at `panel` of each block, exponents, corrections; false where it is no
// run.
template <bool halving>
bool decode_group(const ColumnPanel& source, int panel, int64_t g, const Form& f) {
  const int64_t first = g * kChunkBlocks, last = group_end(g, f.blocks);
  const auto load_scales = [&](int64_t b) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(source.scales + b * kPanel));
  };
  __m128i low = load_scales(first), high = low;
  for (int64_t b = first + 1; b < last; ++b) {
    low = _mm_min_epu8(low, load_scales(b));
    high = _mm_max_epu8(high, load_scales(b));
  }
  const __m128i beyond = _mm_subs_epu8(_mm_sub_epi8(high, low), _mm_set1_epi8(kSpread));
  const bool run = _mm_test_all_zeros(beyond, beyond);

  const __m512i table = _mm512_load_si512(kShifted);
  const __m512i offset = _mm512_set1_epi8(-128), nibble = _mm512_set1_epi8(15);
  // Copies a column's shift from its 32-bit lane to the lane's four bytes.
  const __m512i spread =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
  __m512i total = _mm512_setzero_si512();
  for (int64_t b = first; b < last; ++b) {
    const __m128i base = run ? low : load_scales(b);
    const __m512i shift = _mm512_cvtepu8_epi32(_mm_sub_epi8(load_scales(b), base));
    const __m512i select = _mm512_slli_epi16(_mm512_shuffle_epi8(shift, spread), 4);
    uint8_t* out = f.block(b) + panel * kStepBytes;
    __m512i sum = _mm512_setzero_si512();
    for (int d = 0; d < 4; ++d) {
      const __m512i x = _mm512_loadu_si512(source.codes + b * kPanelBlockBytes + d * kStepBytes);
      const __m512i even =
          _mm512_permutexvar_epi8(_mm512_or_si512(_mm512_and_si512(x, nibble), select), table);
      const __m512i odd = _mm512_permutexvar_epi8(
          _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(x, 4), nibble), select), table);
      const __m512i raised = _mm512_xor_si512(odd, offset);
      sum = _mm512_dpbusd_epi32(sum, raised, even);
      _mm512_storeu_si512(out + (2 * d) * kTileColumns * 4,
                          halving ? even : _mm512_xor_si512(even, offset));
      _mm512_storeu_si512(out + (2 * d + 1) * kTileColumns * 4, raised);
    }
    const __m512i correction = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
    total = _mm512_add_epi32(total, correction);
    _mm512_storeu_si512(f.block_constants(b) + panel * kPanel,
                        _mm512_slli_epi32(_mm512_cvtepu8_epi32(base), 23));
    _mm512_storeu_si512(f.block_constants(b) + kTileColumns + panel * kPanel, correction);
  }
  _mm512_storeu_si512(f.group_constants(g) + panel * kPanel,
                      _mm512_slli_epi32(_mm512_cvtepu8_epi32(low), 23));
  _mm512_storeu_si512(f.group_constants(g) + kTileColumns + panel * kPanel, total);
  return run;
}

// A panel past the matrix: zeros, whatever they are multiplied with is not stored.
void clear_panel(int panel, const Form& f) {
  const __m512i zero = _mm512_setzero_si512();
  for (int64_t b = 0; b < f.blocks; ++b) {
    for (int s = 0; s < kBlock / 4; ++s) {
      _mm512_storeu_si512(f.block(b) + panel * kStepBytes + s * kTileColumns * 4, zero);
    }
    _mm512_storeu_si512(f.block_constants(b) + panel * kPanel, zero);
    _mm512_storeu_si512(f.block_constants(b) + kTileColumns + panel * kPanel, zero);
  }
  for (int64_t g = 0; g < num_groups(f.blocks); ++g) {
    _mm512_storeu_si512(f.group_constants(g) + panel * kPanel, zero);
    _mm512_storeu_si512(f.group_constants(g) + kTileColumns + panel * kPanel, zero);
  }
}

template <bool halving>
void decode_columns(const ColumnPanel* panels, int count, int64_t blocks, void* form) {
  const Form f = form_of(form, kTileColumns, blocks);
  for (int p = count; p < kTilePanels; ++p) clear_panel(p, f);
  for (int64_t g = 0; g < num_groups(blocks); ++g) {
    bool run = true;
    for (int p = 0; p < count; ++p) run &= decode_group<halving>(panels[p], p, g, f);
    f.is_run()[g] = run;
  }
}

template <bool halving>
void tile(const void* rows, const void* columns, int64_t blocks, int64_t first, int64_t last,
          float* acc) {
  const Form a = form_of(rows, kRows<halving>, blocks), b = form_of(columns, kTileColumns, blocks);
  const int64_t g = first / kChunkBlocks, count = last - first;
  if (a.is_run()[g] && b.is_run()[g]) {
    const auto group = halving ? mxgemm_avx512_halving_group_6x48 : mxgemm_avx512_vnni_group_8x48;
    group(a.block(first), b.block(first), count, acc, a.group_constants(g), b.group_constants(g));
  } else {
    const auto block = halving ? mxgemm_avx512_halving_block_6x48 : mxgemm_avx512_vnni_block_8x48;
    block(a.block(first), b.block(first), count, acc);
  }
}

template <bool halving>
size_t row_form_bytes(int64_t blocks) {
  return form_bytes(kRows<halving>, blocks);
}
size_t column_form_bytes(int64_t blocks) { return form_bytes(kTileColumns, blocks); }

size_t few_rows_form_bytes(int rows, int64_t blocks) { return form_bytes(rows, blocks); }

// Few rows: unshifted, since B stays packed and is scaled block by block; starts for B's offset
// of 12.
void pack_few_rows(const RowPanel& rows, void* form) {
  const Form f = form_of(form, rows.rows, rows.blocks);
  const __m128i offset = _mm_set1_epi8(kFewOffset);
  for (int r = 0; r < rows.rows; ++r) {
    for (int64_t b = 0; b < rows.blocks; ++b) {
      const DecodedBlock v =
          decode_row_block(rows.codes + r * rows.codes_stride + b * kBlockBytes, 0);
      store_row_block(v, reinterpret_cast<int8_t*>(f.block(b)) + r * kBlock);
      __m128i sum = _mm_dpbusd_epi32(_mm_setzero_si128(), offset, v.even);
      sum = _mm_dpbusd_epi32(sum, offset, v.odd);
      f.block_constants(b)[r] = -horizontal_sum(sum);
      f.block_constants(b)[rows.rows + r] = row_exponent(rows.scales[r * rows.blocks + b]);
    }
  }
}

inline __m512i broadcast32(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return _mm512_set1_epi32(x);
}

// The panel's block as bytes with the offset of 12 added: q[2d] even and q[2d + 1] odd k of the
// d-th eight.
inline void decode_for_few(const ColumnPanel& panel, int64_t b, __m512i* q) {
  const __m512i table = _mm512_add_epi8(
      _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kShifted))),
      _mm512_set1_epi8(kFewOffset));
#pragma GCC unroll 4
  for (int d = 0; d < 4; ++d) {
    const uint8_t* source = panel.codes + b * kPanelBlockBytes + d * kStepBytes;
    _mm_prefetch(reinterpret_cast<const char*>(source + kPrefetchBytes), _MM_HINT_T0);
    const __m512i x = _mm512_loadu_si512(source);
    // The table is repeated four times, so that the two bits above a nibble do not matter.
    q[2 * d] = _mm512_permutexvar_epi8(x, table);
    q[2 * d + 1] = _mm512_permutexvar_epi8(_mm512_srli_epi16(x, 4), table);
  }
}

// The products of row r with a decoded block, in integers.
inline __m512i row_products(const Form& f, int64_t b, int r, const __m512i* q) {
  const uint8_t* a = f.block(b) + r * kBlock;
  __m512i even = broadcast32(f.block_constants(b) + r), odd = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int d = 0; d < 4; ++d) {
    even = _mm512_dpbusd_epi32(even, q[2 * d], broadcast32(a + d * 8));
    odd = _mm512_dpbusd_epi32(odd, q[2 * d + 1], broadcast32(a + d * 8 + 4));
  }
  return _mm512_add_epi32(even, odd);
}

void few(const void* form, int rows, const ColumnPanel& panel, int64_t blocks, float* acc,
         int64_t stride) {
  const Form f = form_of(form, rows, blocks);
  for (int r = 0; r < rows; ++r) _mm512_storeu_ps(acc + r * stride, _mm512_setzero_ps());
  __m512 single = _mm512_setzero_ps();  // the sums of the only row stay in a register
  for (int64_t b = 0; b < blocks; ++b) {
    __m512i q[8];
    decode_for_few(panel, b, q);
    const __m512i exponents = _mm512_slli_epi32(
        _mm512_cvtepu8_epi32(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(panel.scales + b * kPanel))),
        23);
    for (int r = 0; r < rows; ++r) {
      const __m512 products = _mm512_cvtepi32_ps(row_products(f, b, r, q));
      const __m512 scale = _mm512_castsi512_ps(
          _mm512_add_epi32(exponents, broadcast32(f.block_constants(b) + rows + r)));
      if (rows == 1) {
        single = _mm512_fmadd_ps(products, scale, single);
      } else {
        float* sum = acc + r * stride;
        _mm512_storeu_ps(sum, _mm512_fmadd_ps(products, scale, _mm512_loadu_ps(sum)));
      }
    }
  }
  if (rows == 1) _mm512_storeu_ps(acc, single);
}

#include "finish.inl"
#include "interleave_x86.inl"
#include "quantize_avx512.inl"
#include "weight_only_avx2.inl"

void widen(const void* x, DType dtype, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = widen_one(x, dtype, i);
}

#define MXGEMM_MULTIPLY_ADD(n) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #n "\n\t"

int64_t multiply_loop(int64_t iterations) {
  for (int64_t i = 0; i < iterations; ++i) {
    asm volatile(MXGEMM_MULTIPLY_ADD(0) MXGEMM_MULTIPLY_ADD(1) MXGEMM_MULTIPLY_ADD(2)
                     MXGEMM_MULTIPLY_ADD(3) MXGEMM_MULTIPLY_ADD(4) MXGEMM_MULTIPLY_ADD(5)
                         MXGEMM_MULTIPLY_ADD(6) MXGEMM_MULTIPLY_ADD(7) MXGEMM_MULTIPLY_ADD(8)
                             MXGEMM_MULTIPLY_ADD(9) MXGEMM_MULTIPLY_ADD(10) MXGEMM_MULTIPLY_ADD(11)
                 :
                 :
                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                   "xmm10", "xmm11");
  }
  return iterations * 12 * 64;
}

#include "read_loop_avx2.inl"

template <bool halving>
const Kernels* table(const char* tile_name) {
  static const Kernels kernels = {
      "avx512_vnni",
      tile_name,
      kRows<halving>,
      kTilePanels,
      kChunkBlocks,
      1,
      size_t{448} << 10,
      row_form_bytes<halving>,
      column_form_bytes,
      pack_rows<halving>,
      decode_columns<halving>,
      tile<halving>,
      40,
      few_rows_form_bytes,
      pack_few_rows,
      few,
      interleave,
      weight_only,
      widen,
      finish,
      finish_wide,
      quantize_kernels(),
      multiply_loop,
      read_loop,
  };
  return &kernels;
}

}  // namespace

const Kernels* avx512_vnni_kernels(bool halve_multiplies) {
  return halve_multiplies ? table<true>("6x48, half the multiplications") : table<false>("8x48");
}

}  // namespace mxgemm
