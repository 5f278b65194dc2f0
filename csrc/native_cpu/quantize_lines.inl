// The quantizer on 16-bit lanes: rows, and both halves of a pair from one read. Included inside an
// anonymous namespace by quantize_avx2.inl and quantize_avx512.inl, after the functions that their
// vectors do the work with:
//   run_maxima      the largest words of up to 16 blocks along K, and the words of what is no
//                   bfloat16
//   encode_run      those blocks' codes
//   read_square     32 x 32 elements into a SquareWork, with the columns' maxima
//   row_maxima      the rows' maxima of one
//   square_along_m, square_along_k   its codes, columns or rows in lines of kLine bytes
//   stream_line     writes a line past the caches

void quantize_block(const QuantizeCall& q, int64_t row, int64_t k) {
  quantize_strip(q, row, 1, k, k + kBlock);
}

// Blocks from k on of a row, at most kRunBlocks.
template <DType dtype>
inline void quantize_run(const QuantizeCall& q, int64_t row, int64_t k, int count, bool streams) {
  const int64_t first = row * q.row_stride + k;
  alignas(64) uint16_t own[kRunBlocks * kBlock];
  alignas(64) uint16_t references[kRunBlocks];
  // The run's words: bfloat16 is read where it lies.
  const uint16_t* words =
      dtype == DType::kBFloat16 ? static_cast<const uint16_t*>(q.x) + first : own;
  const Scales16 scales =
      scales16(run_maxima<dtype>(q.x, first, count, own), q.rounding_bias >> 16);
  _mm256_store_si256(reinterpret_cast<__m256i*>(references), scales.references);
  alignas(16) uint8_t bytes[kRunBlocks];
  _mm_store_si128(reinterpret_cast<__m128i*>(bytes),
                  _mm_packus_epi16(_mm256_castsi256_si128(scales.bytes),
                                   _mm256_extracti128_si256(scales.bytes, 1)));
  __builtin_memcpy(q.scales + (row * q.stored_k + k) / kBlock, bytes, count);
  unsigned special = lane_mask(scales.special);
  uint8_t* codes = q.codes + (row * q.stored_k + k) / 2;
  if (count == kRunBlocks && streams && !special) {
    encode_run<true>(words, references, kRunBlocks, codes);
  } else {
    encode_run<false>(words, references, count, codes);
  }
  for (; special; special &= special - 1) {
    const int b = __builtin_ctz(special);
    if (b < count) quantize_block(q, row, k + b * kBlock);
  }
}

template <DType dtype>
void rows_of(const QuantizeCall& q, int64_t row, int64_t k_begin, int64_t k_end) {
  const bool streams = q.rows * q.stored_k >= kStreamElements &&
                       reinterpret_cast<uintptr_t>(q.codes) % kLine == 0 &&
                       q.stored_k % (2 * kLine) == 0;
  for (int64_t k = k_begin; k < k_end; k += kRunBlocks * kBlock) {
    const int64_t blocks = (k_end - k) / kBlock;
    quantize_run<dtype>(q, row, k, blocks < kRunBlocks ? static_cast<int>(blocks) : kRunBlocks,
                        streams);
  }
  _mm_sfence();
}

void fast_row(const QuantizeCall& q, int64_t row, int64_t k_begin, int64_t k_end) {
  if (q.dtype == DType::kFloat32) return rows_of<DType::kFloat32>(q, row, k_begin, k_end);
  if (q.dtype == DType::kFloat16) return rows_of<DType::kFloat16>(q, row, k_begin, k_end);
  rows_of<DType::kBFloat16>(q, row, k_begin, k_end);
}

// Codes and scale bytes of 128 x 128 elements, gathered so that codes are written as whole cache
// lines and four scale bytes at once.
struct PairLines {
  alignas(64) uint8_t along_k[kBlock][kLine];
  alignas(64) uint8_t along_m[kPairColumns][kLine];
  alignas(64) uint8_t scales_k[kPairColumns / kBlock][kBlock];
  alignas(64) uint8_t scales_m[kPairStripRows / kBlock][kPairColumns];
};

// Quantizes the blocks of `special`, block i being that of row `row` + i at k, the general way, and
// takes their codes and scale bytes over.
void mend_blocks(const QuantizeCall& q, unsigned special, int64_t row, int64_t k, uint8_t* scales,
                 uint8_t* lines) {
  for (; special; special &= special - 1) {
    const int i = __builtin_ctz(special);
    quantize_block(q, row + i, k);
    const int64_t element = (row + i) * q.stored_k + k;
    scales[i] = q.scales[element / kBlock];
    __builtin_memcpy(lines + i * kLine, q.codes + element / 2, kBlockBytes);
  }
}

