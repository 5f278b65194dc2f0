// The quantizer on 16-bit lanes with AVX-512 (F, BW, VL, DQ); quantize_words.inl explains what is
// computed. Included inside an anonymous namespace.
//
// A block is one vector of 32 words. Packing to bytes works within 128-bit lanes, so that codes and
// signs of two blocks or rows x0, x1 lie in the order x0[0..7], x1[0..7], x0[8..15], ...

#include "quantize_words.inl"

inline __m512i load512(const void* p) { return _mm512_loadu_si512(p); }
inline __m512i magnitudes(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi16(0x7FFF)); }

inline __m512i words_of_floats(__m512 low, __m512 high) {
  const __m512i a = _mm512_castps_si512(low), b = _mm512_castps_si512(high);
  const __m512i upper = _mm512_packus_epi32(_mm512_srli_epi32(a, 16), _mm512_srli_epi32(b, 16));
  const __m512i mask = _mm512_set1_epi32(0xFFFF);
  const __m512i lower = _mm512_packus_epi32(_mm512_and_si512(a, mask), _mm512_and_si512(b, mask));
  const __m512i sticky = _mm512_min_epu16(lower, _mm512_set1_epi16(1));
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  return _mm512_permutexvar_epi64(order, _mm512_or_si512(upper, sticky));
}

// The words of the 32 elements from i on.
template <DType dtype>
inline __m512i load_words(const void* x, int64_t i) {
  if constexpr (dtype == DType::kFloat32) {
    const float* p = static_cast<const float*>(x) + i;
    return words_of_floats(_mm512_loadu_ps(p), _mm512_loadu_ps(p + 16));
  } else if constexpr (dtype == DType::kFloat16) {
    const auto* p = reinterpret_cast<const __m256i*>(static_cast<const uint16_t*>(x) + i);
    return words_of_floats(_mm512_cvtph_ps(_mm256_loadu_si256(p)),
                           _mm512_cvtph_ps(_mm256_loadu_si256(p + 1)));
  } else {
    return load512(static_cast<const uint16_t*>(x) + i);
  }
}

inline __m512i positions(__m512i words) {
  const __m512i one = _mm512_set1_epi16(1);
  const __m512i down = _mm512_andnot_si512(_mm512_srli_epi16(words, 6), one);
  return _mm512_srli_epi16(_mm512_subs_epu16(magnitudes(words), down), 5);
}

// The sign bit of a code for each of 64 words, one to a byte.
inline __m512i signs64(__m512i x0, __m512i x1) {
  const __m512i sign = _mm512_srli_epi16(_mm512_packs_epi16(x0, x1), 4);
  return _mm512_and_si512(sign, _mm512_set1_epi8(8));
}

// The codes of 64 words, one to a byte.
inline __m512i encode64(__m512i position0, __m512i position1, __m512i reference0,
                        __m512i reference1, __m512i signs) {
  const __m512i left = _mm512_packus_epi16(_mm512_sub_epi16(reference0, position0),
                                           _mm512_sub_epi16(reference1, position1));
  const __m512i index = _mm512_min_epi8(left, _mm512_set1_epi8(kLastHalf));
  const __m512i table = _mm512_broadcast_i32x4(code_table());
  return _mm512_or_si512(_mm512_shuffle_epi8(table, index), signs);
}

// The code bytes of four blocks or rows in order, 16 of each.
inline __m512i encode_four(const __m512i* position, const __m512i* signs,
                           const uint16_t* references) {
  __m512i pair[2];
  for (int i = 0; i < 2; ++i) {
    const __m512i r0 = _mm512_set1_epi16(static_cast<short>(references[2 * i])),
                  r1 = _mm512_set1_epi16(static_cast<short>(references[2 * i + 1]));
    const __m512i codes = encode64(position[2 * i], position[2 * i + 1], r0, r1, signs[i]);
    pair[i] = _mm512_maddubs_epi16(codes, _mm512_set1_epi16(0x1001));  // even k in the low nibble
  }
  // A 128-bit lane holds 8 elements of each of the four.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, _mm512_packus_epi16(pair[0], pair[1]));
}

