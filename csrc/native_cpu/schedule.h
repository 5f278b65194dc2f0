// The order in which the tile kernels go through K.
#pragma once
#include <cstdint>
#include <vector>

#include "gemm.h"

namespace mxgemm {

// Owns the arrays of a call's schedule. Where the kernels align blocks, those whose scales stand
// out in many rows at once (outlier channels) come together, so that the others are in line.
// Depends on the operands only, never on threads.
class CallSchedule {
 public:
  CallSchedule(const Kernels& kernels, const GemmCall& call);

  Schedule view() const {
    return {order_.data(), ends_.data(), static_cast<int64_t>(order_.size()),
            static_cast<int>(ends_.size())};
  }

 private:
  std::vector<int32_t> order_;
  std::vector<int64_t> ends_;
};

}  // namespace mxgemm
