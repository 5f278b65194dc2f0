#include "wide.h"

#include <cmath>

namespace mxgemm {
namespace {

constexpr int8_t kTwiceValue[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void decode_block(const uint8_t* row_codes, int8_t* out) {
  for (int i = 0; i < kBlockBytes; ++i) {
    out[2 * i] = kTwiceValue[row_codes[i] & 15];
    out[2 * i + 1] = kTwiceValue[row_codes[i] >> 4];
  }
}

void decode_panel_block(const uint8_t* codes, int8_t (*out)[kBlock]) {
  for (int d = 0; d < 4; ++d) {
    for (int c = 0; c < kPanel; ++c) {
      for (int j = 0; j < 4; ++j) {
        const uint8_t byte = codes[(d * kPanel + c) * 4 + j];
        out[c][d * 8 + 2 * j] = kTwiceValue[byte & 15];
        out[c][d * 8 + 2 * j + 1] = kTwiceValue[byte >> 4];
      }
    }
  }
}

#include "float_formats.inl"

int dot(const int8_t* a, const int8_t* b) {
  int sum = 0;
  for (int i = 0; i < kBlock; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

void wide_product(const RowPanel& rows, const ColumnPanel& panel, double* acc, int64_t stride) {
  for (int r = 0; r < rows.rows; ++r) {
    for (int c = 0; c < kPanel; ++c) acc[r * stride + c] = 0;
  }
  int8_t a[kBlock], b[kPanel][kBlock];
  for (int64_t k = 0; k < rows.blocks; ++k) {
    decode_panel_block(panel.codes + k * kPanelBlockBytes, b);
    for (int r = 0; r < rows.rows; ++r) {
      decode_block(rows.codes + r * rows.codes_stride + k * kBlockBytes, a);
      const int byte = rows.scales[r * rows.blocks + k];
      for (int c = 0; c < kPanel; ++c) {
        // Two factors of two are in the decoded values.
        const int exponent = byte + panel.scales[k * kPanel + c] - 2 * kScaleOne - 2;
        acc[r * stride + c] += std::ldexp(static_cast<double>(dot(a, b[c])), exponent);
      }
    }
  }
}

void wide_weight_only(const void* x, DType dtype, int64_t count, const ColumnPanel& panel,
                      double* acc) {
  for (int c = 0; c < kPanel; ++c) acc[c] = 0;
  int8_t b[kPanel][kBlock];
  for (int64_t k = 0; k * kBlock < count; ++k) {
    decode_panel_block(panel.codes + k * kPanelBlockBytes, b);
    for (int c = 0; c < kPanel; ++c) {
      // A factor of two is in the decoded values.
      const double scale = std::ldexp(1.0, panel.scales[k * kPanel + c] - kScaleOne - 1);
      for (int i = 0; i < kBlock && k * kBlock + i < count; ++i) {
        acc[c] += static_cast<double>(widen_one(x, dtype, k * kBlock + i)) * b[c][i] * scale;
      }
    }
  }
}

}  // namespace mxgemm
