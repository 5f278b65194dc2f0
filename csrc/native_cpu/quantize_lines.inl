// The quantizer on 16-bit lanes: rows, and both halves of a pair from one read. Included inside an
// anonymous namespace by quantize_avx2.inl and quantize_avx512.inl, after the functions that their
// vectors do the work with:
//   run_maxima      the largest words of up to 16 blocks along K, and the words of what is no
//                   bfloat16
//   encode_run      those blocks' codes
//   read_rows       four rows of a chunk: positions, signs and maxima
//   square_maxima   the maxima of 32 rows and of 32 columns of a chunk
//   square_along_m, square_along_k   codes of 32 x 32 elements of a chunk, columns or rows in lines
//   stream_line     writes a line past the caches

void quantize_block(const QuantizeCall& q, int64_t row, int64_t k) {
  quantize_strip(q, row, 1, k, k + kBlock);
}

// Up to kRunBlocks blocks of a row and their largest words. What is no bfloat16 is kept as words.
template <DType dtype>
struct Run {
  int64_t k;
  int count;
  __m256i maxima;
  alignas(64) uint16_t own[dtype == DType::kBFloat16 ? 1 : kRunBlocks * kBlock];

  void read(const QuantizeCall& q, int64_t row, int64_t first, int64_t end) {
    const int64_t blocks = (end - first) / kBlock;
    k = first;
    const int64_t at = row * q.row_stride + k;
    if (blocks >= kRunBlocks) {  // a known number makes straight code
      count = kRunBlocks;
      maxima = run_maxima<dtype>(q.x, at, kRunBlocks, own);
    } else {
      count = static_cast<int>(blocks);
      maxima = run_maxima<dtype>(q.x, at, count, own);
    }
  }
  const uint16_t* words(const QuantizeCall& q, int64_t row) const {
    return dtype == DType::kBFloat16 ? static_cast<const uint16_t*>(q.x) + row * q.row_stride + k
                                     : own;
  }
};

template <DType dtype>
inline void encode(const QuantizeCall& q, int64_t row, const Run<dtype>& run,
                   const Scales16& scales, bool streams) {
  alignas(64) uint16_t references[kRunBlocks];
  _mm256_store_si256(reinterpret_cast<__m256i*>(references), scales.references);
  alignas(16) uint8_t bytes[kRunBlocks];
  _mm_store_si128(reinterpret_cast<__m128i*>(bytes),
                  _mm_packus_epi16(_mm256_castsi256_si128(scales.bytes),
                                   _mm256_extracti128_si256(scales.bytes, 1)));
  __builtin_memcpy(q.scales + (row * q.stored_k + run.k) / kBlock, bytes, run.count);
  unsigned special = lane_mask(scales.special);
  uint8_t* codes = q.codes + (row * q.stored_k + run.k) / 2;
  if (run.count == kRunBlocks && streams && !special) {
    encode_run<true>(run.words(q, row), references, kRunBlocks, codes);
  } else {
    encode_run<false>(run.words(q, row), references, run.count, codes);
  }
  for (; special; special &= special - 1) {
    const int b = __builtin_ctz(special);
    if (b < run.count) quantize_block(q, row, run.k + b * kBlock);
  }
}

// Blocks k_begin .. k_end of a row. A run's largest words are found before the codes of the one
// before it, so that neither waits for the other.
template <DType dtype>
inline void quantize_runs(const QuantizeCall& q, int64_t row, int64_t k_begin, int64_t k_end,
                          bool streams) {
  Run<dtype> runs[2];
  int now = 0;
  runs[0].read(q, row, k_begin, k_end);
  for (int64_t next = k_begin; next < k_end; now ^= 1) {
    next += kRunBlocks * kBlock;
    const Scales16 scales = scales16(runs[now].maxima, q.rounding_bias >> 16);
    if (next < k_end) runs[now ^ 1].read(q, row, next, k_end);
    encode(q, row, runs[now], scales, streams);
  }
}

// Whether rows of codes are whole lines, and too many for the caches.
inline bool streams_whole_lines(const QuantizeCall& q) {
  return q.rows * q.stored_k >= kStreamElements &&
         reinterpret_cast<uintptr_t>(q.codes) % kLine == 0 && q.stored_k % (2 * kLine) == 0;
}

template <DType dtype>
void rows_of(const QuantizeCall& q, int64_t row, int64_t k_begin, int64_t k_end) {
  if (k_begin < k_end) quantize_runs<dtype>(q, row, k_begin, k_end, streams_whole_lines(q));
  _mm_sfence();
}

