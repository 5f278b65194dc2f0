// Quantization to MXFP4: what is asked, and the functions of an instruction set that do it. Plain
// data only; see operands.h for why.
#pragma once
#include <cstdint>

#include "epilogue.h"

namespace mxgemm {

struct QuantizeCall {
  // Source [rows, k]; strides in elements. Columns k .. stored_k - 1 count as zeros.
  const void* x;
  DType dtype;
  int64_t rows, k, row_stride, column_stride, stored_k;

  int32_t rounding_bias;  // of the closed scale rules; kSearch for the search rule
  bool stochastic;
  uint64_t seed;
  uint32_t stream;
  int rotation_size;  // 0 for none
  uint64_t rotation_signs;
  bool block_2d;
  float prescale;  // 1 or 0.75

  uint8_t* codes;   // [rows, stored_k / 2]
  uint8_t* scales;  // [rows, stored_k / 32]
};

constexpr int32_t kSearch = -1;
constexpr int kStripRows = 32;       // rows of a 2-D block
constexpr int kPairStripRows = 128;  // rows whose codes along M fill a cache line
// From here on results are written past the caches, which they would not fit.
constexpr int64_t kStreamElements = int64_t{1} << 22;

struct QuantizeKernels {
  // Quantizes rows [first, first + count), count <= kStripRows and first a multiple of it, over k
  // in [k_begin, k_end), both multiples of 64 or the end.
  void (*strip)(const QuantizeCall& call, int64_t first, int count, int64_t k_begin, int64_t k_end);
  // Faster forms for closed rules, nearest-even, unrotated, 1-D blocks, no prescale and a source
  // that is contiguous along k; null where there is none. k_begin and k_end are whole blocks.
  void (*fast_row)(const QuantizeCall& call, int64_t row, int64_t k_begin, int64_t k_end);
  // Both halves of a pair from one read of rows [first, first + rows), rows a multiple of 32 and at
  // most kPairStripRows.
  void (*fast_pair)(const QuantizeCall& along_k, const QuantizeCall& along_m, int64_t first,
                    int rows, int64_t k_begin, int64_t k_end);
};

struct Kernels;

void quantize(const Kernels& kernels, const QuantizeCall& call, int threads);
// along_m describes x.T: its rows are along_k's columns.
void quantize_pair(const Kernels& kernels, const QuantizeCall& along_k, const QuantizeCall& along_m,
                   int threads);

}  // namespace mxgemm
