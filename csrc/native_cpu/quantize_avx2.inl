// The bfloat16 quantizer on 16-bit lanes, for units with AVX2. Included inside an anonymous
// namespace.
//
// Subtracting the scale's exponent from the bits of |x| divides by the scale. We subtract 3 less
// than the byte, so that what is left of a finite block is small and nonnegative: 1.0 becomes 3
// << 7. What saturates at zero is below a quarter of the scale and rounds to zero, subnormals
// included, as long as the byte is at least 3. Blocks whose byte is smaller, or that hold NaN, Inf
// or only zeros, go the general way.

#include "quantize_strip.inl"

constexpr int kLeastFastByte = 3;
constexpr uint16_t kInfinityBits = 0x7F80;

inline __m256i magnitudes(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi16(0x7FFF)); }

// Codes with sign, one to a 16-bit lane; `reduction` = (byte - 3) << 7.
inline __m256i encode16(__m256i x, __m256i reduction) {
  const __m256i t = _mm256_subs_epu16(magnitudes(x), reduction);
  // Round to one mantissa bit, ties to even: right from 1.0 (t = 0x180, code 2) on.
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(t, 6), _mm256_set1_epi16(1));
  const __m256i rounded =
      _mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(t, odd), _mm256_set1_epi16(0x1F)), 6);
  const __m256i big = _mm256_sub_epi16(rounded, _mm256_set1_epi16(4));
  // Below 1.0: above a quarter, at least three quarters (each comparison gives -1).
  const __m256i above = _mm256_add_epi16(_mm256_cmpgt_epi16(t, _mm256_set1_epi16(0x80)),
                                         _mm256_cmpgt_epi16(t, _mm256_set1_epi16(0x13F)));
  const __m256i small = _mm256_sub_epi16(_mm256_setzero_si256(), above);
  const __m256i code = _mm256_min_epi16(_mm256_max_epi16(big, small), _mm256_set1_epi16(7));
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi16(x, 12), _mm256_set1_epi16(8));
  return _mm256_or_si256(code, sign);
}

inline unsigned horizontal_max(__m256i x) {
  const __m128i half = _mm_max_epu16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  const __m128i least = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1)));
  return static_cast<unsigned>(_mm_cvtsi128_si32(least) & 0xFFFF) ^ 0xFFFFu;
}

// Pairs of lanes become bytes (even k in the low nibble), one to a 32-bit lane.
inline __m256i join_pairs(__m256i codes) {
  return _mm256_madd_epi16(codes, _mm256_set1_epi32(0x00100001));
}

struct Block {
  __m256i low, high;  // 16 values each
};

inline Block load_block(const uint16_t* x) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 16))};
}

// 16-bit words: the 16 code bytes of a block.
inline __m256i encode_block16(const Block& block, int byte) {
  const __m256i reduction = _mm256_set1_epi16(static_cast<short>((byte - kLeastFastByte) << 7));
  return _mm256_packus_epi32(join_pairs(encode16(block.low, reduction)),
                             join_pairs(encode16(block.high, reduction)));
}

// A block's scale byte, or -1 where it must go the general way.
inline int fast_byte(const Block& block, int bias) {
  const unsigned amax =
      horizontal_max(_mm256_max_epu16(magnitudes(block.low), magnitudes(block.high)));
  const int byte = static_cast<int>((amax + static_cast<unsigned>(bias)) >> 7) - 2;
  return amax >= kInfinityBits || byte < kLeastFastByte ? -1 : byte;
}

