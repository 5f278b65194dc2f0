#include "select.h"

#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace mxgemm {
namespace {

#if defined(__x86_64__)

// Zen 4 and later: two pipes multiply bytes while two others add them, so that the inner product
// which halves the multiplications wins. Where both share the same ports (Intel), it loses.
bool halves_multiplies() {
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid(0, &eax, &ebx, &ecx, &edx)) return false;
  if (ebx != signature_AMD_ebx || ecx != signature_AMD_ecx || edx != signature_AMD_edx)
    return false;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return false;
  unsigned family = (eax >> 8) & 15;
  if (family == 15) family += (eax >> 20) & 255;
  return family >= 0x19;
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

bool has_avx512_vnni() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
}

#endif

std::vector<const Kernels*> usable() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (has_avx512_vnni()) {
    if (const Kernels* kernels = avx512_vnni_kernels(halves_multiplies())) found.push_back(kernels);
  }
  if (has_avx2()) found.push_back(avx2_kernels());
#endif
  found.push_back(scalar_kernels());
  return found;
}

}  // namespace

// By name: to ask their units would run code that the processor may lack.
std::vector<std::string> built_isas() {
#if defined(__x86_64__)
  return {"avx512_vnni", "avx2", "scalar"};
#else
  return {"scalar"};
#endif
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Kernels* kernels : usable()) names.emplace_back(kernels->isa);
  return names;
}

const Kernels& select_kernels(const std::string& isa) {
  std::string known;
  for (const Kernels* kernels : usable()) {
    if (isa.empty() || isa == kernels->isa) return *kernels;
    known += (known.empty() ? "" : ", ") + std::string(kernels->isa);
  }
  throw std::invalid_argument("native_cpu instruction set: must be one of " + known +
                              " on this processor, got '" + isa +
                              "'; set MXGEMM_CPU_ISA to one of them or leave it empty");
}

}  // namespace mxgemm
