// The quantizer for everything: any dtype, strides, scale rule, rounding, rotation, 1-D and 2-D
// blocks. Plain loops over fixed lengths, so that the compiler vectorizes them. Included inside an
// anonymous namespace by each unit, after float_formats.inl.

constexpr int kPeriod = 64;  // columns worked on at once: whole blocks and whole rotations

struct Tile {
  float x[kStripRows][kPeriod];
};

template <DType dtype>
void gather_as(const QuantizeCall& q, int64_t row, int rows, int64_t k, int count, Tile* tile) {
  if (q.column_stride == 1) {
    for (int r = 0; r < rows; ++r) {
      const int64_t base = (row + r) * q.row_stride + k;
      for (int c = 0; c < count; ++c) tile->x[r][c] = widen_one(q.x, dtype, base + c);
    }
    return;
  }
  for (int c = 0; c < count; ++c) {
    const int64_t base = row * q.row_stride + (k + c) * q.column_stride;
    for (int r = 0; r < rows; ++r) tile->x[r][c] = widen_one(q.x, dtype, base + r * q.row_stride);
  }
}

void gather(const QuantizeCall& q, int64_t row, int rows, int64_t k, int columns, Tile* tile) {
  const int64_t left = q.k - k;
  const int count = left < 0 ? 0 : (left < columns ? static_cast<int>(left) : columns);
  if (q.dtype == DType::kFloat32) {
    gather_as<DType::kFloat32>(q, row, rows, k, count, tile);
  } else if (q.dtype == DType::kBFloat16) {
    gather_as<DType::kBFloat16>(q, row, rows, k, count, tile);
  } else {
    gather_as<DType::kFloat16>(q, row, rows, k, count, tile);
  }
  for (int r = 0; r < rows; ++r) {
    for (int c = count; c < columns; ++c) tile->x[r][c] = 0;
  }
}

// Eight floats or their bits, in whatever registers the instruction set has; loaded and stored one
// by one, since compilers copy arrays of them in halves that a load of the whole must wait for.
typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t EightBits __attribute__((vector_size(32), aligned(4), may_alias));

// Natural-order Hadamard butterflies of `size` elements, in the order that defines the result: (a,
// b) becomes (a + b, a - b) for elements 1, 2, 4, ... apart. Before them `flips` changes signs,
// after them all is multiplied by `factor`.
template <int size>
inline void butterflies(const uint32_t* flips, float factor, float* x) {
  constexpr int kVectors = size / 8;
  Eight v[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    v[i] = (Eight)(*reinterpret_cast<const EightBits*>(x + 8 * i) ^
                   *reinterpret_cast<const EightBits*>(flips + 8 * i));
    Eight a = __builtin_shufflevector(v[i], v[i], 0, 0, 2, 2, 4, 4, 6, 6),
          b = __builtin_shufflevector(v[i], v[i], 1, 1, 3, 3, 5, 5, 7, 7);
    v[i] = __builtin_shufflevector(a + b, a - b, 0, 9, 2, 11, 4, 13, 6, 15);
    a = __builtin_shufflevector(v[i], v[i], 0, 1, 0, 1, 4, 5, 4, 5);
    b = __builtin_shufflevector(v[i], v[i], 2, 3, 2, 3, 6, 7, 6, 7);
    v[i] = __builtin_shufflevector(a + b, a - b, 0, 1, 10, 11, 4, 5, 14, 15);
    a = __builtin_shufflevector(v[i], v[i], 0, 1, 2, 3, 0, 1, 2, 3);
    b = __builtin_shufflevector(v[i], v[i], 4, 5, 6, 7, 4, 5, 6, 7);
    v[i] = __builtin_shufflevector(a + b, a - b, 0, 1, 2, 3, 12, 13, 14, 15);
  }
  for (int h = 1; h < kVectors; h *= 2) {
    for (int i = 0; i < kVectors; ++i) {
      if (i & h) continue;
      const Eight a = v[i], b = v[i + h];
      v[i] = a + b;
      v[i + h] = a - b;
    }
  }
  for (int i = 0; i < kVectors; ++i) *reinterpret_cast<Eight*>(x + 8 * i) = v[i] * factor;
}

