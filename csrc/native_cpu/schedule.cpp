#include "schedule.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mxgemm {
namespace {

constexpr int64_t kSampledRows = 64;
// Classes of blocks may not be smaller than this on average: a class is a group of its own.
constexpr int64_t kLeastClass = 4;

// By how many binades each block's scales stand out from the middle block's, averaged over rows.
class Levels {
 public:
  explicit Levels(int64_t blocks) : sums_(static_cast<size_t>(blocks)) {}

  void add(const uint8_t* scales, int64_t stride) {
    for (size_t b = 0; b < sums_.size(); ++b) sums_[b] += scales[b * stride];
    ++rows_;
  }
  std::vector<int> rounded() const {
    std::vector<int32_t> sorted = sums_;
    const auto middle = sorted.begin() + static_cast<int64_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    std::vector<int> levels(sums_.size());
    for (size_t b = 0; b < sums_.size(); ++b) {
      levels[b] = static_cast<int>(
          std::lround(static_cast<double>(sums_[b] - *middle) / static_cast<double>(rows_)));
    }
    return levels;
  }

 private:
  std::vector<int32_t> sums_;
  int64_t rows_ = 0;
};

std::vector<int> levels_of(const Matrix& matrix, int64_t rows, int64_t blocks) {
  Levels levels(blocks);
  const int64_t step = divide_up(rows, kSampledRows);
  for (int64_t r = 0; r < rows; r += step) levels.add(matrix.scales + r * matrix.scales_stride, 1);
  return levels.rounded();
}

std::vector<int> levels_of(const PreparedColumns& prepared) {
  Levels levels(prepared.blocks);
  const int64_t step = divide_up(prepared.columns, kSampledRows);
  for (int64_t c = 0; c < prepared.columns; c += step)
    levels.add(prepared.panel(c / kPanel).scales + c % kPanel, kPanel);
  return levels.rounded();
}

}  // namespace

CallSchedule::CallSchedule(const Kernels& kernels, const GemmCall& call)
    : order_(static_cast<size_t>(call.blocks)) {
  std::iota(order_.begin(), order_.end(), 0);
  const auto cut = [&](int64_t first, int64_t last) {
    // Pieces of equal size rather than a small last one.
    const int64_t pieces = divide_up(last - first, kernels.chunk_blocks);
    for (int64_t i = 1; i <= pieces; ++i) ends_.push_back(first + (last - first) * i / pieces);
  };
  if (!kernels.aligns_blocks) {
    cut(0, call.blocks);
    return;
  }

  const std::vector<int> of_a = levels_of(call.a, call.m, call.blocks);
  const std::vector<int> of_b =
      call.prepared ? levels_of(*call.prepared) : levels_of(call.b, call.n, call.blocks);
  const auto alike = [&](int32_t x, int32_t y) { return of_a[x] == of_a[y] && of_b[x] == of_b[y]; };
  std::stable_sort(order_.begin(), order_.end(), [&](int32_t x, int32_t y) {
    return of_a[x] != of_a[y] ? of_a[x] < of_a[y] : of_b[x] < of_b[y];
  });
  std::vector<int64_t> classes{0};
  for (int64_t p = 1; p < call.blocks; ++p) {
    if (!alike(order_[p - 1], order_[p])) classes.push_back(p);
  }
  if (static_cast<int64_t>(classes.size()) * kLeastClass > call.blocks && classes.size() > 1) {
    std::iota(order_.begin(), order_.end(), 0);
    cut(0, call.blocks);
    return;
  }
  classes.push_back(call.blocks);
  for (size_t i = 1; i < classes.size(); ++i) cut(classes[i - 1], classes[i]);
}

}  // namespace mxgemm
