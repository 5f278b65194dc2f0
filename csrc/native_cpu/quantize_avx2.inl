// The quantizer on 16-bit lanes with AVX2; quantize_words.inl explains what is computed. Included
// inside an anonymous namespace.
//
// A block is two vectors of 16 words. Packing to bytes works within 128-bit lanes, so that codes
// and signs of words x0, x1 lie in the order x0[0..7], x1[0..7], x0[8..15], x1[8..15].

#include "quantize_words.inl"

inline __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline __m256i magnitudes(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi16(0x7FFF)); }

inline __m256i words_of_floats(__m256 low, __m256 high) {
  const __m256i a = _mm256_castps_si256(low), b = _mm256_castps_si256(high);
  const __m256i zero = _mm256_setzero_si256();
  const __m256i upper = _mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16));
  const __m256i lower =
      _mm256_packus_epi32(_mm256_blend_epi16(a, zero, 0xAA), _mm256_blend_epi16(b, zero, 0xAA));
  const __m256i sticky = _mm256_min_epu16(lower, _mm256_set1_epi16(1));
  return _mm256_permute4x64_epi64(_mm256_or_si256(upper, sticky), 0xD8);
}

// The words of elements i .. i + 15 of x.
template <DType dtype>
inline __m256i load_words(const void* x, int64_t i) {
  if constexpr (dtype == DType::kFloat32) {
    const float* p = static_cast<const float*>(x) + i;
    return words_of_floats(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
  } else if constexpr (dtype == DType::kFloat16) {
    const auto* p = reinterpret_cast<const __m128i*>(static_cast<const uint16_t*>(x) + i);
    return words_of_floats(_mm256_cvtph_ps(_mm_loadu_si128(p)),
                           _mm256_cvtph_ps(_mm_loadu_si128(p + 1)));
  } else {
    return load256(static_cast<const uint16_t*>(x) + i);
  }
}

inline __m256i positions(__m256i words) {
  const __m256i one = _mm256_set1_epi16(1);
  const __m256i down = _mm256_andnot_si256(_mm256_srli_epi16(words, 6), one);
  return _mm256_srli_epi16(_mm256_subs_epu16(magnitudes(words), down), 5);
}

// The sign bit of a code for each of 32 words, one to a byte.
inline __m256i signs32(__m256i x0, __m256i x1) {
  const __m256i sign = _mm256_srli_epi16(_mm256_packs_epi16(x0, x1), 4);
  return _mm256_and_si256(sign, _mm256_set1_epi8(8));
}

// The codes of 32 words, one to a byte.
inline __m256i encode32(__m256i position0, __m256i position1, __m256i reference0,
                        __m256i reference1, __m256i signs) {
  const __m256i left = _mm256_packus_epi16(_mm256_sub_epi16(reference0, position0),
                                           _mm256_sub_epi16(reference1, position1));
  const __m256i index = _mm256_min_epi8(left, _mm256_set1_epi8(kLastHalf));
  const __m256i table = _mm256_broadcastsi128_si256(code_table());
  return _mm256_or_si256(_mm256_shuffle_epi8(table, index), signs);
}

// The 16 code bytes of a block, one to a 16-bit lane, in pieces of 8 elements ordered 0 2 | 1 3.
inline __m256i encode_block(__m256i position0, __m256i position1, uint16_t reference,
                            __m256i signs) {
  const __m256i r = _mm256_set1_epi16(static_cast<short>(reference));
  const __m256i codes = encode32(position0, position1, r, r, signs);
  return _mm256_maddubs_epi16(codes, _mm256_set1_epi16(0x1001));  // even k in the low nibble
}

inline __m256i encode_words(const uint16_t* x, uint16_t reference) {
  const __m256i x0 = load256(x), x1 = load256(x + 16);
  return encode_block(positions(x0), positions(x1), reference, signs32(x0, x1));
}

// The code bytes of two blocks in order.
inline __m256i join_blocks(__m256i one, __m256i two) {
  return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(one, two),
                                     _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// The largest lane of each of 16 vectors, in order: lanes of neighbours are compared until one
// vector holds all.
inline __m256i maxima16(const __m256i* x) {
  __m256i a[8], b[4];
  for (int i = 0; i < 8; ++i) {
    a[i] = _mm256_max_epu16(_mm256_unpacklo_epi16(x[2 * i], x[2 * i + 1]),
                            _mm256_unpackhi_epi16(x[2 * i], x[2 * i + 1]));
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm256_max_epu16(_mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]),
                            _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]));
  }
  const __m256i low =
      _mm256_max_epu16(_mm256_unpacklo_epi64(b[0], b[1]), _mm256_unpackhi_epi64(b[0], b[1]));
  const __m256i high =
      _mm256_max_epu16(_mm256_unpacklo_epi64(b[2], b[3]), _mm256_unpackhi_epi64(b[2], b[3]));
  return _mm256_max_epu16(_mm256_permute2x128_si256(low, high, 0x20),
                          _mm256_permute2x128_si256(low, high, 0x31));
}