void fast_row(const QuantizeCall& q, int64_t row, int64_t k_begin, int64_t k_end) {
  if (q.dtype == DType::kFloat32) return rows_of<DType::kFloat32>(q, row, k_begin, k_end);
  if (q.dtype == DType::kFloat16) return rows_of<DType::kFloat16>(q, row, k_begin, k_end);
  rows_of<DType::kBFloat16>(q, row, k_begin, k_end);
}

// A tile of kPeriod columns, as one row of FP32.
inline void fast_tile(const QuantizeCall& q, const Tile& tile, int64_t row, int rows, int64_t k) {
  constexpr int kRowCodes = kPeriod / 2, kRowScales = kPeriod / kBlock;
  alignas(64) uint8_t codes[kStripRows * kRowCodes];
  uint8_t scales[kStripRows * kRowScales];
  QuantizeCall flat{};
  flat.x = tile.x;
  flat.dtype = DType::kFloat32;
  flat.rows = flat.column_stride = 1;
  flat.k = flat.stored_k = flat.row_stride = int64_t{rows} * kPeriod;
  flat.rounding_bias = q.rounding_bias;
  flat.prescale = 1;
  flat.codes = codes;
  flat.scales = scales;
  quantize_runs<DType::kFloat32>(flat, 0, 0, flat.k, false);
  for (int r = 0; r < rows; ++r) {
    const int64_t element = (row + r) * q.stored_k + k;
    __builtin_memcpy(q.codes + element / 2, codes + r * kRowCodes, kRowCodes);
    __builtin_memcpy(q.scales + element / kBlock, scales + r * kRowScales, kRowScales);
  }
}

// quantize_strip() with that for the tiles that it takes: rotated ones, and those of any strides.
void fast_strip(const QuantizeCall& q, int64_t first, int count, int64_t k_begin, int64_t k_end) {
  const bool closed = q.rounding_bias != kSearch && !q.stochastic && !q.block_2d;
  const bool fast = closed && q.prescale == 1.0f;
  for_each_tile(q, first, count, k_begin, k_end, [&](const Tile& tile, int64_t k, int columns) {
    if (fast && columns == kPeriod) {
      fast_tile(q, tile, first, count, k);
    } else {
      quantize_tile(q, tile, first, count, k, columns);
    }
  });
}

// Codes and scale bytes of 128 rows of a chunk's columns, gathered so that codes are written as
// whole cache lines and four scale bytes at once.
struct PairLines {
  alignas(64) uint8_t along_k[kBlock][kChunkColumns / 2];
  alignas(64) uint8_t along_m[kChunkColumns][kLine];
  alignas(64) uint8_t scales_k[kChunkColumns / kBlock][kBlock];
  alignas(64) uint8_t scales_m[kPairStripRows / kBlock][kChunkColumns];
};

// Quantizes the blocks of `special`, block i being that of row `row` + i at k, the general way, and
// takes their codes and scale bytes over.
void mend_blocks(const QuantizeCall& q, unsigned special, int64_t row, int64_t k, uint8_t* scales,
                 uint8_t* lines, int pitch) {
  for (; special; special &= special - 1) {
    const int i = __builtin_ctz(special);
    quantize_block(q, row + i, k);
    const int64_t element = (row + i) * q.stored_k + k;
    scales[i] = q.scales[element / kBlock];
    __builtin_memcpy(lines + i * pitch, q.codes + element / 2, kBlockBytes);
  }
}

// Writes whole lines past the caches where the result is large: nobody reads it soon.
inline void write_lines(const uint8_t* lines, int bytes, bool streams, uint8_t* target) {
  int i = 0;
  for (; streams && i + kLine <= bytes; i += kLine) stream_line(lines + i, target + i);
  __builtin_memcpy(target + i, lines + i, bytes - i);
}

// Writes four rows' scale bytes at a time, row r's of up to four squares being
// bytes[square][stride] from r on.
inline void write_scales(const uint8_t* bytes, int stride, int rows, int squares, int64_t pitch,
                         uint8_t* target) {
  for (int r = 0; r < rows; ++r) {
    uint8_t own[4];
    for (int i = 0; i < 4; ++i) own[i] = bytes[(i < squares ? i : 0) * stride + r];
    if (squares >= 4) {
      __builtin_memcpy(target + r * pitch, own, 4);
    } else {
      __builtin_memcpy(target + r * pitch, own, squares);
    }
  }
}

// One pair of calls and what is known of both.
struct Pair {
  const QuantizeCall& along_k;
  const QuantizeCall& along_m;
  int bias;
  bool streams_k, streams_m;
};

