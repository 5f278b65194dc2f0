// Few rows of A times rows of B as they lie in memory, K along the lanes. Included inside an
// anonymous namespace by the unit with AVX2.
//
// A vector holds two blocks of a row of B. Each block's sum lies in four 32-bit lanes until the
// end, scaled and added in FP32 like a sum over a quarter of K.

constexpr int kRowMajorBlocks = 2;  // blocks to a vector

constexpr int kScaleGroup = 8;  // blocks whose scales are made at once

inline int64_t scale_stride(int64_t blocks) {
  return (blocks + kScalePad - 1) / kScalePad * kScalePad;
}

// Rows of A. For each pair of blocks and each row: even values [32], odd values [32], int32 [8]
// what the lanes' sums start from; behind them for each row int32 [blocks rounded up] exponents.
struct RowMajorForm {
  uint8_t* base;
  int rows;
  int64_t blocks;

  int64_t pairs() const { return (blocks + kRowMajorBlocks - 1) / kRowMajorBlocks; }
  int8_t* values(int64_t pair, int r) const {
    return reinterpret_cast<int8_t*>(base + (pair * rows + r) * 96);
  }
  int32_t* exponents(int r) const {
    return reinterpret_cast<int32_t*>(base + pairs() * rows * 96) + r * scale_stride(blocks);
  }
};

size_t row_major_form_bytes(int rows, int64_t blocks) {
  const int64_t pairs = (blocks + kRowMajorBlocks - 1) / kRowMajorBlocks;
  return static_cast<size_t>(rows) * (pairs * 96 + scale_stride(blocks) * 4);
}

void pack_row_major(const RowPanel& rows, void* form) {
  const RowMajorForm f{static_cast<uint8_t*>(form), rows.rows, rows.blocks};
  const __m128i table = _mm256_castsi256_si128(signed_table());
  const __m128i nibble = _mm_set1_epi8(15), one = _mm_set1_epi8(1);
  for (int r = 0; r < rows.rows; ++r) {
    const uint8_t* codes = rows.codes + r * rows.codes_stride;
    int32_t* exponents = f.exponents(r);
    for (int64_t b = 0; b < scale_stride(rows.blocks); ++b) {
      exponents[b] = b < rows.blocks ? row_exponent(rows.scales[r * rows.blocks + b]) : 0;
    }
    for (int64_t b = 0; b < f.pairs() * kRowMajorBlocks; ++b) {
      __m128i x = _mm_setzero_si128();
      if (b < rows.blocks)
        x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + b * kBlockBytes));
      const __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(x, nibble));
      const __m128i odd = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(x, 4), nibble));
      const __m128i pairs =
          _mm_add_epi16(_mm_maddubs_epi16(one, even), _mm_maddubs_epi16(one, odd));
      const __m128i start = _mm_madd_epi16(pairs, _mm_set1_epi16(-kOffset));
      auto* out = reinterpret_cast<__m128i*>(f.values(b / kRowMajorBlocks, r));
      _mm_storeu_si128(out + b % 2, even);
      _mm_storeu_si128(out + 2 + b % 2, odd);
      _mm_storeu_si128(out + 4 + b % 2, start);
    }
  }
}

inline float lane_sum(__m256 x) {
  const __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

// `m` rows of A times `n` rows of B.
template <int m, int n>
void row_major_tile(const RowMajorForm& f, const uint8_t* codes, int64_t codes_stride,
                    const uint8_t* scales, float* acc, int64_t stride) {
  const __m256i table = offset_table(), one = _mm256_set1_epi16(1);
  const int64_t scales_stride = scale_stride(f.blocks);
  __m256 sum[n][m];
  for (auto& row : sum) {
    for (auto& each : row) each = _mm256_setzero_ps();
  }
  for (int64_t first = 0; first < f.blocks; first += kScaleGroup) {
    __m256i scale[n][m];  // of eight blocks
    for (int j = 0; j < n; ++j) {
      const __m256i bytes = _mm256_cvtepu8_epi32(
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + j * scales_stride + first)));
      const __m256i exponents = _mm256_slli_epi32(bytes, 23);
      for (int i = 0; i < m; ++i)
        scale[j][i] = _mm256_add_epi32(exponents, load(f.exponents(i) + first));
    }
    // Adds blocks first + 2 * step and the next one, which may be missing.
    const auto add_pair = [&](int step, bool whole) {
      const int64_t b = first + step * kRowMajorBlocks;
      const int8_t* a = f.values(b / kRowMajorBlocks, 0);
      const __m256i select = _mm256_add_epi32(_mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1),
                                              _mm256_set1_epi32(step * kRowMajorBlocks));
#pragma GCC unroll 4
      for (int j = 0; j < n; ++j) {
        const uint8_t* source = codes + j * codes_stride + b * kBlockBytes;
        // The rows that come after these: a row is too short for a distance within it.
        if (step % 2 == 0) {
          _mm_prefetch(reinterpret_cast<const char*>(source + n * codes_stride), _MM_HINT_T0);
        }
        const __m256i x =
            whole
                ? load(source)
                : _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
        const __m256i even = _mm256_shuffle_epi8(table, low_nibbles(x));
        const __m256i odd = _mm256_shuffle_epi8(table, high_nibbles(x));
#pragma GCC unroll 4
        for (int i = 0; i < m; ++i) {
          const int8_t* row = a + i * 96;
          const __m256i products = _mm256_add_epi16(_mm256_maddubs_epi16(even, load(row)),
                                                    _mm256_maddubs_epi16(odd, load(row + 32)));
          const __m256i exact = _mm256_add_epi32(_mm256_madd_epi16(products, one), load(row + 64));
          const __m256 factor =
              _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(scale[j][i], select));
          sum[j][i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact), factor, sum[j][i]);
        }
      }
    };
    if (first + kScaleGroup <= f.blocks) {
#pragma GCC unroll 4
      for (int step = 0; step < kScaleGroup / kRowMajorBlocks; ++step) add_pair(step, true);
    } else {
      for (int step = 0; first + step * kRowMajorBlocks < f.blocks; ++step)
        add_pair(step, first + step * kRowMajorBlocks + 1 < f.blocks);
    }
  }
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < m; ++i) acc[i * stride + j] = lane_sum(sum[j][i]);
  }
}

template <int m>
void row_major_rows(const RowMajorForm& f, const CanonicalRows& b, float* acc, int64_t stride) {
  constexpr int n = m == 1 ? 4 : 2;
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