template <DType dtype>
inline __m256i run_maxima(const void* x, int64_t first, int count, uint16_t* words) {
  __m256i maxima[kRunBlocks];
  for (int b = 0; b < kRunBlocks; ++b) {
    if (b >= count) {
      maxima[b] = _mm256_setzero_si256();
      continue;
    }
    const int64_t at = first + b * kBlock;
    prefetch_block<dtype>(x, at + kPrefetchElements);
    const __m256i x0 = load_words<dtype>(x, at), x1 = load_words<dtype>(x, at + 16);
    maxima[b] = _mm256_max_epu16(magnitudes(x0), magnitudes(x1));
    if (dtype != DType::kBFloat16) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(words + b * kBlock), x0);
      _mm256_store_si256(reinterpret_cast<__m256i*>(words + b * kBlock + 16), x1);
    }
  }
  return maxima16(maxima);
}

template <bool streams>
inline void encode_run(const uint16_t* words, const uint16_t* references, int count,
                       uint8_t* codes) {
  int b = 0;
  for (; b + 2 <= count; b += 2) {
    const __m256i both = join_blocks(encode_words(words + b * kBlock, references[b]),
                                     encode_words(words + (b + 1) * kBlock, references[b + 1]));
    auto* target = reinterpret_cast<__m256i*>(codes + b * kBlockBytes);
    if (streams) {
      _mm256_stream_si256(target, both);
    } else {
      _mm256_storeu_si256(target, both);
    }
  }
  if (b < count) {
    const __m256i one = encode_words(words + b * kBlock, references[b]);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + b * kBlockBytes),
                     _mm256_castsi256_si128(join_blocks(one, one)));
  }
}

inline void stream_line(const uint8_t* line, uint8_t* target) {
  for (int i = 0; i < kLine; i += 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + i),
                        _mm256_load_si256(reinterpret_cast<const __m256i*>(line + i)));
  }
}

// What is kept of 32 rows of a chunk until their scales are found.
struct ChunkWork {
  __m256i position[kBlock][kChunkColumns / 16];
  __m256i signs[kBlock][kChunkColumns / kBlock];
  // For each square and four rows: their words' maxima, in lanes 0 1 2 3 0 1 2 3 ...
  __m256i of_rows[kChunkColumns / kBlock][kBlock / kReadRows];
  __m256i of_columns[kChunkColumns / 16];
};

