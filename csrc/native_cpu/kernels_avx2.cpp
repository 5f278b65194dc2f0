// AVX2 (with FMA and F16C): exact products in 16-bit lanes.
//
// A code times two is an integer of at most 12. B is stored with 12 added, so that vpmaddubsw may
// take it as unsigned; the row's constant -12 * sum(a) is what the accumulators start from. Twice
// 24
// * 96 do not saturate it, and what a lane holds after a block, at most 16 * 12 * 96, fits 16 bits
// whatever it went through (vpaddw wraps).
//
// A block whose scale byte lies at most 3 above its group's base for the row, and at most 7 above
// that for the column, is in line: the row's values are stored shifted left by that distance, and
// the column's distance is the factor by which vpmaddwd widens. Blocks that are in line for all
// rows and columns of a tile are one sum of integers, at most 96 * 12 * 2^7 * 1024 < 2^31, scaled
// once. The others are stored as they are, converted and scaled one by one.
#include <immintrin.h>

#include "kernels.h"

// Generated; see generate_tiles.py.
extern "C" {
void mxgemm_avx2_block_6x16(const void* rows, const void* columns, int64_t blocks, float* acc);
void mxgemm_avx2_group_6x16(const void* rows, const void* columns, int64_t blocks, int32_t* sums);
}

namespace mxgemm {
namespace {

constexpr int kOffset = 12;  // makes twice a code's value nonnegative
constexpr int kRows = 6;
constexpr int kChunkBlocks = 32;  // of a group: K = 1024
constexpr int kRowSpread = 3;     // binades that scale bytes in line may spread, in a row
constexpr int kColumnSpread = 7;  // and in a column
constexpr int kLeastInLine = 2;   // blocks, below which a group is not worth its own sum
constexpr int kSteps = kBlock / 4;
constexpr int kStepBytes = kPanel * 4;
constexpr int kDecodedBlock = kPanel * kBlock;

inline __m256i low_nibbles(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline __m256i high_nibbles(__m256i x) {
  return _mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(15));
}

// Twice the value of each code.
inline __m256i signed_table() {
  return _mm256_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12,  //
                          0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
}
inline __m256i offset_table() { return _mm256_add_epi8(signed_table(), _mm256_set1_epi8(kOffset)); }

inline __m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void store(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
inline __m256i broadcast32(const void* p) {
  return _mm256_castps_si256(_mm256_broadcast_ss(static_cast<const float*>(p)));
}

#include "ask_ahead_x86.inl"
#include "windows.inl"

// Rows as the generated tiles read them, for each place of K: int8 [group][32], then int32 [group]
// what the sums start from and int32 [group] the exponents of the scales in place, (byte - 129) <<
// 23: adding B's byte << 23 gives the bits of 2^(a + b - 254) / 4, the quarter because both
// operands are doubled.
struct RowForm {
  uint8_t* base;
  int group;

  int8_t* values(int64_t place) const {
    return reinterpret_cast<int8_t*>(base + place * group * (kBlock + 8));
  }
  int32_t* starts(int64_t place) const {
    return reinterpret_cast<int32_t*>(values(place) + group * kBlock);
  }
  int32_t* exponents(int64_t place) const { return starts(place) + group; }
};

inline RowForm row_form(const void* form, int group) {
  return {static_cast<uint8_t*>(const_cast<void*>(form)), group};
}

size_t few_rows_form_bytes(int rows, int64_t blocks) {
  return static_cast<size_t>(blocks) * rows * (kBlock + 8);
}

// Twice the value of each code, shifted left by 0 .. kRowSpread.
alignas(16) constexpr int8_t kShifted[kRowSpread + 1][16] = {
    {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12},
    {0, 2, 4, 6, 8, 12, 16, 24, 0, -2, -4, -6, -8, -12, -16, -24},
    {0, 4, 8, 12, 16, 24, 32, 48, 0, -4, -8, -12, -16, -24, -32, -48},
    {0, 8, 16, 24, 32, 48, 64, 96, 0, -8, -16, -24, -32, -48, -64, -96}};

inline int32_t row_exponent(int byte) {
  return static_cast<int32_t>(static_cast<uint32_t>(byte - 129) << 23);
}

// Writes row r of one place: its block's values shifted left, on the scale 2^(base - 127).
inline void pack_block(const uint8_t* codes, int shift, int base, const RowForm& f, int64_t place,
                       int r) {
  const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(kShifted[shift]));
  const __m128i nibble = _mm_set1_epi8(15), one = _mm_set1_epi8(1);
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  const __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(x, nibble));
  const __m128i odd = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(x, 4), nibble));
  store(f.values(place) + r * kBlock,
        _mm256_set_m128i(_mm_unpackhi_epi32(even, odd), _mm_unpacklo_epi32(even, odd)));
  // What a column's two 16-bit lanes start from: -12 times the sum of the values that each meets.
  __m128i sums = _mm_add_epi16(_mm_maddubs_epi16(one, even), _mm_maddubs_epi16(one, odd));
  sums = _mm_add_epi16(sums, _mm_shuffle_epi32(sums, 0x4E));
  sums = _mm_add_epi16(sums, _mm_shuffle_epi32(sums, 0xB1));
  f.starts(place)[r] = _mm_cvtsi128_si32(_mm_mullo_epi16(sums, _mm_set1_epi16(-kOffset)));
  f.exponents(place)[r] = row_exponent(base);
}

