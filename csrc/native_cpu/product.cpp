// The plain product behind a C interface. A benchmark loads a copy of an older build of this module
// beside the present one and times it there: a clock of the same kind as what it measures.
#include <cstdint>
#include <stdexcept>

#include "gemm.h"
#include "select.h"

// D = A @ B.T for canonical, contiguous A [m, blocks * 32] and B [n, blocks * 32], D bfloat16
// [m, n]. Returns 0, or 1 where the processor lacks the instruction set `isa` ("" for the best).
extern "C" __attribute__((visibility("default"))) int mxgemm_product(
    const char* isa, int64_t m, int64_t n, int64_t blocks, const uint8_t* a_codes,
    const uint8_t* a_scales, const uint8_t* b_codes, const uint8_t* b_scales, void* out,
    int threads) {
  using namespace mxgemm;
  GemmCall call{};
  call.m = m;
  call.n = n;
  call.blocks = blocks;
  call.a = {a_codes, a_scales, blocks * kBlockBytes, blocks};
  call.b = {b_codes, b_scales, blocks * kBlockBytes, blocks};
  call.epilogue.out = {out, n, DType::kBFloat16};
  call.threads = threads;
  try {
    gemm(select_kernels(isa), call);
  } catch (const std::invalid_argument&) {
    return 1;
  }
  return 0;
}
