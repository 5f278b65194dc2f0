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

// Codes with sign of 32 values, one to a byte; `reduction` = (byte - 3) << 7 for each value's
// block. Packing works within 128-bit lanes, so the order is x0[0..7], x1[0..7], x0[8..15],
// x1[8..15].
//
// The exponent and the first bit of the mantissa choose a magnitude and how large the rest may be
// before the next one is nearer; a tie goes to the even code.
inline __m256i encode32(__m256i x0, __m256i x1, __m256i reduction0, __m256i reduction1) {
  constexpr char kNever = 127;
  const __m256i magnitude =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7));
  const __m256i largest_rest = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(kNever, kNever, 0, kNever, kNever, kNever, 32, 31, 32, 31, 32, kNever, kNever,
                    kNever, kNever, kNever));
  const __m256i t0 = _mm256_subs_epu16(magnitudes(x0), reduction0);
  const __m256i t1 = _mm256_subs_epu16(magnitudes(x1), reduction1);
  const __m256i rest_mask = _mm256_set1_epi16(63);
  const __m256i leading = _mm256_packus_epi16(_mm256_srli_epi16(t0, 6), _mm256_srli_epi16(t1, 6));
  const __m256i rest =
      _mm256_packus_epi16(_mm256_and_si256(t0, rest_mask), _mm256_and_si256(t1, rest_mask));
  const __m256i up = _mm256_cmpgt_epi8(rest, _mm256_shuffle_epi8(largest_rest, leading));
  const __m256i code = _mm256_sub_epi8(_mm256_shuffle_epi8(magnitude, leading), up);
  // Signed saturation keeps the sign, also of zero.
  const __m256i sign = _mm256_srli_epi16(_mm256_packs_epi16(x0, x1), 4);
  return _mm256_or_si256(code, _mm256_and_si256(sign, _mm256_set1_epi8(8)));
}

inline unsigned horizontal_max(__m256i x) {
  const __m128i half = _mm_max_epu16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  const __m128i least = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1)));
  return static_cast<unsigned>(_mm_cvtsi128_si32(least) & 0xFFFF) ^ 0xFFFFu;
}

struct Block {
  __m256i low, high;  // 16 values each
};

inline Block load_block(const uint16_t* x) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 16))};
}

// The 16 code bytes of a block, one to a 16-bit lane, 32-bit pieces in the order 0 2 | 1 3 of
// encode32.
inline __m256i encode_block(const Block& block, int byte) {
  const __m256i reduction = _mm256_set1_epi16(static_cast<short>((byte - kLeastFastByte) << 7));
  const __m256i codes = encode32(block.low, block.high, reduction, reduction);
  return _mm256_maddubs_epi16(codes, _mm256_set1_epi16(0x1001));  // even k in the low nibble
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
          _mm256_packus_epi16(encode_block(one, byte1), encode_block(two, byte2)), order);
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

constexpr int kPairColumns = 128;  // columns whose codes along K fill a cache line
constexpr int kLine = 64;

// The codes of 128 x 128 elements, gathered so that they are written as whole cache lines.
struct PairLines {
  alignas(64) uint8_t along_k[kPairStripRows][kLine];
  alignas(64) uint8_t along_m[kPairColumns][kLine];
};

// Writes a line past the cache where it is whole and aligned: nobody reads it soon.
inline void write_line(const uint8_t* line, int bytes, uint8_t* target) {
  if (bytes < kLine || reinterpret_cast<uintptr_t>(target) % 32 != 0) {
    __builtin_memcpy(target, line, bytes);
    return;
  }
  for (int i = 0; i < kLine; i += 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + i),
                        _mm256_load_si256(reinterpret_cast<const __m256i*>(line + i)));
  }
}

// Scale bytes of 16 columns from their maxima, one to a 16-bit lane, less kLeastFastByte; adds to
// `special` where a column must go the general way.
inline __m256i column_bytes(__m256i amax, int bias, __m256i* special) {
  const __m256i raised = _mm256_add_epi16(amax, _mm256_set1_epi16(static_cast<short>(bias)));
  const __m256i reduced =
      _mm256_sub_epi16(_mm256_srli_epi16(raised, 7), _mm256_set1_epi16(2 + kLeastFastByte));
  const __m256i infinite =
      _mm256_cmpgt_epi16(amax, _mm256_set1_epi16(static_cast<short>(kInfinityBits - 1)));
  *special = _mm256_or_si256(*special, infinite);
  *special = _mm256_or_si256(*special, _mm256_cmpgt_epi16(_mm256_setzero_si256(), reduced));
  return reduced;
}

