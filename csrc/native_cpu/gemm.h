// D = epilogue(A @ B.T) over the kernels of one instruction set: blocking, packing, threads.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"
#include "scratch.h"

namespace mxgemm {

// B in the form that every kernel starts from, whatever the number of rows of A: column panels,
// effective scale bytes, and what the driver must know of them.
struct PreparedColumns {
  int64_t columns = 0, blocks = 0;
  Buffer codes, scales;
  std::vector<ScaleRange> ranges;  // of each panel
  std::vector<uint8_t> poisoned;   // per column: a block is NaN

  int64_t panels() const { return (columns + kPanel - 1) / kPanel; }
  ColumnPanel panel(int64_t p) const {
    return {codes.as<uint8_t>() + p * blocks * kPanelBlockBytes,
            scales.as<uint8_t>() + p * blocks * kPanel};
  }
  int64_t nbytes() const { return panels() * (blocks * (kPanelBlockBytes + kPanel) + 24); }
};

// Which path a GEMM takes; automatic chooses by the number of rows.
enum class Path : int { kAutomatic = 0, kFewRows = 1, kTile = 2, kWide = 3 };

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

struct WeightOnlyCall {
  int64_t m, n, blocks;
  const void* x;
  int64_t x_stride;  // in elements
  DType x_dtype;
  const PreparedColumns* prepared;
  Epilogue epilogue;
  int threads;
};

std::unique_ptr<PreparedColumns> prepare_columns(const Kernels& kernels, const Matrix& b, int64_t n,
                                                 int64_t blocks, int threads);
void gemm(const Kernels& kernels, const GemmCall& call);
void weight_only_gemm(const Kernels& kernels, const WeightOnlyCall& call);

}  // namespace mxgemm
