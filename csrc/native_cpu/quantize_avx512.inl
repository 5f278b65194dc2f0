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

// The maxima over the four 128-bit lanes of each vector, side by side.
inline __m256i join_halves(__m512i low, __m512i high) {
  const __m512i two = _mm512_max_epu16(_mm512_shuffle_i64x2(low, high, 0x44),
                                       _mm512_shuffle_i64x2(low, high, 0xEE));
  return _mm256_max_epu16(_mm512_castsi512_si256(_mm512_shuffle_i64x2(two, two, 0x88)),
                          _mm512_castsi512_si256(_mm512_shuffle_i64x2(two, two, 0xDD)));
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
  return join_halves(low, high);
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

// What is kept of 32 rows of a chunk until their scales are found.
struct ChunkWork {
  __m512i position[kBlock][kChunkColumns / kBlock];
  __m512i signs[kBlock / 2][kChunkColumns / kBlock];
  // For each square and four rows: their words' maxima, in lanes 0 1 2 3 0 1 2 3 ...
  __m512i of_rows[kChunkColumns / kBlock][kBlock / kReadRows];
  __m512i of_columns[kChunkColumns / kBlock];
};

// The maxima of 4 vectors' lanes in lanes 0 1 2 3 0 1 2 3 ..., eight lanes each.
inline __m512i maxima4(const __m512i* x) {
  const __m512i a =
      _mm512_max_epu16(_mm512_unpacklo_epi16(x[0], x[1]), _mm512_unpackhi_epi16(x[0], x[1]));
  const __m512i b =
      _mm512_max_epu16(_mm512_unpacklo_epi16(x[2], x[3]), _mm512_unpackhi_epi16(x[2], x[3]));
  return _mm512_max_epu16(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}

// Four rows of a chunk, the first of them row `r`.
template <DType dtype>
inline void read_rows(const char* x, int64_t stride, int columns, int r, const Ahead& later,
                      ChunkWork* work) {
  const bool asks = r < kBlock / 2;
  for (int c = 0; c < columns; c += kBlock) {
    const int square = c / kBlock;
    __m512i row[kReadRows], words[kReadRows];
    for (int i = 0; i < kReadRows; ++i) {
      if (asks) later.ask(i, c);
      words[i] = load_words<dtype>(x + i * stride, c);
      row[i] = magnitudes(words[i]);
      work->position[r + i][square] = positions(words[i]);
    }
    work->signs[r / 2][square] = signs64(words[0], words[1]);
    work->signs[r / 2 + 1][square] = signs64(words[2], words[3]);
    work->of_rows[square][r / kReadRows] = maxima4(row);
    const __m512i column =
        _mm512_max_epu16(_mm512_max_epu16(row[0], row[1]), _mm512_max_epu16(row[2], row[3]));
    __m512i& sum = work->of_columns[square];
    sum = r ? _mm512_max_epu16(sum, column) : column;
  }
}

inline void square_maxima(const ChunkWork& work, int c, __m256i* of_rows, __m256i* of_columns) {
  const __m512i* four = work.of_rows[c / kBlock];
  for (int i = 0; i < 2; ++i, four += 4) {
    of_rows[i] = join_halves(_mm512_max_epu16(_mm512_unpacklo_epi64(four[0], four[1]),
                                              _mm512_unpackhi_epi64(four[0], four[1])),
                             _mm512_max_epu16(_mm512_unpacklo_epi64(four[2], four[3]),
                                              _mm512_unpackhi_epi64(four[2], four[3])));
  }
  of_columns[0] = _mm512_castsi512_si256(work.of_columns[c / kBlock]);
  of_columns[1] = _mm512_extracti64x4_epi64(work.of_columns[c / kBlock], 1);
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

// Stores the four 128-bit lanes `pitch` bytes apart.
inline void store_lanes(__m512i x, uint8_t* target, int pitch) {
  _mm_store_si128(reinterpret_cast<__m128i*>(target), _mm512_castsi512_si128(x));
  _mm_store_si128(reinterpret_cast<__m128i*>(target + pitch), _mm512_extracti32x4_epi32(x, 1));
  _mm_store_si128(reinterpret_cast<__m128i*>(target + 2 * pitch), _mm512_extracti32x4_epi32(x, 2));
  _mm_store_si128(reinterpret_cast<__m128i*>(target + 3 * pitch), _mm512_extracti32x4_epi32(x, 3));
}

inline void square_along_m(const ChunkWork& work, int c, const uint16_t* references,
                           const Ahead& ahead, uint8_t* lines) {
  const __m512i reference = load512(references);
  const int square = c / kBlock;
  // For each 8 columns: bytes of rows 4i, 4i + 1 and of rows 4i + 2, 4i + 3, a column's two side by
  // side.
  const __m512i side_by_side =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
  __m512i four[8];
  for (int i = 0; i < 8; ++i) {
    // Two rows' lines over all squares of a chunk.
    ahead.ask(2 * square, i * kBlock);
    ahead.ask(2 * square + 1, i * kBlock);
    const auto encode = [&](int r) {
      return encode64(work.position[r][square], work.position[r + 1][square], reference, reference,
                      work.signs[r / 2][square]);
    };
    const __m512i one = encode(4 * i), two = encode(4 * i + 2);
    const __m512i even = _mm512_unpacklo_epi64(one, two), odd = _mm512_unpackhi_epi64(one, two);
    four[i] = _mm512_shuffle_epi8(_mm512_or_si512(even, _mm512_slli_epi16(odd, 4)), side_by_side);
  }
  transpose8(four);
  for (int i = 0; i < 8; ++i) store_lanes(four[i], lines + i * kLine, 8 * kLine);
}

inline void square_along_k(const ChunkWork& work, int c, const uint16_t* references,
                           uint8_t* lines) {
  const int square = c / kBlock, pitch = kChunkColumns / 2;
  for (int r = 0; r < kBlock; r += 4) {
    __m512i position[4];
    for (int i = 0; i < 4; ++i) position[i] = work.position[r + i][square];
    const __m512i signs[2] = {work.signs[r / 2][square], work.signs[r / 2 + 1][square]};
    store_lanes(encode_four(position, signs, references + r), lines + r * pitch, pitch);
  }
}

#include "quantize_lines.inl"