// Writes a line past the cache where it is whole and aligned: nobody reads it soon.
inline void write_line(const uint8_t* line, int bytes, uint8_t* target) {
  if (bytes < kLine || reinterpret_cast<uintptr_t>(target) % kLine != 0) {
    __builtin_memcpy(target, line, bytes);
  } else {
    stream_line(line, target);
  }
}

// Writes a row's scale bytes of up to four squares, from bytes[square][stride].
inline void write_scales(const uint8_t* bytes, int stride, int rows, int squares, int64_t pitch,
                         uint8_t* target) {
  for (int r = 0; r < rows; ++r) {
    uint8_t own[4];
    for (int i = 0; i < 4; ++i) own[i] = bytes[i * stride + r];
    if (squares == 4) {
      __builtin_memcpy(target + r * pitch, own, 4);
    } else {
      __builtin_memcpy(target + r * pitch, own, squares);
    }
  }
}

// A square of 32 x 32 elements at (row, k), both ways, into the lines of its place (m, c).
template <DType dtype>
inline void quantize_square(const QuantizeCall& q, const QuantizeCall& qt, int64_t row, int64_t k,
                            int m, int c, int64_t ahead, PairLines* lines) {
  const int bias = q.rounding_bias >> 16;
  SquareWork work;
  __m256i amax[2];
  Scales32 scales;
  read_square<dtype>(q.x, row * q.row_stride + k, q.row_stride, ahead, &work, amax);
  find_scales(amax[0], amax[1], bias, &scales);
  uint8_t* codes = &lines->along_m[c][m / 2];
  square_along_m(work, scales.references, codes);
  if (scales.special) mend_blocks(qt, scales.special, k, row, scales.bytes, codes);
  __builtin_memcpy(&lines->scales_m[m / kBlock][c], scales.bytes, kBlock);

  row_maxima(work, amax);
  find_scales(amax[0], amax[1], bias, &scales);
  codes = &lines->along_k[0][c / 2];
  square_along_k(work, scales.references, codes);
  if (scales.special) mend_blocks(q, scales.special, row, k, scales.bytes, codes);
  __builtin_memcpy(lines->scales_k[c / kBlock], scales.bytes, kBlock);
}

// Up to 128 x 128 elements, whole blocks both ways. Every row is read once, a cache line at a time:
// with a stride of a power of two, all rows fall into few sets of the cache and do not stay there.
template <DType dtype>
void quantize_pair_lines(const QuantizeCall& q, const QuantizeCall& qt, int64_t first, int rows,
                         int64_t k, int columns, PairLines* lines) {
  for (int m = 0; m < rows; m += kBlock) {
    const int64_t row = first + m;
    for (int c = 0; c < columns; c += kBlock) {
      // Two squares on: in this row of squares, the next one, or the next group of columns.
      int64_t ahead = 2 * kBlock;
      if (c + ahead >= columns) {
        ahead =
            m + kBlock < rows ? kBlock * q.row_stride - 2 * kBlock : 2 * kBlock - m * q.row_stride;
      }
      quantize_square<dtype>(q, qt, row, k + c, m, c, ahead, lines);
    }
    for (int r = 0; r < kBlock; ++r) {
      write_line(lines->along_k[r], columns / 2, q.codes + ((row + r) * q.stored_k + k) / 2);
    }
    write_scales(lines->scales_k[0], kBlock, kBlock, columns / kBlock, q.stored_k / kBlock,
                 q.scales + (row * q.stored_k + k) / kBlock);
  }
  for (int c = 0; c < columns; ++c) {
    write_line(lines->along_m[c], rows / 2, qt.codes + ((k + c) * qt.stored_k + first) / 2);
  }
  write_scales(lines->scales_m[0], kPairColumns, columns, rows / kBlock, qt.stored_k / kBlock,
               qt.scales + (k * qt.stored_k + first) / kBlock);
}

template <DType dtype>
void pair_of(const QuantizeCall& q, const QuantizeCall& qt, int64_t first, int rows,
             int64_t k_begin, int64_t k_end) {
  PairLines lines;
  for (int64_t k = k_begin; k < k_end; k += kPairColumns) {
    const int columns = k_end - k < kPairColumns ? static_cast<int>(k_end - k) : kPairColumns;
    quantize_pair_lines<dtype>(q, qt, first, rows, k, columns, &lines);
  }
  _mm_sfence();
}

void fast_pair(const QuantizeCall& q, const QuantizeCall& qt, int64_t first, int rows,
               int64_t k_begin, int64_t k_end) {
  if (q.dtype == DType::kFloat32) {
    return pair_of<DType::kFloat32>(q, qt, first, rows, k_begin, k_end);
  }
  if (q.dtype == DType::kFloat16) {
    return pair_of<DType::kFloat16>(q, qt, first, rows, k_begin, k_end);
  }
  pair_of<DType::kBFloat16>(q, qt, first, rows, k_begin, k_end);
}

QuantizeKernels quantize_kernels() { return {quantize_strip, fast_row, fast_pair}; }
