// 16-bit or FP32 rows times packed B in FP32, for units with AVX2, FMA and F16C. Included inside an
// anonymous namespace.
//
// A code's value is a bfloat16 whose two bytes are looked up apart; interleaved and split again
// they are FP32 values of neighbouring even (or odd) k, two to each column. The rows' values are
// laid out to match.

constexpr int kWideLanes = 8;

inline __m256i bf16_high_bytes() {
  return _mm256_setr_epi8(0, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40,  //
                          -128, -65, -65, -65, -64, -64, -64, -64,      //
                          0, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40,  //
                          -128, -65, -65, -65, -64, -64, -64, -64);
}
inline __m256i bf16_low_bytes() {
  return _mm256_setr_epi8(0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64,  //
                          0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64);
}

// Adds 32 decoded values of 8 columns (4 k each) times the row's x [4], k ascending in steps of
// `step`. sum[0]: columns 0 1 | 4 5, sum[1]: columns 2 3 | 6 7, two partial sums side by side each.
inline void add_dot(__m256i nibbles, const float* x, int step, __m256* sum) {
  const __m256i hi = _mm256_shuffle_epi8(bf16_high_bytes(), nibbles);
  const __m256i lo = _mm256_shuffle_epi8(bf16_low_bytes(), nibbles);
  const __m256 first = _mm256_setr_ps(x[0], x[2 * step], x[0], x[2 * step],  //
                                      x[0], x[2 * step], x[0], x[2 * step]);
  const __m256 second = _mm256_setr_ps(x[step], x[3 * step], x[step], x[3 * step],  //
                                       x[step], x[3 * step], x[step], x[3 * step]);
  const __m256i pair[2] = {_mm256_unpacklo_epi8(lo, hi), _mm256_unpackhi_epi8(lo, hi)};
  for (int i = 0; i < 2; ++i) {
    const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(pair[i], 16));
    const __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(pair[i], _mm256_set1_epi32(-65536)));
    sum[i] = _mm256_fmadd_ps(even, first, sum[i]);
    sum[i] = _mm256_fmadd_ps(odd, second, sum[i]);
  }
}

void weight_only(const float* x, int rows, const ColumnPanel& panel, int64_t blocks, float* acc,
                 int64_t stride) {
  const int64_t k = blocks * kBlock;
  for (int r = 0; r < rows; ++r) {
    const float* row = x + r * k;
    for (int half = 0; half < 2; ++half) {
      __m256 total = _mm256_setzero_ps();
      for (int64_t b = 0; b < blocks; ++b) {
        __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        for (int d = 0; d < 4; ++d) {
          const uint8_t* source = panel.codes + b * kPanelBlockBytes + d * kPanel * 4 + half * 32;
          const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
          add_dot(_mm256_and_si256(q, _mm256_set1_epi8(15)), row + b * kBlock + d * 8, 2, sum);
          add_dot(_mm256_and_si256(_mm256_srli_epi16(q, 4), _mm256_set1_epi8(15)),
                  row + b * kBlock + d * 8 + 1, 2, sum);
        }
        const __m256 block = _mm256_hadd_ps(sum[0], sum[1]);  // columns in order
        const __m128i bytes = _mm_loadl_epi64(
            reinterpret_cast<const __m128i*>(panel.scales + b * kPanel + half * kWideLanes));
        // 2^(byte - 127); byte 0 is 2^-127, whose bits are a subnormal's.
        const __m256i byte = _mm256_cvtepu8_epi32(bytes);
        const __m256i bits =
            _mm256_max_epi32(_mm256_slli_epi32(byte, 23), _mm256_set1_epi32(1 << 22));
        total = _mm256_fmadd_ps(block, _mm256_castsi256_ps(bits), total);
      }
      _mm256_storeu_ps(acc + r * stride + half * kWideLanes, total);
    }
  }
}
