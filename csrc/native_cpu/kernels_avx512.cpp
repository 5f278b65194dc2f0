// AVX-512 with VNNI and VBMI.
//
// A code times two is an integer of at most 12, and int8 has room to align the blocks of a group of
// K: a block whose scale byte lies at most kSpread above the group's base for that row is in line
// and stored shifted left by that distance. Blocks that are in line for all rows and columns of a
// tile are one sum of integers, exact and below 2^24 (96 * 96 * 1024), scaled once. The others are
// stored as they are and scaled one by one.
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
void mxgemm_avx512_halving_group_6x48(const void* const (*list)[2], int64_t blocks, float* acc,
                                      const int32_t* row_constants,
                                      const int32_t* column_constants);
void mxgemm_avx512_vnni_block_8x48(const void* rows, const void* columns, int64_t blocks,
                                   float* acc);
void mxgemm_avx512_vnni_group_8x48(const void* const (*list)[2], int64_t blocks, float* acc,
                                   const int32_t* row_constants, const int32_t* column_constants);
}

namespace mxgemm {
namespace {

constexpr int kChunkBlocks = 32;  // of a group: K = 1024
constexpr int kLeastInLine = 8;   // blocks, below which a group is not worth its own sum
constexpr int kFewOffset = 12;    // makes twice a code's value nonnegative, in the few-rows kernel
constexpr int kTilePanels = 3;
constexpr int kTileColumns = kTilePanels * kPanel;
constexpr int kStepBytes = kPanel * 4;

template <bool halving>
constexpr int kRows = halving ? 6 : 8;

// Binades that scale bytes in line may spread. The tile that halves multiplications adds a value of
// A to one of B in 8 bits.
template <bool halving>
constexpr int kSpread = halving ? 2 : 3;

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

#include "ask_ahead_x86.inl"
#include "windows.inl"

inline int64_t group_first(const Schedule& schedule, int64_t group) {
  return group ? schedule.ends[group - 1] : 0;
}

// One operand's form: for each place of the schedule `width` x 32 bytes and two arrays int32
// [width] of constants, as the tiles read them; then for each group the same two arrays; then for
// each group the places that are out of line, as bits. For rows the arrays are starts and
// exponents, for columns exponents and corrections.
struct Form {
  uint8_t* base;
  int width;
  int64_t blocks, groups;

