// Pieces of the product whose scales or values leave FP32's range, summed in FP64.
#pragma once
#include "kernels.h"

namespace mxgemm {

// Writes acc [rows][stride]: products of the rows and a column panel. Each block's sum is exact,
// and blocks are added in ascending order in FP64, which holds every scale.
void wide_product(const RowPanel& rows, const ColumnPanel& panel, double* acc, int64_t stride);

// Writes acc [kPanel]: one row of `count` high-precision values times a column panel, in FP64.
void wide_weight_only(const void* x, DType dtype, int64_t count, const ColumnPanel& panel,
                      double* acc);

}  // namespace mxgemm
