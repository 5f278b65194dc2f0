// The bias gradient: partial column sums of D, one row of doubles for each group of rows, summed in
// a fixed order at the end, so that the bits do not depend on the threads.
#pragma once
#include <algorithm>
#include <cstdint>

#include "scratch.h"

namespace mxgemm {

class BiasGradient {
 public:
  // `target`: float [n], or null where none is wanted.
  BiasGradient(float* target, int64_t n, int64_t groups, Buffer* buffer)
      : target_(target), n_(n), groups_(groups) {
    if (!target) return;
    const size_t count = static_cast<size_t>(groups) * n;
    buffer->reserve(count * sizeof(double));
    sums_ = buffer->as<double>();
    std::fill_n(sums_, count, 0.0);
  }
  // Where group `index` adds its rows, or null.
  double* group(int64_t index) const { return sums_ ? sums_ + index * n_ : nullptr; }
  void write() const {
    if (!sums_) return;
    for (int64_t c = 0; c < n_; ++c) {
      double sum = 0;
      for (int64_t g = 0; g < groups_; ++g) sum += sums_[g * n_ + c];
      target_[c] = static_cast<float>(sum);
    }
  }

 private:
  float* target_;
  int64_t n_, groups_;
  double* sums_ = nullptr;
};

}  // namespace mxgemm