void pack_few_rows(const RowPanel& rows, void* form) {
  const RowForm f = row_form(form, rows.rows);
  for (int r = 0; r < rows.rows; ++r) {
    for (int64_t b = 0; b < rows.blocks; ++b) {
      pack_block(rows.codes + r * rows.codes_stride + b * kBlockBytes, 0,
                 rows.scales[r * rows.blocks + b], f, b, r);
    }
  }
}

// What a form holds of each group, behind its places: int32 [width] exponents of the base, then the
// places that are out of line, as bits.
struct GroupForm {
  uint8_t* base;
  int width;

  int32_t* exponents(int64_t group) const {
    return reinterpret_cast<int32_t*>(base + group * 4 * (width + 1));
  }
  uint32_t* out_of_line(int64_t group) const {
    return reinterpret_cast<uint32_t*>(exponents(group) + width);
  }
};

inline GroupForm row_groups(const void* rows, const Schedule& s) {
  return {static_cast<uint8_t*>(const_cast<void*>(rows)) + few_rows_form_bytes(kRows, s.blocks),
          kRows};
}

size_t row_form_bytes(const Schedule& s) {
  return few_rows_form_bytes(kRows, s.blocks) + static_cast<size_t>(s.num_groups) * 4 * (kRows + 1);
}

inline int64_t group_first(const Schedule& s, int64_t group) {
  return group ? s.ends[group - 1] : 0;
}

void pack_rows(const RowPanel& rows, const Schedule& schedule, void* form) {
  const RowForm f = row_form(form, kRows);
  const GroupForm groups = row_groups(form, schedule);
  for (int64_t g = 0; g < schedule.num_groups; ++g) {
    const int64_t first = group_first(schedule, g), last = schedule.ends[g];
    *groups.out_of_line(g) = 0;
    for (int r = 0; r < kRows; ++r) {
      const bool inside = r < rows.rows;
      uint8_t scales[kChunkBlocks] = {};
      for (int64_t p = first; inside && p < last; ++p)
        scales[p - first] = rows.scales[r * rows.blocks + schedule.order[p]];
      const Window window = best_window(scales, static_cast<int>(last - first), kRowSpread);
      groups.exponents(g)[r] = row_exponent(window.low);
      *groups.out_of_line(g) |= window.outside;
      for (int64_t p = first; p < last; ++p) {
        constexpr uint8_t kZeros[kBlockBytes] = {};
        const uint8_t* codes =
            inside ? rows.codes + r * rows.codes_stride + int64_t{schedule.order[p]} * kBlockBytes
                   : kZeros;
        const int scale = scales[p - first];
        const int base = window.outside >> (p - first) & 1 ? scale : window.low;
        pack_block(codes, scale - base, base, f, p, r);
      }
    }
  }
}

