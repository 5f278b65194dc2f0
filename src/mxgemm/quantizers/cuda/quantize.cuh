// What the quantizer's kernels share: their argument and the shape of a tile.
#pragma once
#include "block_codes.cuh"

constexpr int kThreads = 256;
constexpr int kTile = 128;
constexpr int kBlock = 32;
constexpr int kBlocks = kTile / kBlock;

// Mirrored by cuda/__init__.py, field by field.
struct Quantize {
  const u8* x;           // [rows, k]
  u8* codes;             // [rows, stored_k / 2]
  u8* scales;            // [rows, stored_k / 32]
  u8* codes_m;           // [k, stored_m / 2]
  u8* scales_m;          // [k, stored_m / 32]
  long long pitch;       // bytes from row to row of x
  u64 seed, signs;       // Philox key; bit i: element i of a rotation's period is negated
  u32 stream, stream_m;  // Philox streams of `codes` and `codes_m`
  int rows, k, stored_k, stored_m;
  int vectors;  // rows of x may be read 16 bytes at a time
};
