// D = epilogue(X @ B.T) with X in high precision and B packed, for decoding without quantized
// activations.
#pragma once
#include <cstdint>

#include "columns.h"
#include "kernels.h"

namespace mxgemm {

struct WeightOnlyCall {
  int64_t m, n, k, blocks;  // k: elements of a row of X; zeros follow up to blocks * kBlock
  const void* x;
  int64_t x_stride;  // in elements
  DType x_dtype;
  const PreparedColumns* prepared;  // or null and b
  Matrix b;
  Epilogue epilogue;
  float* bias_grad;  // [N], or null
  int threads;
};

void weight_only_gemm(const Kernels& kernels, const WeightOnlyCall& call);

}  // namespace mxgemm