// The largest lane of each of 16 vectors, in order: lanes of neighbours are compared until one
// vector holds all.
inline __m256i maxima16(const __m512i* x) {
  __m512i a[8], b[4];
  for (int i = 0; i < 8; ++i) {
    a[i] = _mm512_max_epu16(_mm512_unpacklo_epi16(x[2 * i], x[2 * i + 1]),
                            _mm512_unpackhi_epi16(x[2 * i], x[2 * i + 1]));
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm512_max_epu16(_mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]),
                            _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]));
  }
  const __m512i low =
      _mm512_max_epu16(_mm512_unpacklo_epi64(b[0], b[1]), _mm512_unpackhi_epi64(b[0], b[1]));
  const __m512i high =
      _mm512_max_epu16(_mm512_unpacklo_epi64(b[2], b[3]), _mm512_unpackhi_epi64(b[2], b[3]));
  // Four 128-bit lanes to one for each half.
  const __m512i two = _mm512_max_epu16(_mm512_shuffle_i64x2(low, high, 0x44),
                                       _mm512_shuffle_i64x2(low, high, 0xEE));
  return _mm256_max_epu16(_mm512_castsi512_si256(_mm512_shuffle_i64x2(two, two, 0x88)),
                          _mm512_castsi512_si256(_mm512_shuffle_i64x2(two, two, 0xDD)));
}

template <DType dtype>
inline __m256i run_maxima(const void* x, int64_t first, int count, uint16_t* words) {
  __m512i maxima[kRunBlocks];
  for (int b = 0; b < kRunBlocks; ++b) {
    if (b >= count) {
      maxima[b] = _mm512_setzero_si512();
      continue;
    }
    const int64_t at = first + b * kBlock;
    prefetch_block<dtype>(x, at + kPrefetchElements);
    const __m512i block = load_words<dtype>(x, at);
    maxima[b] = magnitudes(block);
    if (dtype != DType::kBFloat16) _mm512_store_si512(words + b * kBlock, block);
  }
  return maxima16(maxima);
}

template <bool streams>
inline void encode_run(const uint16_t* words, const uint16_t* references, int count,
                       uint8_t* codes) {
  for (int b = 0; b < count; b += 4) {
    __m512i x[4], position[4];
    for (int i = 0; i < 4; ++i) {
      x[i] = b + i < count ? load512(words + (b + i) * kBlock) : _mm512_setzero_si512();
      position[i] = positions(x[i]);
    }
    const __m512i signs[2] = {signs64(x[0], x[1]), signs64(x[2], x[3])};
    const __m512i line = encode_four(position, signs, references + b);
    uint8_t* target = codes + b * kBlockBytes;
    if (streams) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(target), line);
    } else {
      const int blocks = count - b < 4 ? count - b : 4;
      _mm512_mask_storeu_epi32(target, static_cast<__mmask16>((1u << 4 * blocks) - 1), line);
    }
  }
}

inline void stream_line(const uint8_t* line, uint8_t* target) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(target), _mm512_load_si512(line));
}

// What is kept of 32 x 32 elements until their scales are found.
struct SquareWork {
  __m512i position[kBlock];
  __m512i signs[kBlock / 2];
  __m512i maxima[kBlock];
};

