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

// Natural-order Hadamard butterflies of `size` elements, in the order that defines the result.
template <int size>
void butterflies(float* x) {
  for (int h = 1; h < size; h *= 2) {
    for (int i = 0; i < size; i += 2 * h) {
      for (int j = i; j < i + h; ++j) {
        const float a = x[j], b = x[j + h];
        x[j] = a + b;
        x[j + h] = a - b;
      }
    }
  }
}

void rotate(const QuantizeCall& q, int columns, float* x) {
  const int period = q.rotation_size < kBlock ? kBlock : q.rotation_size;
  for (int c = 0; c < columns && q.rotation_signs; ++c) {
    if (q.rotation_signs >> (c % period) & 1) x[c] = -x[c];
  }
  float factor = 0.25f;
  if (q.rotation_size == 32) factor = 0.17677669529663687f;
  if (q.rotation_size == 64) factor = 0.125f;
  for (int c = 0; c < columns; c += q.rotation_size) {
    if (q.rotation_size == 16) butterflies<16>(x + c);
    if (q.rotation_size == 32) butterflies<32>(x + c);
    if (q.rotation_size == 64) butterflies<64>(x + c);
  }
  for (int c = 0; c < columns; ++c) x[c] *= factor;
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

constexpr float kMagnitude[9] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 6};

double squared_error(const float* const* rows, int num_rows, int byte, int start) {
  const double scale = static_cast<double>(inverse_scale(byte));
  double total = 0;
  for (int r = 0; r < num_rows; ++r) {
    for (int i = 0; i < kBlock; ++i) {
      const double y = rows[r][i] * scale;
      const double size = static_cast<double>(kMagnitude[nearest_code(static_cast<float>(y))]);
      const double e = __builtin_fabs(y) - size;
      total += e * e;
    }
  }
  return total * (byte > start ? 4.0 : (byte < start ? 0.25 : 1.0));
}

int search_byte(const float* const* rows, int num_rows, uint32_t amax) {
  const int start = closed_byte(amax, 0);
  int best = start;
  double best_error = squared_error(rows, num_rows, start, start);
  for (int step = 1; step >= -1; step -= 2) {
    int byte = start + step;
    byte = byte < 0 ? 0 : (byte > 254 ? 254 : byte);
    const double error = squared_error(rows, num_rows, byte, start);
    if (error < best_error) {
      best = byte;
      best_error = error;
    }
  }
  return best;
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

// Philox4x32-10 (Salmon et al., SC 2011): the four words of counter (index, stream, 0) under the
// key `seed`.
inline void philox(uint64_t seed, uint32_t stream, uint64_t index, uint32_t* words) {
  uint32_t c0 = static_cast<uint32_t>(index), c1 = static_cast<uint32_t>(index >> 32), c2 = stream,
           c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0, p1 = uint64_t{0xCD9E8D57} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0,
                   n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

// The magnitude code above or below y: above when word < t * 2^32, t the position between the two.
inline int stochastic_code(float y, uint32_t word) {
  float size = float_of(bits_of(y) & 0x7FFFFFFF);
  size = size > 6 ? 6 : size;
  int low = 0;
  for (int i = 1; i < 8; ++i) low += size >= kMagnitude[i];
  const float step = low < 7 ? kMagnitude[low + 1] - kMagnitude[low] : 1.0f;
  const double threshold = static_cast<double>((size - kMagnitude[low]) / step) * 4294967296.0;
  return low + (static_cast<double>(word) < threshold && low < 7);
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
    for (int i = 0; i < kBlock; i += 4) {
      uint32_t words[4];
      philox(q.seed, q.stream, static_cast<uint64_t>(element + i) / 4, words);
      for (int j = 0; j < 4; ++j) code[i + j] = stochastic_code(y[i + j], words[j]);
    }
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

void quantize_strip(const QuantizeCall& q, int64_t first, int count, int64_t k_begin,
                    int64_t k_end) {
  Tile tile;
  for (int64_t k = k_begin; k < k_end; k += kPeriod) {
    const int columns = k_end - k < kPeriod ? static_cast<int>(k_end - k) : kPeriod;
    gather(q, first, count, k, columns, &tile);
    for (int r = 0; r < count && q.rotation_size; ++r) rotate(q, columns, tile.x[r]);
    quantize_tile(q, tile, first, count, k, columns);
  }
}
