// The table of functions that one instruction set provides; the driver calls nothing else of it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "epilogue.h"
#include "operands.h"
#include "quantize.h"

namespace mxgemm {

// Rows in high precision times packed B, summed in FP32 within each block and then across blocks.
struct WeightOnly {
  const char* name;   // for people
  int element_bytes;  // of a value in the kernel's form of the rows
  // Writes one row of `k` elements, zeros up to blocks * kBlock, into a form of `rows` rows.
  // Returns whether the kernel may multiply it: all values finite and zero or of a magnitude of
  // which no sum of a block overflows or underflows, whatever the block's scale.
  bool (*pack_row)(const void* x, DType dtype, int64_t k, int64_t blocks, int rows, int row,
                   void* form);
  // Writes acc [rows][stride], kPanel columns of it. Null where a table has no such kernel.
  void (*multiply)(const void* form, int rows, const ColumnPanel& panel, int64_t blocks, float* acc,
                   int64_t stride);
};

struct Kernels {
  const char* isa;        // as in the override: scalar, avx2, avx512_vnni
  const char* tile_name;  // for people

  // Tile kernel, for many rows: accumulates `tile_rows` x `tile_panels * kPanel` outputs in FP32,
  // both operands decoded to int8 in forms of its own.
  int tile_rows;
  int tile_panels;
  int chunk_blocks;         // most blocks of K that a tile works through at once
  bool aligns_blocks;       // sums blocks of like scales as integers: their order matters to speed
  int row_panels_per_step;  // row panels that share one pass over a decoded chunk of B
  size_t column_budget;     // bytes of decoded B that fit the cache next to the core
  size_t (*row_form_bytes)(const Schedule& schedule);
  size_t (*column_form_bytes)(const Schedule& schedule);
  void (*pack_rows)(const RowPanel& rows, const Schedule& schedule, void* form);
  void (*decode_columns)(const ColumnPanel* panels, int count, const Schedule& schedule,
                         void* form);
  // Adds the products over a group of blocks to acc [tile_rows][tile_panels * kPanel].
  void (*tile)(const void* rows, const void* columns, const Schedule& schedule, int group,
               float* acc);

  // Few-rows kernel: B stays packed, its blocks are decoded in registers and used for all rows.
  int few_rows;  // largest number of rows it is the better choice for
  size_t (*few_rows_form_bytes)(int rows, int64_t blocks);
  void (*pack_few_rows)(const RowPanel& rows, void* form);
  // Writes acc [rows][stride], kPanel columns of it.
  void (*few)(const void* form, int rows, const ColumnPanel& panel, int64_t blocks, float* acc,
              int64_t stride);

  // Row-major kernel, for fewer rows still where B is canonical: its rows are read as they are.
  int row_major_rows;  // largest number of rows it takes, 0 for none
  size_t (*row_major_form_bytes)(int rows, int64_t blocks);
  void (*pack_row_major)(const RowPanel& rows, void* form);
  // Writes acc [rows][stride], b.rows columns of it.
  void (*row_major)(const void* form, int rows, const CanonicalRows& b, int64_t blocks, float* acc,
                    int64_t stride);

  // Interleaves the codes of `count` rows of B (at most kPanel) into a column panel's codes.
  void (*interleave)(const uint8_t* codes, int64_t stride, int count, int64_t blocks,
                     uint8_t* panel_codes);

  WeightOnly weight_only;       // rows of any dtype
  WeightOnly weight_only_bf16;  // bfloat16 rows, where there is something better for them

  void (*finish)(const Epilogue& epilogue, const Piece& piece, const float* acc);
  void (*finish_wide)(const Epilogue& epilogue, const Piece& piece, const double* acc);

  QuantizeKernels quantize;

  // Ceilings to measure against. Runs `iterations` times the multiplications that the tiles are
  // made of, on registers only, and returns how many multiply-adds that was; reads memory, asking
  // for it ahead or not, and returns a value that depends on all of it.
  int64_t (*multiply_loop)(int64_t iterations);
  uint64_t (*read_loop)(const void* data, size_t bytes, bool asks_ahead);
};

// Null where the unit was built without its instruction set.
const Kernels* scalar_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_vnni_kernels(bool halve_multiplies);
const WeightOnly* avx512_bf16_weight_only();

}  // namespace mxgemm
