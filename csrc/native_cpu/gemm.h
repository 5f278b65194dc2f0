// D = epilogue(A @ B.T) over the kernels of one instruction set: blocking, packing, threads.
#pragma once
#include <cstdint>

#include "columns.h"
#include "kernels.h"

namespace mxgemm {

// Which path a GEMM takes; automatic chooses by the number of rows.
enum class Path : int { kAutomatic = 0, kFewRows = 1, kTile = 2, kWide = 3, kRowMajor = 4 };

struct GemmCall {
  int64_t m, n, blocks;
  Matrix a;
  const PreparedColumns* prepared;  // or null and b
  Matrix b;
  Epilogue epilogue;
  float* bias_grad;  // [N], or null
  int threads;
  Path path;
};

void gemm(const Kernels& kernels, const GemmCall& call);

}  // namespace mxgemm
