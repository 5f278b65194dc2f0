// Boxes of an operand's rows, copied by TMA.
#pragma once
#include "ptx.cuh"

// Tensor maps whose boxes have the rows of a tile, and those of the last tile: what a box covers
// outside an operand is filled at some 18 bytes a cycle, slower than the rest of it is copied
// (H200, 2026-11-30: m = 129 in a tile of 256 rows took 62 us, m = 256 29). Shared memory keeps
// there what it held; nobody stores what comes of it.
struct RowBoxes {
  TensorMap whole, last;

  DEVICE const TensorMap* of(bool is_whole) const { return is_whole ? &whole : &last; }
  DEVICE void prefetch() const {
    prefetch_map(&whole);
    prefetch_map(&last);
  }
};