void fast_rows(const QuantizeCall& q, int64_t first, int64_t last) {
  const int bias = q.rounding_bias >> 16;
  const int64_t blocks = q.k / kBlock;
  const bool streams = q.rows * q.k >= (int64_t{1} << 22) &&
                       reinterpret_cast<uintptr_t>(q.codes) % 32 == 0 && q.k % (2 * kBlock) == 0;
  // 16-bit packing works within 128-bit lanes; this puts the bytes of two blocks in order.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int64_t r = first; r < last; ++r) {
    const auto* x = static_cast<const uint16_t*>(q.x) + r * q.row_stride;
    uint8_t* codes = q.codes + r * (q.k / 2);
    uint8_t* scales = q.scales + r * blocks;
    int64_t b = 0;
    for (; b + 2 <= blocks; b += 2) {
      const Block one = load_block(x + b * kBlock), two = load_block(x + (b + 1) * kBlock);
      _mm_prefetch(reinterpret_cast<const char*>(x + b * kBlock + 1024), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(x + b * kBlock + 1056), _MM_HINT_T0);
      const int byte1 = fast_byte(one, bias), byte2 = fast_byte(two, bias);
      if ((byte1 | byte2) < 0) {
        Tile tile;
        gather(q, r, 1, b * kBlock, 2 * kBlock, &tile);
        quantize_tile(q, tile, r, 1, b * kBlock, 2 * kBlock);
        continue;
      }
      scales[b] = static_cast<uint8_t>(byte1);
      scales[b + 1] = static_cast<uint8_t>(byte2);
      const __m256i bytes = _mm256_permutevar8x32_epi32(
          _mm256_packus_epi16(encode_block16(one, byte1), encode_block16(two, byte2)), order);
      auto* target = reinterpret_cast<__m256i*>(codes + b * kBlockBytes);
      if (streams) {
        _mm256_stream_si256(target, bytes);
      } else {
        _mm256_storeu_si256(target, bytes);
      }
    }
    if (b < blocks) {
      Tile tile;
      gather(q, r, 1, b * kBlock, kBlock, &tile);
      quantize_tile(q, tile, r, 1, b * kBlock, kBlock);
    }
  }
  _mm_sfence();
}

// Transposes 16 rows of 16 bytes.
inline void transpose16(__m128i* row) {
  __m128i t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm_unpacklo_epi8(row[i], row[i + 8]);
    t[2 * i + 1] = _mm_unpackhi_epi8(row[i], row[i + 8]);
  }
  for (int i = 0; i < 8; ++i) {
    row[2 * i] = _mm_unpacklo_epi8(t[i], t[i + 8]);
    row[2 * i + 1] = _mm_unpackhi_epi8(t[i], t[i + 8]);
  }
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm_unpacklo_epi8(row[i], row[i + 8]);
    t[2 * i + 1] = _mm_unpackhi_epi8(row[i], row[i + 8]);
  }
  for (int i = 0; i < 8; ++i) {
    row[2 * i] = _mm_unpacklo_epi8(t[i], t[i + 8]);
    row[2 * i + 1] = _mm_unpackhi_epi8(t[i], t[i + 8]);
  }
}

// The codes of a strip along M, gathered so that they are written as whole cache lines:
// [column][strip rows / 2].
struct PairLines {
  alignas(64) uint8_t along_m[kBlock][kPairStripRows / 2];
};

// One 32 x 16 half of a tile along M: scales from the columns' maxima, codes transposed. False
// where a column must go the general way.
inline bool encode_columns(const uint16_t* x, int64_t stride, int bias, uint8_t* scale_bytes,
                           uint8_t* lines) {
  __m256i row[kBlock], amax = _mm256_setzero_si256();
  for (int r = 0; r < kBlock; ++r) {
    row[r] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + r * stride));
    amax = _mm256_max_epu16(amax, magnitudes(row[r]));
  }
  const __m256i byte = _mm256_sub_epi16(
      _mm256_srli_epi16(_mm256_add_epi16(amax, _mm256_set1_epi16(static_cast<short>(bias))), 7),
      _mm256_set1_epi16(2));
  const __m256i reduced = _mm256_sub_epi16(byte, _mm256_set1_epi16(kLeastFastByte));
  const __m256i special = _mm256_or_si256(
      _mm256_cmpgt_epi16(_mm256_setzero_si256(), reduced),
      _mm256_cmpgt_epi16(amax, _mm256_set1_epi16(static_cast<short>(kInfinityBits - 1))));
  if (!_mm256_testz_si256(special, special)) return false;
  const __m256i reduction = _mm256_slli_epi16(reduced, 7);
  __m128i pair[16];
  for (int r = 0; r < kBlock; r += 2) {
    const __m256i bytes = _mm256_or_si256(encode16(row[r], reduction),
                                          _mm256_slli_epi16(encode16(row[r + 1], reduction), 4));
    pair[r / 2] =
        _mm_packus_epi16(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
  }
  transpose16(pair);
  for (int c = 0; c < 16; ++c) {
    _mm_store_si128(reinterpret_cast<__m128i*>(lines + c * (kPairStripRows / 2)), pair[c]);
  }
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(scale_bytes),
      _mm_packus_epi16(_mm256_castsi256_si128(byte), _mm256_extracti128_si256(byte, 1)));
  return true;
}

