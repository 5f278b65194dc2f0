// AVX2 (with FMA and F16C): exact products in 16-bit lanes.
//
// A code times two is an integer of at most 12. B is stored with 12 added, so that vpmaddubsw may
// take it as unsigned; the row's constant -12 * sum(a) is what the accumulators start from. Over
// one block a 16-bit lane sums 16 products of at most 24 * 12, plus the start: 4608 + 2304 < 2^15,
// so nothing saturates. Each block is then widened, converted and added with its scale by one FMA:
// one FP32 rounding a block, whatever the scales.
#include <immintrin.h>

#include "kernels.h"

// Generated; see generate_tiles.py.
extern "C" void mxgemm_avx2_block_6x16(const void* rows, const void* columns, int64_t blocks,
                                       float* acc);

namespace mxgemm {
namespace {

constexpr int kOffset = 12;  // makes twice a code's value nonnegative
constexpr int kRows = 6;
constexpr int kSteps = kBlock / 4;
constexpr int kStepBytes = kPanel * 4;
constexpr int kDecodedBlock = kPanel * kBlock;
constexpr int kPrefetchBytes = 2048;

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

// Rows as the generated tile reads them, for each block: int8 [group][32], then int32 [group] what
// the sums start from and int32 [group] the exponents of the scales in place, (byte - 129) << 23:
// adding B's byte << 23 gives the bits of 2^(a + b - 254) / 4, the quarter because both operands
// are doubled.
struct RowForm {
  uint8_t* base;
  int group;

  int8_t* values(int64_t block) const {
    return reinterpret_cast<int8_t*>(base + block * group * (kBlock + 8));
  }
  int32_t* starts(int64_t block) const {
    return reinterpret_cast<int32_t*>(values(block) + group * kBlock);
  }
  int32_t* exponents(int64_t block) const { return starts(block) + group; }
};

inline RowForm row_form(const void* form, int group) {
  return {static_cast<uint8_t*>(const_cast<void*>(form)), group};
}

size_t row_form_bytes(int group, int64_t blocks) {
  return static_cast<size_t>(blocks) * group * (kBlock + 8);
}

void pack_group(const RowPanel& rows, int group, void* form) {
  const RowForm f = row_form(form, group);
  const __m128i table = _mm256_castsi256_si128(signed_table());
  const __m128i nibble = _mm_set1_epi8(15);
  for (int r = 0; r < group; ++r) {
    if (r >= rows.rows) {
      for (int64_t b = 0; b < rows.blocks; ++b) {
        store(f.values(b) + r * kBlock, _mm256_setzero_si256());
        f.exponents(b)[r] = 0;
        f.starts(b)[r] = 0;
      }
      continue;
    }
    const uint8_t* codes = rows.codes + r * rows.codes_stride;
    const uint8_t* scales = rows.scales + r * rows.blocks;
    for (int64_t b = 0; b < rows.blocks; ++b) {
      const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + b * kBlockBytes));
      const __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(x, nibble));
      const __m128i odd = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(x, 4), nibble));
      const __m256i values =
          _mm256_set_m128i(_mm_unpackhi_epi32(even, odd), _mm_unpacklo_epi32(even, odd));
      store(f.values(b) + r * kBlock, values);
      // Sum of the row's 32 values, from their sums with the offset that makes them unsigned.
      const __m128i raised = _mm_add_epi8(_mm_add_epi8(even, odd), _mm_set1_epi8(2 * kOffset));
      const __m128i sums = _mm_sad_epu8(raised, _mm_setzero_si128());
      const int sum = _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - kBlock * kOffset;
      const int start = -sum * (kOffset / 2);  // in each of a column's two 16-bit lanes
      f.exponents(b)[r] = static_cast<int32_t>(static_cast<uint32_t>(scales[b] - 129) << 23);
      f.starts(b)[r] = static_cast<int32_t>(static_cast<uint32_t>(start & 0xFFFF) * 0x10001u);
    }
  }
}

size_t tile_row_bytes(const Schedule& s) { return row_form_bytes(kRows, s.blocks); }
void pack_rows(const RowPanel& rows, const Schedule&, void* form) { pack_group(rows, kRows, form); }
void pack_few_rows(const RowPanel& rows, void* form) { pack_group(rows, rows.rows, form); }

// B decoded, for each block: bytes with the offset added [8 steps][16 columns][4], then exponents
// int32 [16].
constexpr int kColumnBlockBytes = kDecodedBlock + kPanel * 4;

size_t column_form_bytes(const Schedule& s) {
  return static_cast<size_t>(s.blocks) * kColumnBlockBytes;
}

inline void expand_exponents(const uint8_t* scales, __m256i* first, __m256i* second) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
  *first = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23);
  *second = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes)), 23);
}

void decode_columns(const ColumnPanel* panels, int, const Schedule& schedule, void* form) {
  const __m256i table = offset_table();
  for (int64_t b = 0; b < schedule.blocks; ++b) {
    const uint8_t* source = panels->codes + b * kPanelBlockBytes;
    uint8_t* target = static_cast<uint8_t*>(form) + b * kColumnBlockBytes;
    for (int d = 0; d < 4; ++d) {
      for (int half = 0; half < 2; ++half) {
        const __m256i x = load(source + d * kStepBytes + half * 32);
        store(target + 2 * d * kStepBytes + half * 32, _mm256_shuffle_epi8(table, low_nibbles(x)));
        store(target + (2 * d + 1) * kStepBytes + half * 32,
              _mm256_shuffle_epi8(table, high_nibbles(x)));
      }
    }
    __m256i first, second;
    expand_exponents(panels->scales + b * kPanel, &first, &second);
    store(target + kDecodedBlock, first);
    store(target + kDecodedBlock + 32, second);
  }
}

// acc += products * 2^(exponents)
inline void add_scaled(__m256i products16, __m256i exponents, float* acc) {
  const __m256i products = _mm256_madd_epi16(products16, _mm256_set1_epi16(1));
  const __m256 scale = _mm256_castsi256_ps(exponents);
  _mm256_storeu_ps(acc, _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), scale, _mm256_loadu_ps(acc)));
}

void tile(const void* rows, const void* columns, const Schedule& schedule, int group, float* acc) {
  const int64_t first = group ? schedule.ends[group - 1] : 0, last = schedule.ends[group];
  mxgemm_avx2_block_6x16(row_form(rows, kRows).values(first),
                         static_cast<const uint8_t*>(columns) + first * kColumnBlockBytes,
                         last - first, acc);
}

size_t few_rows_form_bytes(int rows, int64_t blocks) { return row_form_bytes(rows, blocks); }

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
      _mm_prefetch(reinterpret_cast<const char*>(q + d * kStepBytes + kPrefetchBytes), _MM_HINT_T0);
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
    expand_exponents(panel.scales + b * kPanel, &e0, &e1);
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
    expand_exponents(panel.scales + b * kPanel, &e[0], &e[1]);
    for (int half = 0; half < 2; ++half) {
      __m256i q[kSteps];
#pragma GCC unroll 4
      for (int d = 0; d < 4; ++d) {
        const uint8_t* source = block + d * kStepBytes + half * 32;
        _mm_prefetch(reinterpret_cast<const char*>(source + kPrefetchBytes), _MM_HINT_T0);
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
      32,
      false,
      4,
      size_t{224} << 10,
      tile_row_bytes,
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
