// Few rows of A times rows of B as they lie in memory, K along the lanes. Included inside an
// anonymous namespace by the unit with AVX-512 VNNI and VBMI.
//
// A vector holds four blocks of a row of B. Each block's sum lies in four 32-bit lanes until the
// end, scaled and added in FP32 like a sum over a quarter of K.

constexpr int kRowMajorBlocks = 4;  // blocks to a vector

constexpr int kScaleGroup = 16;  // blocks whose scales are made at once

inline int64_t scale_stride(int64_t blocks) {
  return (blocks + kScalePad - 1) / kScalePad * kScalePad;
}

// Rows of A. For each four blocks and each row: even values [64], odd values [64], int32 [16] what
// the lanes' sums start from; behind them for each row int32 [blocks rounded up] exponents.
struct RowMajorForm {
  uint8_t* base;
  int rows;
  int64_t blocks;

  int64_t vectors() const { return (blocks + kRowMajorBlocks - 1) / kRowMajorBlocks; }
  int8_t* values(int64_t vector, int r) const {
    return reinterpret_cast<int8_t*>(base + (vector * rows + r) * 192);
  }
  int32_t* exponents(int r) const {
    return reinterpret_cast<int32_t*>(base + vectors() * rows * 192) + r * scale_stride(blocks);
  }
};

size_t row_major_form_bytes(int rows, int64_t blocks) {
  const int64_t vectors = (blocks + kRowMajorBlocks - 1) / kRowMajorBlocks;
  return static_cast<size_t>(rows) * (vectors * 192 + scale_stride(blocks) * 4);
}

void pack_row_major(const RowPanel& rows, void* form) {
  const RowMajorForm f{static_cast<uint8_t*>(form), rows.rows, rows.blocks};
  const __m128i offset = _mm_set1_epi8(kFewOffset);
  for (int r = 0; r < rows.rows; ++r) {
    int32_t* exponents = f.exponents(r);
    for (int64_t b = 0; b < scale_stride(rows.blocks); ++b)
      exponents[b] = b < rows.blocks ? row_exponent(rows.scales[r * rows.blocks + b]) : 0;
    for (int64_t b = 0; b < f.vectors() * kRowMajorBlocks; ++b) {
      DecodedBlock v{_mm_setzero_si128(), _mm_setzero_si128()};
      if (b < rows.blocks)
        v = decode_row_block(rows.codes + r * rows.codes_stride + b * kBlockBytes, 0);
      __m128i sum = _mm_dpbusd_epi32(_mm_setzero_si128(), offset, v.even);
      sum = _mm_dpbusd_epi32(sum, offset, v.odd);
      auto* out = reinterpret_cast<__m128i*>(f.values(b / kRowMajorBlocks, r));
      _mm_storeu_si128(out + b % 4, v.even);
      _mm_storeu_si128(out + 4 + b % 4, v.odd);
      _mm_storeu_si128(out + 8 + b % 4, _mm_sub_epi32(_mm_setzero_si128(), sum));
    }
  }
}

// `m` rows of A times `n` rows of B.
template <int m, int n>
void row_major_tile(const RowMajorForm& f, const uint8_t* codes, int64_t codes_stride,
                    const uint8_t* scales, float* acc, int64_t stride) {
  const __m512i table = few_rows_table();
  const int64_t scales_stride = scale_stride(f.blocks);
  __m512 sum[n][m];
  for (auto& row : sum) {
    for (auto& each : row) each = _mm512_setzero_ps();
  }
  for (int64_t first = 0; first < f.blocks; first += kScaleGroup) {
    __m512i scale[n][m];  // of sixteen blocks
    for (int j = 0; j < n; ++j) {
      const __m512i bytes = _mm512_cvtepu8_epi32(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + j * scales_stride + first)));
      const __m512i exponents = _mm512_slli_epi32(bytes, 23);
      for (int i = 0; i < m; ++i)
        scale[j][i] = _mm512_add_epi32(exponents, _mm512_loadu_si512(f.exponents(i) + first));
    }
    const int64_t last = first + kScaleGroup < f.blocks ? first + kScaleGroup : f.blocks;
    __m512i select = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    for (int64_t b = first; b < last; b += kRowMajorBlocks) {
      const int8_t* a = f.values(b / kRowMajorBlocks, 0);
      const __mmask16 inside = last - b >= kRowMajorBlocks
                                   ? static_cast<__mmask16>(-1)
                                   : static_cast<__mmask16>((1 << 4 * (last - b)) - 1);
#pragma GCC unroll 4
      for (int j = 0; j < n; ++j) {
        const uint8_t* source = codes + j * codes_stride + b * kBlockBytes;
        // The rows that come after these: a row is too short for a distance within it.
        _mm_prefetch(reinterpret_cast<const char*>(source + n * codes_stride), _MM_HINT_T0);
        // The table is repeated four times, so that the two bits above a nibble do not matter.
        const __m512i x = _mm512_maskz_loadu_epi32(inside, source);
        const __m512i even = _mm512_permutexvar_epi8(x, table);
        const __m512i odd = _mm512_permutexvar_epi8(_mm512_srli_epi16(x, 4), table);
#pragma GCC unroll 4
        for (int i = 0; i < m; ++i) {
          const int8_t* row = a + i * 192;
          __m512i exact =
              _mm512_dpbusd_epi32(_mm512_loadu_si512(row + 128), even, _mm512_loadu_si512(row));
          exact = _mm512_dpbusd_epi32(exact, odd, _mm512_loadu_si512(row + 64));
          const __m512 factor = _mm512_castsi512_ps(_mm512_permutexvar_epi32(select, scale[j][i]));
          sum[j][i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact), factor, sum[j][i]);
        }
      }
      select = _mm512_add_epi32(select, _mm512_set1_epi32(kRowMajorBlocks));
    }
  }
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < m; ++i) acc[i * stride + j] = _mm512_reduce_add_ps(sum[j][i]);
  }
}

template <int m>
void row_major_rows(const RowMajorForm& f, const CanonicalRows& b, float* acc, int64_t stride) {
  constexpr int n = 4;
  int j = 0;
  const auto codes = [&] { return b.codes + j * b.codes_stride; };
  const auto scales = [&] { return b.scales + j * b.scales_stride; };
  for (; j + n <= b.rows; j += n)
    row_major_tile<m, n>(f, codes(), b.codes_stride, scales(), acc + j, stride);
  for (; j < b.rows; ++j)
    row_major_tile<m, 1>(f, codes(), b.codes_stride, scales(), acc + j, stride);
}

void row_major(const void* form, int rows, const CanonicalRows& b, int64_t blocks, float* acc,
               int64_t stride) {
  const RowMajorForm f{static_cast<uint8_t*>(const_cast<void*>(form)), rows, blocks};
  switch (rows) {
    case 1:
      return row_major_rows<1>(f, b, acc, stride);
    case 2:
      return row_major_rows<2>(f, b, acc, stride);
    case 3:
      return row_major_rows<3>(f, b, acc, stride);
    default:
      return row_major_rows<4>(f, b, acc, stride);
  }
}
