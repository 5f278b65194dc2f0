// Rows in high precision times packed B by FMA, for units with AVX2 and F16C. Included inside an
// anonymous namespace.
//
// A code's value is a bfloat16 whose two bytes are looked up apart. Interleaved and split again,
// they are FP32 values of k and k + 4, two to each column, so the rows' values lie in pairs of k
// and k + 4 too, and a block's sum is two partial sums side by side.

#include "weight_only_rows.inl"

constexpr int kPlainTile = 6;  // rows whose sums fit the registers
constexpr int kHalf = kPanel / 2;

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

// The 8 k of half a panel that stand in 32 bytes. For each pair of k, in the order in which the
// rows' pairs lie: columns 0 1 | 4 5 and columns 2 3 | 6 7.
inline void decode_eight(const uint8_t* codes, __m256 (*pairs)[2]) {
  const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  const __m256i nibble = _mm256_set1_epi8(15), upper = _mm256_set1_epi32(-65536);
  const __m256i nibbles[2] = {_mm256_and_si256(q, nibble),
                              _mm256_and_si256(_mm256_srli_epi16(q, 4), nibble)};
  for (int odd = 0; odd < 2; ++odd) {
    const __m256i hi = _mm256_shuffle_epi8(bf16_high_bytes(), nibbles[odd]);
    const __m256i lo = _mm256_shuffle_epi8(bf16_low_bytes(), nibbles[odd]);
    const __m256i some[2] = {_mm256_unpacklo_epi8(lo, hi), _mm256_unpackhi_epi8(lo, hi)};
    for (int i = 0; i < 2; ++i) {
      pairs[2 * odd][i] = _mm256_castsi256_ps(_mm256_slli_epi32(some[i], 16));
      pairs[2 * odd + 1][i] = _mm256_castsi256_ps(_mm256_and_si256(some[i], upper));
    }
  }
}

// Place of the k-th of eight values: pairs (0, 4), (2, 6), (1, 5), (3, 7).
constexpr int kPlaceOfEight[8] = {0, 4, 2, 6, 1, 5, 3, 7};

bool pack_plain_row(const void* x, DType dtype, int64_t k, int64_t blocks, int rows, int row,
                    void* form) {
  return for_each_block(x, dtype, k, blocks, [&](int64_t b, const float* values) {
    float* out = static_cast<float*>(form) + (b * rows + row) * kBlock;
    for (int i = 0; i < kBlock; ++i) out[(i & ~7) + kPlaceOfEight[i & 7]] = values[i];
  });
}

inline __m256 broadcast_pair(const float* x) {
  return _mm256_castpd_ps(_mm256_broadcast_sd(reinterpret_cast<const double*>(x)));
}

// 2^(byte - 127) of 8 columns; byte 0 is 2^-127, whose bits are a subnormal's.
inline __m256 block_scales(const uint8_t* scales) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales));
  const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23);
  return _mm256_castsi256_ps(_mm256_max_epi32(bits, _mm256_set1_epi32(1 << 22)));
}

// acc += scale * the two partial sums of each column
inline void add_block_sums(__m256 first, __m256 second, __m256 scale, float* acc) {
  const __m256 sums = _mm256_hadd_ps(first, second);  // columns in order
  _mm256_storeu_ps(acc, _mm256_fmadd_ps(sums, scale, _mm256_loadu_ps(acc)));
}

// `rows` rows of one block, x [rows][kBlock], times decoded values [16 pairs of k][2].
template <int rows>
void add_plain_rows(const float* x, const __m256 (*decoded)[2], __m256 scale, float* acc,
                    int64_t stride) {
  __m256 sum[rows][2];
  for (int r = 0; r < rows; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
  for (int pair = 0; pair < kBlock / 2; ++pair) {
    const __m256 b[2] = {decoded[pair][0], decoded[pair][1]};
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const __m256 a = broadcast_pair(x + r * kBlock + 2 * pair);
      sum[r][0] = _mm256_fmadd_ps(b[0], a, sum[r][0]);
      sum[r][1] = _mm256_fmadd_ps(b[1], a, sum[r][1]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) add_block_sums(sum[r][0], sum[r][1], scale, acc + r * stride);
}

template <int rows = kPlainTile>
void add_last_plain_rows(int count, const float* x, const __m256 (*decoded)[2], __m256 scale,
                         float* acc, int64_t stride) {
  if (count == rows) return add_plain_rows<rows>(x, decoded, scale, acc, stride);
  if constexpr (rows > 1) add_last_plain_rows<rows - 1>(count, x, decoded, scale, acc, stride);
}

// One row: decoded values never leave the registers.
void multiply_one_plain(const float* x, const ColumnPanel& panel, int64_t blocks, float* acc) {
  __m256 total[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* codes = panel.codes + b * kPanelBlockBytes;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256 sum[2][2] = {{_mm256_setzero_ps(), _mm256_setzero_ps()},
                          {_mm256_setzero_ps(), _mm256_setzero_ps()}};
#pragma GCC unroll 4
      for (int d = 0; d < 4; ++d) {
        const uint8_t* source = codes + d * kPanel * 4 + half * 32;
        ask_ahead(source);
        __m256 pairs[4][2];
        decode_eight(source, pairs);
#pragma GCC unroll 4
        for (int pair = 0; pair < 4; ++pair) {
          const __m256 a = broadcast_pair(x + b * kBlock + d * 8 + 2 * pair);
          for (int i = 0; i < 2; ++i)
            sum[pair % 2][i] = _mm256_fmadd_ps(pairs[pair][i], a, sum[pair % 2][i]);
        }
      }
      const __m256 sums =
          _mm256_hadd_ps(_mm256_add_ps(sum[0][0], sum[1][0]), _mm256_add_ps(sum[0][1], sum[1][1]));
      const __m256 scale = block_scales(panel.scales + b * kPanel + half * kHalf);
      total[half] = _mm256_fmadd_ps(sums, scale, total[half]);
    }
  }
  for (int half = 0; half < 2; ++half) _mm256_storeu_ps(acc + half * kHalf, total[half]);
}

void multiply_plain(const void* form, int rows, const ColumnPanel& panel, int64_t blocks,
                    float* acc, int64_t stride) {
  const auto* x = static_cast<const float*>(form);
  if (rows == 1) return multiply_one_plain(x, panel, blocks, acc);
  for (int r = 0; r < rows; ++r) {
    for (int half = 0; half < 2; ++half)
      _mm256_storeu_ps(acc + r * stride + half * kHalf, _mm256_setzero_ps());
  }
  for (int64_t b = 0; b < blocks; ++b) {
    for (int half = 0; half < 2; ++half) {
      __m256 decoded[kBlock / 2][2];
      for (int d = 0; d < 4; ++d) {
        const uint8_t* source = panel.codes + b * kPanelBlockBytes + d * kPanel * 4 + half * 32;
        ask_ahead(source);
        decode_eight(source, decoded + 4 * d);
      }
      const __m256 scale = block_scales(panel.scales + b * kPanel + half * kHalf);
      int r = 0;
      for (; r + kPlainTile <= rows; r += kPlainTile) {
        add_plain_rows<kPlainTile>(x + (b * rows + r) * kBlock, decoded, scale,
                                   acc + r * stride + half * kHalf, stride);
      }
      if (r < rows) {
        add_last_plain_rows(rows - r, x + (b * rows + r) * kBlock, decoded, scale,
                            acc + r * stride + half * kHalf, stride);
      }
    }
  }
}

constexpr WeightOnly kPlainAvx2 = {"FMA", 4, pack_plain_row, multiply_plain};