// Copies a 32 x 32 tile so that a power-of-two row stride does not put all its rows into one set of
// the cache.
inline void copy_tile(const uint16_t* x, int64_t stride, uint16_t* tile) {
  for (int r = 0; r < kBlock; ++r) {
    const Block row = load_block(x + r * stride);
    _mm256_store_si256(reinterpret_cast<__m256i*>(tile + r * kBlock), row.low);
    _mm256_store_si256(reinterpret_cast<__m256i*>(tile + r * kBlock + 16), row.high);
  }
}

void pair_tile(const QuantizeCall& q, const QuantizeCall& qt, int64_t first, int m, int64_t k,
               PairLines* lines) {
  alignas(64) uint16_t tile[kBlock * kBlock];
  copy_tile(static_cast<const uint16_t*>(q.x) + (first + m) * q.row_stride + k, q.row_stride, tile);
  const int bias = q.rounding_bias >> 16;
  const int64_t blocks = q.stored_k / kBlock, blocks_m = qt.stored_k / kBlock;
  uint8_t bytes[kBlock];
  bool fast = true;
  for (int half = 0; half < kBlock && fast; half += 16) {
    fast = encode_columns(tile + half, kBlock, bias, bytes + half, &lines->along_m[half][m / 2]);
  }
  if (fast) {
    for (int c = 0; c < kBlock; ++c)
      qt.scales[(k + c) * blocks_m + (first + m) / kBlock] = bytes[c];
  } else {
    quantize_strip(qt, k, kBlock, first + m, first + m + kBlock);
    for (int c = 0; c < kBlock; ++c) {
      __builtin_memcpy(&lines->along_m[c][m / 2],
                       qt.codes + ((k + c) * qt.stored_k + first + m) / 2, kBlockBytes);
    }
  }
  for (int r = 0; r < kBlock; ++r) {
    const int64_t row = first + m + r;
    const Block block = load_block(tile + r * kBlock);
    const int byte = fast_byte(block, bias);
    uint8_t* target = q.codes + (row * q.stored_k + k) / 2;
    if (byte < 0) {
      Tile wide;
      gather(q, row, 1, k, kBlock, &wide);
      quantize_tile(q, wide, row, 1, k, kBlock);
      continue;
    }
    q.scales[row * blocks + k / kBlock] = static_cast<uint8_t>(byte);
    const __m256i words = encode_block16(block, byte);
    const __m256i packed = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(words, words),
                                                       _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target), _mm256_castsi256_si128(packed));
  }
}

void fast_pair(const QuantizeCall& q, const QuantizeCall& qt, int64_t first, int count) {
  PairLines lines;
  for (int64_t k = 0; k < q.k; k += kBlock) {
    for (int m = 0; m < count; m += kBlock) pair_tile(q, qt, first, m, k, &lines);
    for (int c = 0; c < kBlock; ++c) {
      uint8_t* target = qt.codes + ((k + c) * qt.stored_k + first) / 2;
      __builtin_memcpy(target, lines.along_m[c], count / 2);
    }
  }
}

QuantizeKernels quantize_kernels() { return {quantize_strip, fast_rows, fast_pair}; }