// A tile along M: scales from the columns' maxima, codes transposed to lines [column][kLine]. False
// where a column must go the general way.
inline bool encode_columns(const uint16_t* tile, int bias, uint8_t* scale_bytes, uint8_t* lines) {
  __m256i amax0 = _mm256_setzero_si256(), amax1 = amax0;
  for (int r = 0; r < kBlock; ++r) {
    const Block row = load_block(tile + r * kPairColumns);
    amax0 = _mm256_max_epu16(amax0, magnitudes(row.low));
    amax1 = _mm256_max_epu16(amax1, magnitudes(row.high));
  }
  __m256i special = _mm256_setzero_si256();
  const __m256i reduced0 = column_bytes(amax0, bias, &special);
  const __m256i reduced1 = column_bytes(amax1, bias, &special);
  if (!_mm256_testz_si256(special, special)) return false;
  const __m256i reduction0 = _mm256_slli_epi16(reduced0, 7),
                reduction1 = _mm256_slli_epi16(reduced1, 7);
  __m256i pair[16];
  for (int r = 0; r < kBlock; r += 2) {
    const Block even = load_block(tile + r * kPairColumns),
                odd = load_block(tile + (r + 1) * kPairColumns);
    const __m256i low = encode32(even.low, even.high, reduction0, reduction1);
    const __m256i high = encode32(odd.low, odd.high, reduction0, reduction1);
    pair[r / 2] = _mm256_or_si256(low, _mm256_slli_epi16(high, 4));
  }
  transpose16(pair);
  for (int i = 0; i < 16; ++i) {
    // encode32's order: the first half holds columns 0..7 and 16..23, the second the others.
    const int column = i < 8 ? i : i + 8;
    _mm_store_si128(reinterpret_cast<__m128i*>(lines + column * kLine),
                    _mm256_castsi256_si128(pair[i]));
    _mm_store_si128(reinterpret_cast<__m128i*>(lines + (column + 8) * kLine),
                    _mm256_extracti128_si256(pair[i], 1));
  }
  const __m256i bytes =
      _mm256_add_epi8(_mm256_packus_epi16(reduced0, reduced1), _mm256_set1_epi8(kLeastFastByte));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(scale_bytes),
                      _mm256_permute4x64_epi64(bytes, 0xD8));
  return true;
}

// Copies 32 rows of 128 columns (or fewer), so that a power-of-two row stride does not put them all
// into one set of the cache, and asks for the rows that come next.
inline void copy_rows(const uint16_t* x, int64_t stride, int columns, int64_t ahead,
                      uint16_t* tile) {
  for (int r = 0; r < kBlock; ++r) {
    const uint16_t* row = x + r * stride;
    for (int c = 0; c < columns; c += kBlock) {
      _mm_prefetch(reinterpret_cast<const char*>(row + ahead + c), _MM_HINT_T1);
      const Block block = load_block(row + c);
      auto* target = reinterpret_cast<__m256i*>(tile + r * kPairColumns + c);
      _mm256_store_si256(target, block.low);
      _mm256_store_si256(target + 1, block.high);
    }
  }
}

// Rows [row, row + 32) and columns [k, k + 32) along M, into lines [column][bytes] whose first byte
// is the tile's.
void tile_along_m(const QuantizeCall& qt, const uint16_t* tile, int64_t row, int64_t k,
                  uint8_t* lines) {
  const int bias = qt.rounding_bias >> 16;
  const int64_t blocks = qt.stored_k / kBlock;
  uint8_t bytes[kBlock];
  const bool fast = encode_columns(tile, bias, bytes, lines);
  if (!fast) quantize_strip(qt, k, kBlock, row, row + kBlock);
  for (int c = 0; c < kBlock; ++c) {
    if (fast) {
      qt.scales[(k + c) * blocks + row / kBlock] = bytes[c];
    } else {
      __builtin_memcpy(lines + c * kLine, qt.codes + ((k + c) * qt.stored_k + row) / 2,
                       kBlockBytes);
    }
  }
}

// The same tile along K, into lines [row][bytes].
void tile_along_k(const QuantizeCall& q, const uint16_t* tile, int64_t row, int64_t k,
                  uint8_t* lines) {
  const int bias = q.rounding_bias >> 16;
  const int64_t blocks = q.stored_k / kBlock;
  for (int r = 0; r < kBlock; ++r) {
    const Block block = load_block(tile + r * kPairColumns);
    const int byte = fast_byte(block, bias);
    if (byte < 0) {
      Tile wide;
      gather(q, row + r, 1, k, kBlock, &wide);
      quantize_tile(q, wide, row + r, 1, k, kBlock);
      __builtin_memcpy(lines + r * kLine, q.codes + ((row + r) * q.stored_k + k) / 2, kBlockBytes);
      continue;
    }
    q.scales[(row + r) * blocks + k / kBlock] = static_cast<uint8_t>(byte);
    const __m256i words = encode_block(block, byte);
    const __m256i packed = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(words, words),
                                                       _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5));
    _mm_store_si128(reinterpret_cast<__m128i*>(lines + r * kLine), _mm256_castsi256_si128(packed));
  }
}

void fast_pair(const QuantizeCall& q, const QuantizeCall& qt, int64_t first, int count) {
  PairLines lines;
  alignas(64) uint16_t tile[kBlock * kPairColumns];
  const auto* x = static_cast<const uint16_t*>(q.x);
  for (int64_t k = 0; k < q.k; k += kPairColumns) {
    const int columns = q.k - k < kPairColumns ? static_cast<int>(q.k - k) : kPairColumns;
    for (int m = 0; m < count; m += kBlock) {
      const int64_t ahead =
          m + kBlock < count ? kBlock * q.row_stride : kPairColumns - m * q.row_stride;
      copy_rows(x + (first + m) * q.row_stride + k, q.row_stride, columns, ahead, tile);
      for (int c = 0; c < columns; c += kBlock) {
        tile_along_m(qt, tile + c, first + m, k + c, &lines.along_m[c][m / 2]);
        tile_along_k(q, tile + c, first + m, k + c, &lines.along_k[m][c / 2]);
      }
    }
    for (int r = 0; r < count; ++r) {
      write_line(lines.along_k[r], columns / 2, q.codes + ((first + r) * q.stored_k + k) / 2);
    }
    for (int c = 0; c < columns; ++c) {
      write_line(lines.along_m[c], count / 2, qt.codes + ((k + c) * qt.stored_k + first) / 2);
    }
  }
  _mm_sfence();
}

QuantizeKernels quantize_kernels() { return {quantize_strip, fast_rows, fast_pair}; }