template <DType dtype>
inline void read_square(const void* x, int64_t first, int64_t stride, int64_t ahead,
                        SquareWork* work, __m256i* column_maxima) {
  __m512i amax = _mm512_setzero_si512();
  for (int r = 0; r < kBlock; r += 2) {
    __m512i row[2];
    for (int i = 0; i < 2; ++i) {
      const int64_t at = first + (r + i) * stride;
      prefetch_block<dtype>(x, at + ahead);
      row[i] = load_words<dtype>(x, at);
      work->maxima[r + i] = magnitudes(row[i]);
      amax = _mm512_max_epu16(amax, work->maxima[r + i]);
      work->position[r + i] = positions(row[i]);
    }
    work->signs[r / 2] = signs64(row[0], row[1]);
  }
  column_maxima[0] = _mm512_castsi512_si256(amax);
  column_maxima[1] = _mm512_extracti64x4_epi64(amax, 1);
}

inline void row_maxima(const SquareWork& work, __m256i* maxima) {
  maxima[0] = maxima16(work.maxima);
  maxima[1] = maxima16(work.maxima + 16);
}

// Transposes 8 rows of 8 words in each 128-bit lane of the vectors.
inline void transpose8(__m512i* row) {
  __m512i t[8];
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm512_unpacklo_epi16(row[i], row[i + 4]);
    t[2 * i + 1] = _mm512_unpackhi_epi16(row[i], row[i + 4]);
  }
  for (int i = 0; i < 4; ++i) {
    row[2 * i] = _mm512_unpacklo_epi16(t[i], t[i + 4]);
    row[2 * i + 1] = _mm512_unpackhi_epi16(t[i], t[i + 4]);
  }
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm512_unpacklo_epi16(row[i], row[i + 4]);
    t[2 * i + 1] = _mm512_unpackhi_epi16(row[i], row[i + 4]);
  }
  for (int i = 0; i < 8; ++i) row[i] = t[i];
}

inline void square_along_m(const SquareWork& work, const uint16_t* references, uint8_t* lines) {
  const __m512i reference = load512(references);
  // For each 8 columns: bytes of rows 4i, 4i + 1 and of rows 4i + 2, 4i + 3, a column's two side by
  // side.
  const __m512i side_by_side =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
  __m512i four[8];
  for (int i = 0; i < 8; ++i) {
    const __m512i* position = work.position + 4 * i;
    const __m512i one = encode64(position[0], position[1], reference, reference, work.signs[2 * i]);
    const __m512i two =
        encode64(position[2], position[3], reference, reference, work.signs[2 * i + 1]);
    const __m512i even = _mm512_unpacklo_epi64(one, two), odd = _mm512_unpackhi_epi64(one, two);
    four[i] = _mm512_shuffle_epi8(_mm512_or_si512(even, _mm512_slli_epi16(odd, 4)), side_by_side);
  }
  transpose8(four);
  for (int i = 0; i < 8; ++i) {
    auto* target = reinterpret_cast<__m128i*>(lines + i * kLine);
    constexpr int kLane = 8 * kLine / 16;  // from column i to column i + 8
    _mm_store_si128(target, _mm512_castsi512_si128(four[i]));
    _mm_store_si128(target + kLane, _mm512_extracti32x4_epi32(four[i], 1));
    _mm_store_si128(target + 2 * kLane, _mm512_extracti32x4_epi32(four[i], 2));
    _mm_store_si128(target + 3 * kLane, _mm512_extracti32x4_epi32(four[i], 3));
  }
}

inline void square_along_k(const SquareWork& work, const uint16_t* references, uint8_t* lines) {
  for (int r = 0; r < kBlock; r += 4) {
    const __m512i four = encode_four(work.position + r, work.signs + r / 2, references + r);
    auto* target = reinterpret_cast<__m128i*>(lines + r * kLine);
    constexpr int kRow = kLine / 16;
    _mm_store_si128(target, _mm512_castsi512_si128(four));
    _mm_store_si128(target + kRow, _mm512_extracti32x4_epi32(four, 1));
    _mm_store_si128(target + 2 * kRow, _mm512_extracti32x4_epi32(four, 2));
    _mm_store_si128(target + 3 * kRow, _mm512_extracti32x4_epi32(four, 3));
  }
}

#include "quantize_lines.inl"