// B decoded, for each place: bytes with the offset added [8 steps][16 columns][4], then for each
// column its weight in the group, twice in 16 bits, and its exponent, int32.
constexpr int kColumnBlockBytes = kDecodedBlock + kPanel * 8;

inline uint8_t* column_block(const void* form, int64_t place) {
  return static_cast<uint8_t*>(const_cast<void*>(form)) + place * kColumnBlockBytes;
}

inline GroupForm column_groups(const void* form, const Schedule& s) {
  return {column_block(form, s.blocks), kPanel};
}

size_t column_form_bytes(const Schedule& s) {
  return static_cast<size_t>(s.blocks) * kColumnBlockBytes +
         static_cast<size_t>(s.num_groups) * 4 * (kPanel + 1);
}

inline void expand_exponents(__m128i bytes, __m256i* first, __m256i* second) {
  *first = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23);
  *second = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes)), 23);
}

inline __m128i load_scales(const ColumnPanel& panel, int64_t block) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(panel.scales + block * kPanel));
}

// 2^distance, twice in each column's 32 bits; of no meaning where the distance is not in line.
inline __m256i weights(__m128i distances) {
  const __m256i distance = _mm256_cvtepu8_epi32(distances);
  const __m256i weight = _mm256_sllv_epi32(_mm256_set1_epi32(1), distance);
  return _mm256_or_si256(weight, _mm256_slli_epi32(weight, 16));
}

void decode_codes(const uint8_t* source, uint8_t* target) {
  const __m256i table = offset_table();
  for (int d = 0; d < 4; ++d) {
    for (int half = 0; half < 2; ++half) {
      const __m256i x = load(source + d * kStepBytes + half * 32);
      store(target + 2 * d * kStepBytes + half * 32, _mm256_shuffle_epi8(table, low_nibbles(x)));
      store(target + (2 * d + 1) * kStepBytes + half * 32,
            _mm256_shuffle_epi8(table, high_nibbles(x)));
    }
  }
}

void decode_columns(const ColumnPanel* panels, int, const Schedule& schedule, void* form) {
  const GroupForm groups = column_groups(form, schedule);
  for (int64_t g = 0; g < schedule.num_groups; ++g) {
    const int64_t first = group_first(schedule, g), last = schedule.ends[g];
    __m128i scales[kChunkBlocks];
    for (int64_t p = first; p < last; ++p)
      scales[p - first] = load_scales(*panels, schedule.order[p]);
    const __m128i low = best_windows(scales, static_cast<int>(last - first), kColumnSpread);
    __m256i exponents[2];
    expand_exponents(low, &exponents[0], &exponents[1]);
    store(groups.exponents(g), exponents[0]);
    store(groups.exponents(g) + 8, exponents[1]);
    uint32_t outside = 0;
    for (int64_t p = first; p < last; ++p) {
      uint8_t* target = column_block(form, p);
      decode_codes(panels->codes + int64_t{schedule.order[p]} * kPanelBlockBytes, target);
      const __m128i scale = scales[p - first], distance = _mm_sub_epi8(scale, low);
      if (_mm_movemask_epi8(in_line(scale, low, kColumnSpread)) != 0xFFFF)
        outside |= 1u << (p - first);
      store(target + kDecodedBlock, weights(distance));
      store(target + kDecodedBlock + 32, weights(_mm_unpackhi_epi64(distance, distance)));
      expand_exponents(scale, &exponents[0], &exponents[1]);
      store(target + kDecodedBlock + 64, exponents[0]);
      store(target + kDecodedBlock + 96, exponents[1]);
    }
    *groups.out_of_line(g) = outside;
  }
}

// acc += products * 2^(exponents)
inline void add_scaled(__m256i products16, __m256i exponents, float* acc) {
  const __m256i products = _mm256_madd_epi16(products16, _mm256_set1_epi16(1));
  const __m256 scale = _mm256_castsi256_ps(exponents);
  _mm256_storeu_ps(acc, _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), scale, _mm256_loadu_ps(acc)));
}

