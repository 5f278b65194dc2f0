// Scale bytes as the kernels want them.
#pragma once
#include <cstdint>

#include "operands.h"

namespace mxgemm {

struct RowScales {
  ScaleRange range;
  bool poisoned;
};

// Writes the effective scale bytes of one row, 0..254. A block whose codes are all zeros has no
// influence on the sum, so it takes its neighbour's byte (127 in a row of zeros) and widens no
// range; so does a NaN block, since it is reported as `poisoned` and its row or column of D will be
// NaN.
RowScales effective_scales(const uint8_t* codes, const uint8_t* scales, int64_t blocks,
                           uint8_t* out, int64_t out_stride);

// Whether FP32 can scale and sum products of these two panels over `blocks` blocks: 2^(a + b - 254)
// / 4 must be normal, and no partial sum, at most 36 * 32 * blocks * 2^(a + b - 254), may reach
// 2^128. Then every addition rounds as FP32 arithmetic without exponent limits would.
bool fits_fp32(ScaleRange a, ScaleRange b, int64_t blocks);

inline ScaleRange join(ScaleRange x, ScaleRange y) {
  return {x.low < y.low ? x.low : y.low, x.high > y.high ? x.high : y.high};
}

}  // namespace mxgemm
