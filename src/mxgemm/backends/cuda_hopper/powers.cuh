// What the power of two of a folded row, an int16, means to the kernels.
#pragma once
#include "ptx.cuh"

constexpr int kWideRow = 0x4000;      // of a row that is not folded; larger than any other
constexpr int kEasyPower = 60;        // up to here powers may be multiplied one after the other
constexpr int kPowersMultiple = 128;  // there is room for a multiple of this many rows

DEVICE int rows_with_powers(int rows) {
  return (rows + kPowersMultiple - 1) / kPowersMultiple * kPowersMultiple;
}
