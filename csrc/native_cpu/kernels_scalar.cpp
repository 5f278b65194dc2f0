// Plain C++ for any x86-64 (or other) processor: the same sums in 32-bit integers, left to the
// compiler to vectorize for the baseline instruction set.
#include "kernels.h"

namespace mxgemm {
namespace {

constexpr int kRows = 4;
constexpr int kSteps = kBlock / 4;
constexpr int kDecodedBlock = kPanel * kBlock;
constexpr int16_t kTwiceValue[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline float power(int exponent_bits) {
  const uint32_t bits = static_cast<uint32_t>(exponent_bits) << 23;
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}

// Rows: values int16 [blocks][group][32] in the order of k, then scale bytes int32 [blocks][group].
struct RowForm {
  int16_t* values;
  int32_t* bytes;
};

inline RowForm row_form(void* form, int group, int64_t blocks) {
  auto* values = static_cast<int16_t*>(form);
  return {values, reinterpret_cast<int32_t*>(values + blocks * group * kBlock)};
}

size_t row_form_bytes(int group, int64_t blocks) {
  return static_cast<size_t>(blocks) * group * (kBlock * sizeof(int16_t) + sizeof(int32_t));
}

void pack_group(const RowPanel& rows, int group, void* form) {
  const RowForm f = row_form(form, group, rows.blocks);
  for (int r = 0; r < group; ++r) {
    const bool inside = r < rows.rows;
    for (int64_t b = 0; b < rows.blocks; ++b) {
      int16_t* out = f.values + (b * group + r) * kBlock;
      const uint8_t* codes = rows.codes + (inside ? r : 0) * rows.codes_stride + b * kBlockBytes;
      for (int i = 0; i < kBlockBytes; ++i) {
        out[2 * i] = inside ? kTwiceValue[codes[i] & 15] : int16_t{0};
        out[2 * i + 1] = inside ? kTwiceValue[codes[i] >> 4] : int16_t{0};
      }
      f.bytes[b * group + r] = inside ? rows.scales[r * rows.blocks + b] : kScaleOne;
    }
  }
}

size_t tile_row_bytes(const Schedule& s) { return row_form_bytes(kRows, s.blocks); }
void pack_rows(const RowPanel& rows, const Schedule&, void* form) { pack_group(rows, kRows, form); }
size_t few_rows_form_bytes(int rows, int64_t blocks) { return row_form_bytes(rows, blocks); }
void pack_few_rows(const RowPanel& rows, void* form) { pack_group(rows, rows.rows, form); }

// One block of a panel as int16 [32 k][16 columns].
void decode_block(const uint8_t* codes, int16_t* out) {
  for (int d = 0; d < 4; ++d) {
    for (int c = 0; c < kPanel; ++c) {
      for (int j = 0; j < 4; ++j) {
        const uint8_t byte = codes[(d * kPanel + c) * 4 + j];
        out[(d * 8 + 2 * j) * kPanel + c] = kTwiceValue[byte & 15];
        out[(d * 8 + 2 * j + 1) * kPanel + c] = kTwiceValue[byte >> 4];
      }
    }
  }
}

// Columns: values int16 [blocks][32][16], then scale bytes [blocks][16].
size_t column_form_bytes(const Schedule& s) {
  return static_cast<size_t>(s.blocks) * (kDecodedBlock * sizeof(int16_t) + kPanel);
}

void decode_columns(const ColumnPanel* panels, int, const Schedule& schedule, void* form) {
  const int64_t blocks = schedule.blocks;
  auto* values = static_cast<int16_t*>(form);
  for (int64_t b = 0; b < blocks; ++b)
    decode_block(panels->codes + b * kPanelBlockBytes, values + b * kDecodedBlock);
  __builtin_memcpy(values + blocks * kDecodedBlock, panels->scales,
                   static_cast<size_t>(blocks) * kPanel);
}

// acc[16] += 2^(a + b - 256) * (row . columns): the sum is an exact integer, scaling is exact, one
// rounding a block.
void add_block(const int16_t* row, int byte, const int16_t* columns, const uint8_t* scales,
               float* acc) {
  int32_t sum[kPanel] = {};
  for (int k = 0; k < kBlock; ++k) {
    for (int c = 0; c < kPanel; ++c)
      sum[c] += static_cast<int32_t>(row[k]) * columns[k * kPanel + c];
  }
  for (int c = 0; c < kPanel; ++c)
    acc[c] += static_cast<float>(sum[c]) * power(byte + scales[c] - 129);
}

void tile(const void* rows, const void* columns, const Schedule& schedule, int group, float* acc) {
  const int64_t blocks = schedule.blocks;
  const int64_t first = group ? schedule.ends[group - 1] : 0, last = schedule.ends[group];
  const RowForm f = row_form(const_cast<void*>(rows), kRows, blocks);
  const auto* values = static_cast<const int16_t*>(columns);
  const auto* scales = reinterpret_cast<const uint8_t*>(values + blocks * kDecodedBlock);
  for (int64_t b = first; b < last; ++b) {
    for (int r = 0; r < kRows; ++r) {
      const int64_t i = b * kRows + r;
      add_block(f.values + i * kBlock, f.bytes[i], values + b * kDecodedBlock, scales + b * kPanel,
                acc + r * kPanel);
    }
  }
}

void few(const void* form, int rows, const ColumnPanel& panel, int64_t blocks, float* acc,
         int64_t stride) {
  const RowForm f = row_form(const_cast<void*>(form), rows, blocks);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < kPanel; ++c) acc[r * stride + c] = 0;
  }
  int16_t decoded[kDecodedBlock];
  for (int64_t b = 0; b < blocks; ++b) {
    decode_block(panel.codes + b * kPanelBlockBytes, decoded);
    for (int r = 0; r < rows; ++r) {
      const int64_t i = b * rows + r;
      add_block(f.values + i * kBlock, f.bytes[i], decoded, panel.scales + b * kPanel,
                acc + r * stride);
    }
  }
}

void interleave(const uint8_t* codes, int64_t stride, int count, int64_t blocks, uint8_t* panel) {
  for (int64_t b = 0; b < blocks; ++b) {
    for (int d = 0; d < 4; ++d) {
      for (int c = 0; c < kPanel; ++c) {
        uint8_t* out = panel + b * kPanelBlockBytes + (d * kPanel + c) * 4;
        if (c < count) {
          __builtin_memcpy(out, codes + c * stride + b * kBlockBytes + d * 4, 4);
        } else {
          __builtin_memset(out, 0, 4);
        }
      }
    }
  }
}

#include "finish.inl"
#include "quantize_strip.inl"
#include "weight_only_rows.inl"

bool pack_plain_row(const void* x, DType dtype, int64_t k, int64_t blocks, int rows, int row,
                    void* form) {
  return for_each_block(x, dtype, k, blocks, [&](int64_t b, const float* values) {
    float* out = static_cast<float*>(form) + (b * rows + row) * kBlock;
    for (int i = 0; i < kBlock; ++i) out[i] = values[i];
  });
}

void multiply_plain(const void* form, int rows, const ColumnPanel& panel, int64_t blocks,
                    float* acc, int64_t stride) {
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < kPanel; ++c) acc[r * stride + c] = 0;
  }
  int16_t decoded[kDecodedBlock];
  for (int64_t b = 0; b < blocks; ++b) {
    decode_block(panel.codes + b * kPanelBlockBytes, decoded);
    for (int r = 0; r < rows; ++r) {
      const float* x = static_cast<const float*>(form) + (b * rows + r) * kBlock;
      float sum[kPanel] = {};
      for (int k = 0; k < kBlock; ++k) {
        for (int c = 0; c < kPanel; ++c) sum[c] += x[k] * 0.5f * decoded[k * kPanel + c];
      }
      for (int c = 0; c < kPanel; ++c) {
        const int byte = panel.scales[b * kPanel + c];
        acc[r * stride + c] += sum[c] * (byte ? power(byte) : 0x1p-127f);
      }
    }
  }
}

