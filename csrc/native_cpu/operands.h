// How operands lie in memory, shared by the driver and every instruction set. Plain data only: this
// header is included by units that are compiled for different instruction sets, so it must define
// no function.
#pragma once
#include <cstddef>
#include <cstdint>

namespace mxgemm {

constexpr int kBlock = 32;               // elements that share a scale
constexpr int kBlockBytes = kBlock / 2;  // their packed codes
constexpr int kPanel = 16;               // rows of B that a column panel interleaves
constexpr int kPanelBlockBytes = kPanel * kBlockBytes;
constexpr int kScaleOne = 127;  // E8M0 byte of 1.0
constexpr int kScaleNaN = 255;

// A canonical MXFP4 matrix: codes uint8 [rows, K/2], low nibble = even k; scales uint8 [rows,
// K/32]. Strides in bytes.
struct Matrix {
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t codes_stride;
  int64_t scales_stride;
};

// Range of the scale bytes of a panel's nonzero blocks.
struct ScaleRange {
  int low, high;
};

// Up to kPanel rows of B (columns of D) made ready for the kernels. For each block of K, in this
// order:
//   codes   256 bytes [4][kPanel][4]: four bytes (8 consecutive k) of every row side by side, so
//   that one vector
//           load holds the same k of neighbouring columns; low nibbles are even k, high nibbles odd
//           k;
//   scales  16 bytes, the blocks' effective scale bytes (0..254; see effective_scales).
// Rows past the matrix hold zeros.
struct ColumnPanel {
  const uint8_t* codes;
  const uint8_t* scales;
};

// Rows of A with their effective scales, [rows, blocks].
struct RowPanel {
  const uint8_t* codes;
  int64_t codes_stride;
  const uint8_t* scales;  // contiguous, stride = blocks
  int rows;
  int64_t blocks;
};

// The order in which a tile goes through the blocks of K, the same for both operands, cut into
// groups. Sums of integers do not mind the order, so blocks of like scales may stand together.
struct Schedule {
  const int32_t* order;  // [blocks]: the block at each place
  const int64_t* ends;   // [num_groups]: the place after each group's last one
  int64_t blocks;
  int num_groups;
};

// Rows of B as they lie in memory, with their effective scales; stride in bytes, a multiple of
// kScalePad, past the last block bytes of 127.
constexpr int kScalePad = 16;
struct CanonicalRows {
  const uint8_t* codes;
  int64_t codes_stride;
  const uint8_t* scales;
  int64_t scales_stride;
  int rows;
};

}  // namespace mxgemm