// The sign bits that a rotation flips in kPeriod columns from a multiple of its period on.
struct Flips {
  uint32_t bits[kPeriod];
};

inline Flips rotation_flips(const QuantizeCall& q) {
  const int period = q.rotation_size < kBlock ? kBlock : q.rotation_size;
  Flips flips;
  for (int c = 0; c < kPeriod; ++c) {
    flips.bits[c] = static_cast<uint32_t>(q.rotation_signs >> (c % period) & 1) << 31;
  }
  return flips;
}

template <int size>
void rotate_rows(const Flips& flips, float factor, int rows, int columns, Tile* tile) {
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; c += size) {
      butterflies<size>(flips.bits + c, factor, tile->x[r] + c);
    }
  }
}

void rotate(const QuantizeCall& q, const Flips& flips, int rows, int columns, Tile* tile) {
  if (q.rotation_size == 16) rotate_rows<16>(flips, 0.25f, rows, columns, tile);
  if (q.rotation_size == 32) rotate_rows<32>(flips, 0.17677669529663687f, rows, columns, tile);
  if (q.rotation_size == 64) rotate_rows<64>(flips, 0.125f, rows, columns, tile);
}

// The largest magnitude as FP32 bits; NaN and Inf order above all others.
inline uint32_t block_amax(const float* x) {
  uint32_t amax = 0;
  for (int i = 0; i < kBlock; ++i) {
    const uint32_t bits = bits_of(x[i]) & 0x7FFFFFFF;
    amax = bits > amax ? bits : amax;
  }
  return amax;
}

inline int closed_byte(uint32_t amax, int32_t bias) {
  const int byte = static_cast<int>((amax + static_cast<uint32_t>(bias)) >> 23) - 2;
  return byte < 0 ? 0 : byte;
}

// 2^(127 - byte), byte <= 254.
inline float inverse_scale(int byte) {
  return byte == 254 ? 0x1p-127f : float_of(static_cast<uint32_t>(254 - byte) << 23);
}

// Nearest magnitude code, ties to even, saturating.
inline int nearest_code(float y) {
  const uint32_t bits = bits_of(y) & 0x7FFFFFFF;
  const float size = float_of(bits);
  // From 1 on, keep one bit of the mantissa; below, codes count halves, which the addition rounds
  // to.
  const int big = static_cast<int>((bits + 0x1FFFFF + ((bits >> 22) & 1)) >> 22) - 252;
  const int small = static_cast<int>(bits_of(size * 2 + 0x1p23f) & 0xFF);
  const int code = size < 1.0f ? small : big;
  return code > 7 ? 7 : code;
}

// The magnitude that it stands for.
inline float nearest_magnitude(float y) {
  const uint32_t bits = bits_of(y) & 0x7FFFFFFF;
  const float size = float_of(bits);
  const float big = float_of((bits + 0x1FFFFF + ((bits >> 22) & 1)) & ~0x3FFFFFu);
  const float small = (size * 2 + 0x1p23f - 0x1p23f) * 0.5f;
  const float magnitude = size < 1.0f ? small : big;
  return magnitude > 6.0f ? 6.0f : magnitude;
}

constexpr int kCandidates = 3;

// The sums of squared errors under several scale bytes, each in ascending order of elements.
void squared_errors(const float* const* rows, int num_rows, const int* bytes, double* totals) {
  for (int i = 0; i < kCandidates; ++i) totals[i] = 0;
  for (int r = 0; r < num_rows; ++r) {
    double squares[kCandidates][kBlock];
    for (int i = 0; i < kCandidates; ++i) {
      const double scale = static_cast<double>(inverse_scale(bytes[i]));
      for (int j = 0; j < kBlock; ++j) {
        const double y = rows[r][j] * scale;
        const double e =
            __builtin_fabs(y) - static_cast<double>(nearest_magnitude(static_cast<float>(y)));
        squares[i][j] = e * e;
      }
    }
    // The order is part of the definition; the candidates' sums go side by side.
    for (int j = 0; j < kBlock; ++j) {
      for (int i = 0; i < kCandidates; ++i) totals[i] += squares[i][j];
    }
  }
}

