#include <cstring>

#include "gfx1250/matrix_kernels.h"

namespace mxgemm::emulator::gfx1250 {

void scale_row(float* acc, const float* sum, int scale_a, const int32_t* scale_b) {
  for (int n = 0; n < kRows; ++n) {
    const int32_t bits = (scale_a + scale_b[n] - 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    acc[n] += sum[n] * power;
  }
}

}  // namespace mxgemm::emulator::gfx1250