// acc += sums * 2^(exponents) for a whole tile.
void add_group(const int32_t* sums, const int32_t* row_exponents, const int32_t* column_exponents,
               float* acc) {
  for (int r = 0; r < kRows; ++r) {
    const __m256i row = _mm256_set1_epi32(row_exponents[r]);
    for (int c = 0; c < kPanel; c += 8) {
      const __m256i bits = _mm256_add_epi32(row, load(column_exponents + c));
      const __m256 sum = _mm256_cvtepi32_ps(load(sums + r * kPanel + c));
      float* target = acc + r * kPanel + c;
      _mm256_storeu_ps(target,
                       _mm256_fmadd_ps(sum, _mm256_castsi256_ps(bits), _mm256_loadu_ps(target)));
    }
  }
}

// Places that are in line for both operands are summed as integers and scaled once, each of the
// others for itself.
void tile(const void* rows, const void* columns, const Schedule& schedule, int g, float* acc) {
  const GroupForm a = row_groups(rows, schedule), b = column_groups(columns, schedule);
  const int64_t first = group_first(schedule, g);
  const auto count = static_cast<int>(schedule.ends[g] - first);
  const uint32_t outside = *a.out_of_line(g) | *b.out_of_line(g);
  const auto row_block = [&](int64_t place) { return row_form(rows, kRows).values(place); };
  if (count - __builtin_popcount(outside) < kLeastInLine) {
    mxgemm_avx2_block_6x16(row_block(first), column_block(columns, first), count, acc);
    return;
  }
  alignas(32) int32_t sums[kRows * kPanel] = {};
  for (int i = 0, end; i < count; i = end) {
    // Neighbours of one kind go together.
    const uint32_t kind = outside >> i & 1;
    for (end = i + 1; end < count && (outside >> end & 1) == kind;) ++end;
    const void *at = row_block(first + i), *with = column_block(columns, first + i);
    if (kind) {
      mxgemm_avx2_block_6x16(at, with, end - i, acc);
    } else {
      mxgemm_avx2_group_6x16(at, with, end - i, sums);
    }
  }
  add_group(sums, a.exponents(g), b.exponents(g), acc);
}

// One row: everything stays in registers, both halves of the panel at once.
void few_one(const RowForm& f, const ColumnPanel& panel, int64_t blocks, float* acc) {
  const __m256i table = offset_table();
  __m256 total0 = _mm256_setzero_ps(), total1 = _mm256_setzero_ps();
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* q = panel.codes + b * kPanelBlockBytes;
    const int8_t* a = f.values(b);
    __m256i even0 = broadcast32(f.starts(b)), even1 = even0;
    __m256i odd0 = _mm256_setzero_si256(), odd1 = odd0;
#pragma GCC unroll 4
    for (int d = 0; d < 4; ++d) {
      ask_ahead(q + d * kStepBytes);
      const __m256i x0 = load(q + d * kStepBytes), x1 = load(q + d * kStepBytes + 32);
      const __m256i lo = broadcast32(a + d * 8), hi = broadcast32(a + d * 8 + 4);
      even0 = _mm256_add_epi16(
          even0, _mm256_maddubs_epi16(_mm256_shuffle_epi8(table, low_nibbles(x0)), lo));
      odd0 = _mm256_add_epi16(
          odd0, _mm256_maddubs_epi16(_mm256_shuffle_epi8(table, high_nibbles(x0)), hi));
      even1 = _mm256_add_epi16(
          even1, _mm256_maddubs_epi16(_mm256_shuffle_epi8(table, low_nibbles(x1)), lo));
      odd1 = _mm256_add_epi16(
          odd1, _mm256_maddubs_epi16(_mm256_shuffle_epi8(table, high_nibbles(x1)), hi));
    }
    __m256i e0, e1;
    expand_exponents(load_scales(panel, b), &e0, &e1);
    const __m256i e = broadcast32(f.exponents(b));
    const __m256i one = _mm256_set1_epi16(1);
    const __m256i sum0 = _mm256_madd_epi16(_mm256_add_epi16(even0, odd0), one);
    const __m256i sum1 = _mm256_madd_epi16(_mm256_add_epi16(even1, odd1), one);
    total0 = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum0), _mm256_castsi256_ps(_mm256_add_epi32(e0, e)),
                             total0);
    total1 = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum1), _mm256_castsi256_ps(_mm256_add_epi32(e1, e)),
                             total1);
  }
  _mm256_storeu_ps(acc, total0);
  _mm256_storeu_ps(acc + 8, total1);
}

