// The table of functions that one instruction set provides; the driver calls nothing else of it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "epilogue.h"
#include "operands.h"
#include "quantize.h"

namespace mxgemm {

struct Kernels {
  const char* isa;        // as in the override: scalar, avx2, avx512_vnni
  const char* tile_name;  // for people

  // Tile kernel, for many rows: accumulates `tile_rows` x `tile_panels * kPanel` outputs in FP32,
  // both operands decoded to int8 in forms of its own.
  int tile_rows;
  int tile_panels;
  int chunk_blocks;         // blocks of K that a tile works through at once
  int row_panels_per_step;  // row panels that share one pass over a decoded chunk of B
  size_t column_budget;     // bytes of decoded B that fit the cache next to the core
  size_t (*row_form_bytes)(int64_t blocks);
  size_t (*column_form_bytes)(int64_t blocks);
  void (*pack_rows)(const RowPanel& rows, void* form);
  void (*decode_columns)(const ColumnPanel* panels, int count, int64_t blocks, void* form);
  // Adds the products over blocks [first, last) to acc [tile_rows][tile_panels * kPanel]; first is
  // a multiple of chunk_blocks and last is first + chunk_blocks or the end.
  void (*tile)(const void* rows, const void* columns, int64_t blocks, int64_t first, int64_t last,
               float* acc);

  // Few-rows kernel: B stays packed, its blocks are decoded in registers and used for all rows.
  int few_rows;  // largest number of rows it is the better choice for
  size_t (*few_rows_form_bytes)(int rows, int64_t blocks);
  void (*pack_few_rows)(const RowPanel& rows, void* form);
  // Writes acc [rows][stride], kPanel columns of it.
  void (*few)(const void* form, int rows, const ColumnPanel& panel, int64_t blocks, float* acc,
              int64_t stride);

  // Interleaves the codes of `count` rows of B (at most kPanel) into a column panel's codes.
  void (*interleave)(const uint8_t* codes, int64_t stride, int count, int64_t blocks,
                     uint8_t* panel_codes);

  // 16-bit or FP32 rows times packed B: acc [rows][stride] = x [rows][blocks * 32] (FP32) times the
  // panel.
  void (*weight_only)(const float* x, int rows, const ColumnPanel& panel, int64_t blocks,
                      float* acc, int64_t stride);
  // Widens `count` elements to FP32.
  void (*widen)(const void* x, DType dtype, int64_t count, float* out);

  void (*finish)(const Epilogue& epilogue, const Piece& piece, const float* acc);
  void (*finish_wide)(const Epilogue& epilogue, const Piece& piece, const double* acc);

  QuantizeKernels quantize;

  // Ceilings to measure against. Runs `iterations` times the multiplications that the tiles are
  // made of, on registers only, and returns how many multiply-adds that was; reads memory and
  // returns a value that depends on all of it.
  int64_t (*multiply_loop)(int64_t iterations);
  uint64_t (*read_loop)(const void* data, size_t bytes);
};

// Null where the unit was built without its instruction set.
const Kernels* scalar_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_vnni_kernels(bool halve_multiplies);

}  // namespace mxgemm
