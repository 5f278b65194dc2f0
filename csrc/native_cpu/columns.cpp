#include "columns.h"

#include <algorithm>
#include <cstring>

#include "parallel.h"
#include "scales.h"

namespace mxgemm {
namespace {

// Makes a panel from rows of B: codes, scales and what effective_scales reports.
ScaleRange build_panel(const Kernels& kernels, const Matrix& b, int64_t first_row, int count,
                       int64_t blocks, uint8_t* codes, uint8_t* scales, uint8_t* poisoned) {
  const uint8_t* source = b.codes + first_row * b.codes_stride;
  kernels.interleave(source, b.codes_stride, count, blocks, codes);
  ScaleRange range{kScaleOne, kScaleOne};
  for (int i = 0; i < kPanel; ++i) {
    if (i >= count) {
      for (int64_t k = 0; k < blocks; ++k) scales[k * kPanel + i] = kScaleOne;
      continue;
    }
    const RowScales row =
        effective_scales(source + i * b.codes_stride, b.scales + (first_row + i) * b.scales_stride,
                         blocks, scales + i, kPanel);
    range = i == 0 ? row.range : join(range, row.range);
    poisoned[i] = row.poisoned;
  }
  return range;
}

}  // namespace

std::unique_ptr<PreparedColumns> prepare_columns(const Kernels& kernels, const Matrix& b, int64_t n,
                                                 int64_t blocks, int threads) {
  auto prepared = std::make_unique<PreparedColumns>();
  prepared->columns = n;
  prepared->blocks = blocks;
  const int64_t panels = prepared->panels();
  prepared->codes = Buffer(static_cast<size_t>(panels) * blocks * kPanelBlockBytes);
  prepared->scales = Buffer(static_cast<size_t>(panels) * blocks * kPanel);
  prepared->ranges.resize(panels);
  prepared->poisoned.assign(static_cast<size_t>(panels) * kPanel, 0);
  parallel_for(panels, threads, [&](int64_t p, int) {
    const int64_t row = p * kPanel;
    prepared->ranges[p] =
        build_panel(kernels, b, row, static_cast<int>(std::min<int64_t>(kPanel, n - row)), blocks,
                    prepared->codes.as<uint8_t>() + p * blocks * kPanelBlockBytes,
                    prepared->scales.as<uint8_t>() + p * blocks * kPanel, &prepared->poisoned[row]);
  });
  return prepared;
}

void ColumnSource::get(int64_t first, int count, Buffer* scratch, Columns* out) const {
  out->panels.resize(count);
  out->ranges.resize(count);
  out->poisoned.assign(static_cast<size_t>(count) * kPanel, 0);
  const auto bytes = static_cast<size_t>(blocks_) * (kPanelBlockBytes + kPanel);
  if (!prepared_) scratch->reserve(bytes * count);
  for (int i = 0; i < count; ++i) {
    const int64_t column = (first + i) * kPanel;
    const int columns = static_cast<int>(std::min<int64_t>(kPanel, n_ - column));
    if (prepared_) {
      out->panels[i] = prepared_->panel(first + i);
      out->ranges[i] = prepared_->ranges[first + i];
      std::memcpy(&out->poisoned[i * kPanel], &prepared_->poisoned[column], columns);
    } else {
      uint8_t* codes = scratch->as<uint8_t>() + i * bytes;
      uint8_t* scales = codes + blocks_ * kPanelBlockBytes;
      out->panels[i] = {codes, scales};
      out->ranges[i] = build_panel(kernels_, b_, column, columns, blocks_, codes, scales,
                                   &out->poisoned[i * kPanel]);
    }
  }
}

}  // namespace mxgemm