// The maxima of 4 vectors' lanes in lanes 0 1 2 3 0 1 2 3 ..., four lanes each.
inline __m256i maxima4(const __m256i* x) {
  const __m256i a =
      _mm256_max_epu16(_mm256_unpacklo_epi16(x[0], x[1]), _mm256_unpackhi_epi16(x[0], x[1]));
  const __m256i b =
      _mm256_max_epu16(_mm256_unpacklo_epi16(x[2], x[3]), _mm256_unpackhi_epi16(x[2], x[3]));
  return _mm256_max_epu16(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}

// Four rows of a chunk, the first of them row `r`.
template <DType dtype>
inline void read_rows(const char* x, int64_t stride, int columns, int r, const Ahead& later,
                      ChunkWork* work) {
  const bool asks = r < kBlock / 2;
  for (int c = 0; c < columns; c += kBlock) {
    const int half = c / 16;
    __m256i row[kReadRows];
    __m256i column0 = _mm256_setzero_si256(), column1 = column0;
    for (int i = 0; i < kReadRows; ++i) {
      if (asks) later.ask(i, c);
      const __m256i x0 = load_words<dtype>(x + i * stride, c),
                    x1 = load_words<dtype>(x + i * stride, c + 16);
      const __m256i m0 = magnitudes(x0), m1 = magnitudes(x1);
      column0 = _mm256_max_epu16(column0, m0);
      column1 = _mm256_max_epu16(column1, m1);
      row[i] = _mm256_max_epu16(m0, m1);
      work->position[r + i][half] = positions(x0);
      work->position[r + i][half + 1] = positions(x1);
      work->signs[r + i][c / kBlock] = signs32(x0, x1);
    }
    work->of_rows[c / kBlock][r / kReadRows] = maxima4(row);
    __m256i* sums = work->of_columns + half;
    sums[0] = r ? _mm256_max_epu16(sums[0], column0) : column0;
    sums[1] = r ? _mm256_max_epu16(sums[1], column1) : column1;
  }
}

inline void square_maxima(const ChunkWork& work, int c, __m256i* of_rows, __m256i* of_columns) {
  const __m256i* four = work.of_rows[c / kBlock];
  for (int i = 0; i < 2; ++i, four += 4) {
    const __m256i low = _mm256_max_epu16(_mm256_unpacklo_epi64(four[0], four[1]),
                                         _mm256_unpackhi_epi64(four[0], four[1]));
    const __m256i high = _mm256_max_epu16(_mm256_unpacklo_epi64(four[2], four[3]),
                                          _mm256_unpackhi_epi64(four[2], four[3]));
    of_rows[i] = _mm256_max_epu16(_mm256_permute2x128_si256(low, high, 0x20),
                                  _mm256_permute2x128_si256(low, high, 0x31));
    of_columns[i] = work.of_columns[c / 16 + i];
  }
}

// Transposes 16 rows of 16 bytes in each half of the vectors.
inline void transpose16(__m256i* row) {
  __m256i t[16];
  for (int stage = 0; stage < 4; ++stage) {
    __m256i* from = stage % 2 ? t : row;
    __m256i* to = stage % 2 ? row : t;
    for (int i = 0; i < 8; ++i) {
      to[2 * i] = _mm256_unpacklo_epi8(from[i], from[i + 8]);
      to[2 * i + 1] = _mm256_unpackhi_epi8(from[i], from[i + 8]);
    }
  }
}

inline void square_along_m(const ChunkWork& work, int c, const uint16_t* references,
                           const Ahead& ahead, uint8_t* lines) {
  const __m256i r0 = load256(references), r1 = load256(references + 16);
  const int square = c / kBlock;
  __m256i pair[kBlock / 2];
  for (int r = 0; r < kBlock; r += 2) {
    // Two rows' lines over all squares of a chunk.
    ahead.ask(2 * square + r / 16, r % 16 * 16);
    const __m256i* position = &work.position[r][2 * square];
    const __m256i even = encode32(position[0], position[1], r0, r1, work.signs[r][square]);
    position = &work.position[r + 1][2 * square];
    const __m256i odd = encode32(position[0], position[1], r0, r1, work.signs[r + 1][square]);
    pair[r / 2] = _mm256_or_si256(even, _mm256_slli_epi16(odd, 4));
  }
  transpose16(pair);
  for (int i = 0; i < 16; ++i) {
    // The first half holds columns 0..7 and 16..23, the second the others.
    const int column = i < 8 ? i : i + 8;
    _mm_store_si128(reinterpret_cast<__m128i*>(lines + column * kLine),
                    _mm256_castsi256_si128(pair[i]));
    _mm_store_si128(reinterpret_cast<__m128i*>(lines + (column + 8) * kLine),
                    _mm256_extracti128_si256(pair[i], 1));
  }
}

inline void square_along_k(const ChunkWork& work, int c, const uint16_t* references,
                           uint8_t* lines) {
  const int square = c / kBlock, pitch = kChunkColumns / 2;
  const auto encode = [&](int r) {
    const __m256i* position = &work.position[r][2 * square];
    return encode_block(position[0], position[1], references[r], work.signs[r][square]);
  };
  for (int r = 0; r < kBlock; r += 2) {
    const __m256i both = join_blocks(encode(r), encode(r + 1));
    _mm_store_si128(reinterpret_cast<__m128i*>(lines + r * pitch), _mm256_castsi256_si128(both));
    _mm_store_si128(reinterpret_cast<__m128i*>(lines + (r + 1) * pitch),
                    _mm256_extracti128_si256(both, 1));
  }
}

#include "quantize_lines.inl"
