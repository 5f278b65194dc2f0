// What happens to a product on its way out:
//   z = alpha * (A @ B.T) + bias;   aux_out = z;   D = act(z) + beta * C            forward
//   z = alpha * (A @ B.T);          D = z * act'(aux_in) + beta * C                 backward
//   bias_grad[n] = sum over m of D[m, n], before D is rounded
// Plain data only; see operands.h for why.
#pragma once
#include <cstdint>

namespace mxgemm {

enum class DType : int { kNone = 0, kFloat32 = 1, kBFloat16 = 2, kFloat16 = 3 };
enum class Activation : int { kNone = 0, kRelu = 1, kGelu = 2, kGeluTanh = 3 };

// A matrix of outputs or of values that take part elementwise; stride in elements, rows contiguous.
struct Plane {
  void* data;
  int64_t stride;
  DType dtype;
};

struct Epilogue {
  double alpha = 1, beta = 0;
  Activation activation = Activation::kNone, dact = Activation::kNone;
  Plane out{}, bias{}, c{}, aux_out{}, aux_in{};
  double* bias_grad = nullptr;  // one partial row [N] for each group of rows, or null
};

// Where a finished piece of the product lies in D.
struct Piece {
  int64_t row, column;
  int rows, columns;
  int64_t stride;     // of the accumulators, in elements
  double* bias_grad;  // this row group's partial sums, indexed by column of D, or null
};

}  // namespace mxgemm