int search_byte(const float* const* rows, int num_rows, uint32_t amax) {
  const int start = closed_byte(amax, 0);
  const int bytes[kCandidates] = {start, start < 254 ? start + 1 : 254, start > 0 ? start - 1 : 0};
  double errors[kCandidates];
  squared_errors(rows, num_rows, bytes, errors);
  int best = 0;
  for (int i = 0; i < kCandidates; ++i) {
    errors[i] *= bytes[i] > start ? 4.0 : (bytes[i] < start ? 0.25 : 1.0);
    if (errors[i] < errors[best]) best = i;
  }
  return bytes[best];
}

int scale_byte(const QuantizeCall& q, const float* const* rows, int num_rows) {
  uint32_t amax = 0;
  for (int r = 0; r < num_rows; ++r) {
    const uint32_t own = block_amax(rows[r]);
    amax = own > amax ? own : amax;
  }
  if (amax >= 0x7F800000) return kScaleNaN;
  if (amax == 0) return kScaleOne;
  return q.rounding_bias == kSearch ? search_byte(rows, num_rows, amax)
                                    : closed_byte(amax, q.rounding_bias);
}

constexpr int kPhiloxCalls = kBlock / 4;

// Upper and lower halves of the products of `x` and a constant.
inline void multiply_wide(const uint32_t (&x)[kPhiloxCalls], uint32_t by,
                          uint32_t (&upper)[kPhiloxCalls], uint32_t (&lower)[kPhiloxCalls]) {
#ifdef __AVX2__
  // Compilers do not find this by themselves.
  __m256i v;
  __builtin_memcpy(&v, x, sizeof v);
  const __m256i factor = _mm256_set1_epi32(static_cast<int>(by));
  const __m256i even = _mm256_mul_epu32(v, factor);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(v, 32), factor);
  const __m256i up = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  const __m256i low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  __builtin_memcpy(upper, &up, sizeof up);
  __builtin_memcpy(lower, &low, sizeof low);
#else
  for (int i = 0; i < kPhiloxCalls; ++i) {
    const uint64_t product = uint64_t{by} * x[i];
    upper[i] = static_cast<uint32_t>(product >> 32);
    lower[i] = static_cast<uint32_t>(product);
  }
#endif
}

