#include "scales.h"

#include <cstring>

namespace mxgemm {
namespace {

bool is_zero(const uint8_t* codes) {
  uint64_t low, high;
  std::memcpy(&low, codes, 8);
  std::memcpy(&high, codes + 8, 8);
  return ((low | high) & 0x7777777777777777u) == 0;
}

// Where no byte is NaN, all lie close together and far from FP32's limits, a zero block's own byte
// does no harm, and nothing needs to be looked at.
constexpr int kHarmlessSpread = 2;
constexpr int kHarmlessLow = 70, kHarmlessHigh = 180;

ScaleRange range_of(const uint8_t* scales, int64_t blocks) {
  uint8_t low = 255, high = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    low = scales[b] < low ? scales[b] : low;
    high = scales[b] > high ? scales[b] : high;
  }
  return {low, high};
}

}  // namespace

RowScales effective_scales(const uint8_t* codes, const uint8_t* scales, int64_t blocks,
                           uint8_t* out, int64_t out_stride) {
  const ScaleRange range = range_of(scales, blocks);
  if (range.high - range.low <= kHarmlessSpread && range.low >= kHarmlessLow &&
      range.high <= kHarmlessHigh) {
    if (out_stride == 1) {
      std::memcpy(out, scales, static_cast<size_t>(blocks));
    } else {
      for (int64_t b = 0; b < blocks; ++b) out[b * out_stride] = scales[b];
    }
    return {range, false};
  }
  RowScales row{{kScaleOne, kScaleOne}, false};
  int64_t first = 0;  // first block that counts
  for (; first < blocks; ++first) {
    if (scales[first] == kScaleNaN) {
      row.poisoned = true;
    } else if (!is_zero(codes + first * kBlockBytes)) {
      break;
    }
  }
  uint8_t byte = first < blocks ? scales[first] : kScaleOne;
  int low = byte, high = byte;
  for (int64_t b = 0; b < blocks; ++b) {
    if (b >= first) {
      const uint8_t own = scales[b];
      if (own == kScaleNaN) {
        row.poisoned = true;
      } else if (own != byte && !is_zero(codes + b * kBlockBytes)) {
        byte = own;
        low = own < low ? own : low;
        high = own > high ? own : high;
      }
    }
    out[b * out_stride] = byte;
  }
  row.range = {low, high};
  return row;
}

bool fits_fp32(ScaleRange a, ScaleRange b, int64_t blocks) {
  int bits = 0;  // ceil(log2(blocks))
  while ((int64_t{1} << bits) < blocks) ++bits;
  const int largest_sum = 6 + 5 + bits;  // 36 < 2^6, 32 = 2^5
  return a.low + b.low - 254 - 2 >= -126 && a.high + b.high - 254 + largest_sum <= 127;
}

}  // namespace mxgemm