int64_t multiply_loop(int64_t iterations) {
  int16_t row[kBlock], columns[kDecodedBlock];
  uint8_t scales[kPanel];
  float acc[kPanel] = {};
  for (int i = 0; i < kBlock; ++i) row[i] = 1;
  for (int i = 0; i < kDecodedBlock; ++i) columns[i] = static_cast<int16_t>(i & 7);
  for (int i = 0; i < kPanel; ++i) scales[i] = kScaleOne;
  for (int64_t i = 0; i < iterations; ++i) {
    add_block(row, kScaleOne, columns, scales, acc);
    asm volatile("" : : "r"(row), "r"(acc) : "memory");
  }
  return iterations * kBlock * kPanel;
}

uint64_t read_loop(const void* data, size_t bytes, bool) {
  uint64_t sum = 0;
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    uint64_t word;
    __builtin_memcpy(&word, static_cast<const uint8_t*>(data) + i, 8);
    sum ^= word;
  }
  return sum;
}

}  // namespace

const Kernels* scalar_kernels() {
  static const Kernels table = {
      "scalar",
      "4x16, 32-bit sums",
      kRows,
      1,
      32,
      false,
      4,
      size_t{224} << 10,
      tile_row_bytes,
      column_form_bytes,
      pack_rows,
      decode_columns,
      tile,
      8,
      few_rows_form_bytes,
      pack_few_rows,
      few,
      0,
      nullptr,
      nullptr,
      nullptr,
      interleave,
      {"plain C++", 4, pack_plain_row, multiply_plain},
      {},
      finish,
      finish_wide,
      {quantize_strip, nullptr, nullptr},
      multiply_loop,
      read_loop,
  };
  return &table;
}

}  // namespace mxgemm