// Philox4x32-10 (Salmon et al., SC 2011) for the elements of a block: words[w][i] is word w of
// counter (index + i, stream, 0) under the key `seed`.
inline void philox(uint64_t seed, uint32_t stream, uint64_t index,
                   uint32_t (&words)[4][kPhiloxCalls]) {
  auto& [c0, c1, c2, c3] = words;
  for (int i = 0; i < kPhiloxCalls; ++i) {
    c0[i] = static_cast<uint32_t>(index + i);
    c1[i] = static_cast<uint32_t>((index + i) >> 32);
    c2[i] = stream;
    c3[i] = 0;
  }
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    uint32_t upper0[kPhiloxCalls], upper1[kPhiloxCalls], lower0[kPhiloxCalls], lower1[kPhiloxCalls];
    multiply_wide(c0, 0xD2511F53, upper0, lower0);
    multiply_wide(c2, 0xCD9E8D57, upper1, lower1);
    for (int i = 0; i < kPhiloxCalls; ++i) {
      c0[i] = upper1[i] ^ c1[i] ^ k0;
      c2[i] = upper0[i] ^ c3[i] ^ k1;
      c1[i] = lower1[i];
      c3[i] = lower0[i];
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
}

// The magnitude code above or below y: above when word < t * 2^32, t the position between the two.
inline int stochastic_code(float y, uint32_t word) {
  float size = float_of(bits_of(y) & 0x7FFFFFFF);
  size = size > 6 ? 6 : size;
  // In units of the distance between neighbours, which is 1/2 below 2, 1 below 4 and 2 above.
  const float units = size < 2 ? size * 2 : (size < 4 ? size : size * 0.5f);
  const int whole = static_cast<int>(units);
  const int low = whole + (size < 2 ? 0 : (size < 4 ? 2 : 4));
  // ceil(t * 2^32), in two halves of 16 bits: t has 24 bits, so nothing rounds.
  const float upper = (units - static_cast<float>(whole)) * 65536.0f;
  const int upper_whole = static_cast<int>(upper);
  const float lower = (upper - static_cast<float>(upper_whole)) * 65536.0f;
  const int lower_whole = static_cast<int>(lower);
  const auto threshold = (static_cast<uint32_t>(upper_whole) << 16) +
                         static_cast<uint32_t>(lower_whole) +
                         (static_cast<float>(lower_whole) < lower ? 1u : 0u);
  return low + (word < threshold ? 1 : 0);
}

void encode_block(const QuantizeCall& q, const float* x, int byte, int64_t element,
                  uint8_t* codes) {
  if (byte == kScaleNaN) {
    for (int i = 0; i < kBlockBytes; ++i) codes[i] = 0;
    return;
  }
  const float scale = inverse_scale(byte);
  float y[kBlock];
  for (int i = 0; i < kBlock; ++i) y[i] = x[i] * scale;
  if (q.prescale != 1.0f) {
    for (int i = 0; i < kBlock; ++i) y[i] *= q.prescale;
  }
  int32_t code[kBlock];
  if (q.stochastic) {
    uint32_t words[4][kPhiloxCalls], in_order[kBlock];
    philox(q.seed, q.stream, static_cast<uint64_t>(element) / 4, words);
    for (int i = 0; i < kBlock; ++i) in_order[i] = words[i % 4][i / 4];
    for (int i = 0; i < kBlock; ++i) code[i] = stochastic_code(y[i], in_order[i]);
  } else {
    for (int i = 0; i < kBlock; ++i) code[i] = nearest_code(y[i]);
  }
  for (int i = 0; i < kBlock; ++i) code[i] |= static_cast<int32_t>(bits_of(y[i]) >> 28 & 8);
  for (int i = 0; i < kBlockBytes; ++i)
    codes[i] = static_cast<uint8_t>(code[2 * i] | code[2 * i + 1] << 4);
}

void quantize_tile(const QuantizeCall& q, const Tile& tile, int64_t row, int rows, int64_t k,
                   int columns) {
  const int64_t blocks = q.stored_k / kBlock;
  for (int c = 0; c < columns; c += kBlock) {
    const float* block_rows[kStripRows];
    for (int r = 0; r < rows; ++r) block_rows[r] = &tile.x[r][c];
    int byte = q.block_2d ? scale_byte(q, block_rows, rows) : 0;
    for (int r = 0; r < rows; ++r) {
      if (!q.block_2d) byte = scale_byte(q, block_rows + r, 1);
      const int64_t element = (row + r) * q.stored_k + k + c;
      q.scales[(row + r) * blocks + (k + c) / kBlock] = static_cast<uint8_t>(byte);
      encode_block(q, block_rows[r], byte, element, q.codes + element / 2);
    }
  }
}

// Calls encode(tile, k, columns) for each tile of some rows, gathered and rotated.
template <class Encode>
inline void for_each_tile(const QuantizeCall& q, int64_t first, int count, int64_t k_begin,
                          int64_t k_end, Encode encode) {
  Tile tile;
  const Flips flips = rotation_flips(q);
  for (int64_t k = k_begin; k < k_end; k += kPeriod) {
    const int columns = k_end - k < kPeriod ? static_cast<int>(k_end - k) : kPeriod;
    gather(q, first, count, k, columns, &tile);
    rotate(q, flips, count, columns, &tile);
    encode(tile, k, columns);
  }
}

void quantize_strip(const QuantizeCall& q, int64_t first, int count, int64_t k_begin,
                    int64_t k_end) {
  for_each_tile(q, first, count, k_begin, k_end, [&](const Tile& tile, int64_t k, int columns) {
    quantize_tile(q, tile, first, count, k, columns);
  });
}