// Decodes half a panel's block into registers and uses it for all rows; the sums live in the
// first-level cache.
void few(const void* form, int rows, const ColumnPanel& panel, int64_t blocks, float* acc,
         int64_t stride) {
  const RowForm f = row_form(form, rows);
  if (rows == 1) return few_one(f, panel, blocks, acc);
  const __m256i table = offset_table();
  for (int r = 0; r < rows; ++r) {
    _mm256_storeu_ps(acc + r * stride, _mm256_setzero_ps());
    _mm256_storeu_ps(acc + r * stride + 8, _mm256_setzero_ps());
  }
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* block = panel.codes + b * kPanelBlockBytes;
    __m256i e[2];
    expand_exponents(load_scales(panel, b), &e[0], &e[1]);
    for (int half = 0; half < 2; ++half) {
      __m256i q[kSteps];
#pragma GCC unroll 4
      for (int d = 0; d < 4; ++d) {
        const uint8_t* source = block + d * kStepBytes + half * 32;
        ask_ahead(source);
        const __m256i x = load(source);
        q[2 * d] = _mm256_shuffle_epi8(table, low_nibbles(x));
        q[2 * d + 1] = _mm256_shuffle_epi8(table, high_nibbles(x));
      }
      const int8_t* a = f.values(b);
      const int32_t* starts = f.starts(b);
      const int32_t* exponents = f.exponents(b);
      float* out = acc + half * 8;
      for (int r = 0; r < rows; ++r) {
        __m256i even = broadcast32(starts + r), odd = _mm256_setzero_si256();
#pragma GCC unroll 4
        for (int d = 0; d < 4; ++d) {
          even = _mm256_add_epi16(
              even, _mm256_maddubs_epi16(q[2 * d], broadcast32(a + r * kBlock + d * 8)));
          odd = _mm256_add_epi16(
              odd, _mm256_maddubs_epi16(q[2 * d + 1], broadcast32(a + r * kBlock + d * 8 + 4)));
        }
        add_scaled(_mm256_add_epi16(even, odd),
                   _mm256_add_epi32(e[half], broadcast32(exponents + r)), out + r * stride);
      }
    }
  }
}

#include "finish.inl"
#include "interleave_x86.inl"
#include "quantize_avx2.inl"
#include "row_major_avx2.inl"
#include "weight_only_avx2.inl"

#define MXGEMM_MULTIPLY_ADD(n)               \
  "vpmaddubsw %%ymm14, %%ymm13, %%ymm12\n\t" \
  "vpaddw %%ymm12, %%ymm" #n ", %%ymm" #n "\n\t"

int64_t multiply_loop(int64_t iterations) {
  for (int64_t i = 0; i < iterations; ++i) {
    asm volatile(MXGEMM_MULTIPLY_ADD(0) MXGEMM_MULTIPLY_ADD(1) MXGEMM_MULTIPLY_ADD(2)
                     MXGEMM_MULTIPLY_ADD(3) MXGEMM_MULTIPLY_ADD(4) MXGEMM_MULTIPLY_ADD(5)
                         MXGEMM_MULTIPLY_ADD(6) MXGEMM_MULTIPLY_ADD(7)
                 :
                 :
                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm12");
  }
  return iterations * 8 * 32;
}

#include "read_loop_avx2.inl"

}  // namespace

const Kernels* avx2_kernels() {
  static const Kernels table = {
      "avx2",
      "6x16, 16-bit sums",
      kRows,
      1,
      kChunkBlocks,
      true,
      1,
      size_t{224} << 10,
      row_form_bytes,
      column_form_bytes,
      pack_rows,
      decode_columns,
      tile,
      24,
      few_rows_form_bytes,
      pack_few_rows,
      few,
      4,
      row_major_form_bytes,
      pack_row_major,
      row_major,
      interleave,
      kPlainAvx2,
      {},
      finish,
      finish_wide,
      quantize_kernels(),
      multiply_loop,
      read_loop,
  };
  return &table;
}

}  // namespace mxgemm