// 32 rows of a chunk at (row, k), which is row m of the lines: codes and scales both ways.
inline void quantize_chunk(const Pair& pair, const ChunkWork& work, int64_t row, int64_t k, int m,
                           int columns, const Ahead& ahead, PairLines* lines) {
  for (int c = 0; c < columns; c += kBlock) {
    __m256i of_rows[2], of_columns[2];
    Scales32 scales;
    square_maxima(work, c, of_rows, of_columns);
    find_scales(of_columns[0], of_columns[1], pair.bias, &scales);
    uint8_t* codes = &lines->along_m[c][m / 2];
    square_along_m(work, c, scales.references, ahead, codes);
    if (scales.special) {
      mend_blocks(pair.along_m, scales.special, k + c, row, scales.bytes, codes, kLine);
    }
    __builtin_memcpy(&lines->scales_m[m / kBlock][c], scales.bytes, kBlock);

    find_scales(of_rows[0], of_rows[1], pair.bias, &scales);
    codes = &lines->along_k[0][c / 2];
    square_along_k(work, c, scales.references, codes);
    if (scales.special) {
      mend_blocks(pair.along_k, scales.special, row, k + c, scales.bytes, codes, kChunkColumns / 2);
    }
    __builtin_memcpy(lines->scales_k[c / kBlock], scales.bytes, kBlock);
  }
}

// Up to 128 rows of a chunk's columns, whole blocks both ways.
//
// With a stride of a power of two all rows fall into the same few sets of the caches, which then
// hold only few of them at once. So every row is read once, several lines of it together; 16 rows
// of the next 32 are asked for while these are encoded, the others while those are read.
template <DType dtype>
void quantize_chunks(const Pair& pair, int64_t first, int rows, int64_t k, int columns,
                     ChunkWork* work, PairLines* lines) {
  const QuantizeCall &q = pair.along_k, &qt = pair.along_m;
  const int64_t size = kElementBytes<dtype>, stride = q.row_stride * size;
  const char* x = static_cast<const char*>(q.x) + (first * q.row_stride + k) * size;
  for (int m = 0; m < rows; m += kBlock) {
    const int64_t row = first + m;
    const char* here = x + m * stride;
    for (int r = 0; r < kBlock; r += kReadRows) {
      const Ahead later = {here + (r + kBlock / 2) * stride, stride, size};
      read_rows<dtype>(here + r * stride, stride, columns, r, later, work);
    }
    // The next rows are below these or, past the last ones, at the top of the next columns.
    const char* next = m + kBlock < rows ? here + kBlock * stride : x + columns * size;
    quantize_chunk(pair, *work, row, k, m, columns, Ahead{next, stride, size}, lines);
    for (int r = 0; r < kBlock; ++r) {
      write_lines(lines->along_k[r], columns / 2, pair.streams_k,
                  q.codes + ((row + r) * q.stored_k + k) / 2);
    }
    for (int c = 0; c < columns; c += 4 * kBlock) {
      const int squares = (columns - c) / kBlock;
      write_scales(lines->scales_k[c / kBlock], kBlock, kBlock, squares, q.stored_k / kBlock,
                   q.scales + (row * q.stored_k + k + c) / kBlock);
    }
  }
  for (int c = 0; c < columns; ++c) {
    write_lines(lines->along_m[c], rows / 2, pair.streams_m,
                qt.codes + ((k + c) * qt.stored_k + first) / 2);
  }
  write_scales(lines->scales_m[0], kChunkColumns, columns, rows / kBlock, qt.stored_k / kBlock,
               qt.scales + (k * qt.stored_k + first) / kBlock);
}

template <DType dtype>
void pair_of(const QuantizeCall& along_k, const QuantizeCall& along_m, int64_t first, int rows,
             int64_t k_begin, int64_t k_end) {
  ChunkWork work;
  PairLines lines;
  const Pair pair = {along_k, along_m, along_k.rounding_bias >> 16, streams_whole_lines(along_k),
                     streams_whole_lines(along_m)};
  for (int64_t k = k_begin; k < k_end; k += kChunkColumns) {
    const int columns = k_end - k < kChunkColumns ? static_cast<int>(k_end - k) : kChunkColumns;
    quantize_chunks<dtype>(pair, first, rows, k, columns, &work, &lines);
  }
  _mm_sfence();
}

void fast_pair(const QuantizeCall& along_k, const QuantizeCall& along_m, int64_t first, int rows,
               int64_t k_begin, int64_t k_end) {
  switch (along_k.dtype) {
    case DType::kFloat32:
      return pair_of<DType::kFloat32>(along_k, along_m, first, rows, k_begin, k_end);
    case DType::kFloat16:
      return pair_of<DType::kFloat16>(along_k, along_m, first, rows, k_begin, k_end);
    default:
      return pair_of<DType::kBFloat16>(along_k, along_m, first, rows, k_begin, k_end);
  }
}

QuantizeKernels quantize_kernels() { return {fast_strip, fast_row, fast_pair}; }