  int64_t block_bytes() const { return int64_t{width} * (kBlock + 8); }
  uint8_t* block(int64_t b) const { return base + b * block_bytes(); }
  int32_t* block_constants(int64_t b) const {
    return reinterpret_cast<int32_t*>(block(b) + width * kBlock);
  }
  int32_t* group_constants(int64_t g) const {
    return reinterpret_cast<int32_t*>(block(blocks)) + g * 2 * width;
  }
  uint32_t* out_of_line() const { return reinterpret_cast<uint32_t*>(group_constants(groups)); }
};

inline Form form_of(const void* form, int width, const Schedule& schedule) {
  return {static_cast<uint8_t*>(const_cast<void*>(form)), width, schedule.blocks,
          schedule.num_groups};
}

size_t form_bytes(int width, const Schedule& schedule) {
  const int64_t groups = schedule.num_groups;
  return static_cast<size_t>(schedule.blocks * width * (kBlock + 8) + groups * width * 8 +
                             groups * 4);
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
void pack_rows(const RowPanel& rows, const Schedule& schedule, void* form) {
  constexpr int width = kRows<halving>;
  const Form f = form_of(form, width, schedule);
  for (int64_t g = 0; g < f.groups; ++g) f.out_of_line()[g] = 0;
  for (int r = 0; r < width; ++r) {
    const bool inside = r < rows.rows;
    for (int64_t g = 0; g < f.groups; ++g) {
      const int64_t first = group_first(schedule, g), last = schedule.ends[g];
      uint8_t scales[kChunkBlocks] = {};
      for (int64_t p = first; inside && p < last; ++p)
        scales[p - first] = rows.scales[r * rows.blocks + schedule.order[p]];
      const Window window = best_window(scales, static_cast<int>(last - first), kSpread<halving>);
      int32_t total = 0;
      for (int64_t p = first; p < last; ++p) {
        DecodedBlock v{_mm_setzero_si128(), _mm_setzero_si128()};
        const int scale = scales[p - first];
        const int base = window.outside >> (p - first) & 1 ? scale : window.low;
        if (inside) {
          v = decode_row_block(
              rows.codes + r * rows.codes_stride + int64_t{schedule.order[p]} * kBlockBytes,
              scale - base);
        }
        store_row_block(v, reinterpret_cast<int8_t*>(f.block(p)) + r * kBlock);
        const int32_t start = row_start<halving>(v);
        total += start;
        f.block_constants(p)[r] = start;
        f.block_constants(p)[width + r] = row_exponent(base);
      }
      f.group_constants(g)[r] = total;
      f.group_constants(g)[width + r] = row_exponent(window.low);
      f.out_of_line()[g] |= window.outside;
    }
  }
}

// One panel's group: bytes at `panel` of each block, exponents, corrections; returns the places
// that are out of line for a column.
template <bool halving>
uint32_t decode_group(const ColumnPanel& source, int panel, int64_t g, const Schedule& schedule,
                      const Form& f) {
  const int64_t first = group_first(schedule, g), last = schedule.ends[g];
  __m128i scales[kChunkBlocks];
  for (int64_t p = first; p < last; ++p) {
    scales[p - first] = _mm_loadu_si128(
        reinterpret_cast<const __m128i*>(source.scales + int64_t{schedule.order[p]} * kPanel));
  }
  const __m128i low = best_windows(scales, static_cast<int>(last - first), kSpread<halving>);
  uint32_t outside = 0;

  const __m512i table = _mm512_load_si512(kShifted);
  const __m512i offset = _mm512_set1_epi8(-128), nibble = _mm512_set1_epi8(15);
  // Copies a column's shift from its 32-bit lane to the lane's four bytes.
  const __m512i spread =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
  __m512i total = _mm512_setzero_si512();
  for (int64_t p = first; p < last; ++p) {
    const __m128i scale = scales[p - first], inside = in_line(scale, low, kSpread<halving>);
    const __m128i base = _mm_blendv_epi8(scale, low, inside);
    if (_mm_movemask_epi8(inside) != 0xFFFF) outside |= 1u << (p - first);
    const __m512i shift = _mm512_cvtepu8_epi32(_mm_sub_epi8(scale, base));
    const __m512i select = _mm512_slli_epi16(_mm512_shuffle_epi8(shift, spread), 4);
    const uint8_t* codes = source.codes + int64_t{schedule.order[p]} * kPanelBlockBytes;
    uint8_t* out = f.block(p) + panel * kStepBytes;
    __m512i sum = _mm512_setzero_si512();
    for (int d = 0; d < 4; ++d) {
      const __m512i x = _mm512_loadu_si512(codes + d * kStepBytes);
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
    _mm512_storeu_si512(f.block_constants(p) + panel * kPanel,
                        _mm512_slli_epi32(_mm512_cvtepu8_epi32(base), 23));
    _mm512_storeu_si512(f.block_constants(p) + kTileColumns + panel * kPanel, correction);
  }
  _mm512_storeu_si512(f.group_constants(g) + panel * kPanel,
                      _mm512_slli_epi32(_mm512_cvtepu8_epi32(low), 23));
  _mm512_storeu_si512(f.group_constants(g) + kTileColumns + panel * kPanel, total);
  return outside;
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
  for (int64_t g = 0; g < f.groups; ++g) {
    _mm512_storeu_si512(f.group_constants(g) + panel * kPanel, zero);
    _mm512_storeu_si512(f.group_constants(g) + kTileColumns + panel * kPanel, zero);
  }
}

template <bool halving>
void decode_columns(const ColumnPanel* panels, int count, const Schedule& schedule, void* form) {
  const Form f = form_of(form, kTileColumns, schedule);
  for (int p = count; p < kTilePanels; ++p) clear_panel(p, f);
  for (int64_t g = 0; g < f.groups; ++g) {
    uint32_t outside = 0;
    for (int p = 0; p < count; ++p) outside |= decode_group<halving>(panels[p], p, g, schedule, f);
    f.out_of_line()[g] = outside;
  }
}

// What a group's sums start from, and its exponents, for the places that are in line for both
// operands: the whole group's less those of the others.
template <int width, int summed>  // `summed`: which of the two arrays is a sum over the places
void constants_in_line(const Form& f, int64_t g, int64_t first, uint32_t outside, int32_t* out) {
  __builtin_memcpy(out, f.group_constants(g), 2 * width * sizeof(int32_t));
  for (; outside; outside &= outside - 1) {
    const int32_t* own = f.block_constants(first + __builtin_ctz(outside)) + summed * width;
    for (int i = 0; i < width; ++i) out[summed * width + i] -= own[i];
  }
}

// Places that are in line for both operands are summed as integers and scaled once, each of the
// others for itself.
template <bool halving>
void tile(const void* rows, const void* columns, const Schedule& schedule, int g, float* acc) {
  constexpr int width = kRows<halving>;
  const auto group = halving ? mxgemm_avx512_halving_group_6x48 : mxgemm_avx512_vnni_group_8x48;
  const auto block = halving ? mxgemm_avx512_halving_block_6x48 : mxgemm_avx512_vnni_block_8x48;
  const Form a = form_of(rows, width, schedule), b = form_of(columns, kTileColumns, schedule);
  const int64_t first = group_first(schedule, g);
  const auto count = static_cast<int>(schedule.ends[g] - first);
  uint32_t outside = a.out_of_line()[g] | b.out_of_line()[g];
  if (count - __builtin_popcount(outside) < kLeastInLine)
    return block(a.block(first), b.block(first), count, acc);

  const void* list[kChunkBlocks][2];
  int listed = 0;
  for (int i = 0; i < count; ++i) {
    list[listed][0] = a.block(first + i);
    list[listed][1] = b.block(first + i);
    listed += 1 - static_cast<int>(outside >> i & 1);
  }
  if (!outside) return group(list, listed, acc, a.group_constants(g), b.group_constants(g));
  int32_t row_constants[2 * width], column_constants[2 * kTileColumns];
  constants_in_line<width, 0>(a, g, first, outside, row_constants);
  if (halving) constants_in_line<kTileColumns, 1>(b, g, first, outside, column_constants);
  group(list, listed, acc, row_constants, halving ? column_constants : b.group_constants(g));
  while (outside) {
    // Neighbours go together.
    const int from = __builtin_ctz(outside), run = __builtin_ctzll(~(uint64_t{outside} >> from));
    block(a.block(first + from), b.block(first + from), run, acc);
    outside = static_cast<uint32_t>(uint64_t{outside} >> (from + run) << (from + run));
  }
}

template <bool halving>
size_t row_form_bytes(const Schedule& schedule) {
  return form_bytes(kRows<halving>, schedule);
}
size_t column_form_bytes(const Schedule& schedule) { return form_bytes(kTileColumns, schedule); }

// The few-rows form is a form without groups.
inline Form few_rows_form(const void* form, int rows, int64_t blocks) {
  return {static_cast<uint8_t*>(const_cast<void*>(form)), rows, blocks, 0};
}
size_t few_rows_form_bytes(int rows, int64_t blocks) {
  return static_cast<size_t>(few_rows_form(nullptr, rows, blocks).block_bytes() * blocks);
}

// Few rows: unshifted, since B stays packed and is scaled block by block; starts for B's offset
// of 12.
void pack_few_rows(const RowPanel& rows, void* form) {
  const Form f = few_rows_form(form, rows.rows, rows.blocks);
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

// Twice the value of each code with the offset of 12 added, four times over.
inline __m512i few_rows_table() {
  return _mm512_add_epi8(
      _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kShifted))),
      _mm512_set1_epi8(kFewOffset));
}

// The panel's block as bytes with the offset of 12 added: q[2d] even and q[2d + 1] odd k of the
// d-th eight.
inline void decode_for_few(const ColumnPanel& panel, int64_t b, __m512i* q) {
  const __m512i table = few_rows_table();
#pragma GCC unroll 4
  for (int d = 0; d < 4; ++d) {
    const uint8_t* source = panel.codes + b * kPanelBlockBytes + d * kStepBytes;
    ask_ahead(source);
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
  const Form f = few_rows_form(form, rows, blocks);
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
#include "row_major_avx512.inl"
#include "weight_only_avx512.inl"
#include "weight_only_rows.inl"

// One k a step. A column's 32 bits hold 8 codes; a table index of 4 bits takes the lowest.
struct FmaStep {
  using Value = float;
  static constexpr int kSteps = kBlock;

  static __m512 decode(const uint8_t* block, int s) {
    const __m512 table = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6,  //
                                        -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    const __m512i q = _mm512_loadu_si512(block + s / 8 * 64);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(q, 4 * (s % 8)), table);
  }
  static __m512 add(__m512 b, const float* a, __m512 sum) {
    return _mm512_fmadd_ps(b, _mm512_set1_ps(*a), sum);
  }
};

bool pack_plain_row(const void* x, DType dtype, int64_t k, int64_t blocks, int rows, int row,
                    void* form) {
  return for_each_block(x, dtype, k, blocks, [&](int64_t b, const float* values) {
    float* out = static_cast<float*>(form) + (b * rows + row) * kBlock;
    for (int i = 0; i < kBlock; ++i) out[i] = values[i];
  });
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
      true,
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
      4,
      row_major_form_bytes,
      pack_row_major,
      row_major,
      interleave,
      {"FMA", 4, pack_plain_row, multiply_plain<FmaStep>},
      {},
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
