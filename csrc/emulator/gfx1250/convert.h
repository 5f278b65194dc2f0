// Conversions between number formats, on bits; round to nearest, ties to even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace mxgemm::emulator::gfx1250 {

inline uint16_t bf16_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return uint16_t(bits >> 16 | 0x40);  // stays a NaN
  return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline uint16_t f16_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits >> 16 & 0x8000,
                 magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return uint16_t(sign | 0x7E00 | (magnitude >> 13 & 0x3FF));
  if (magnitude >= 0x477FF000) return uint16_t(sign | 0x7C00);  // rounds to infinity
  if (magnitude < 0x38800000) {  // subnormal: adding 0.5 rounds at 2^-24
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(rounded) - 0x3F000000));
  }
  return uint16_t(sign | ((magnitude + 0xC8000FFF + (magnitude >> 13 & 1)) >> 13));
}

inline float f16_value(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000) << 16, exponent = bits >> 10 & 31,
                 fraction = bits & 0x3FF;
  if (exponent == 0) {
    const float magnitude = float(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  return std::bit_cast<float>(sign | (exponent == 31 ? 0x7F800000u : (exponent + 112) << 23) |
                              fraction << 13);
}

// Truncated, clamped to T; NaN gives 0.
template <class T>
T saturate(float value) {
  using Limits = std::numeric_limits<T>;
  if (std::isnan(value)) return 0;
  if (value <= double(Limits::min())) return Limits::min();
  if (value >= double(Limits::max())) return Limits::max();
  return T(value);
}

inline float maximum(float a, float b) {
  return a == b ? (std::signbit(a) ? b : a) : (a > b ? a : b);
}
inline float minimum(float a, float b) {
  return a == b ? (std::signbit(a) ? a : b) : (a < b ? a : b);
}

// Byte n of the result is chosen by byte n of `selector` from {high, low}; 8..11 replicate signs,
// 12 is 0, above is 0xFF.
inline uint32_t permute_bytes(uint32_t high, uint32_t low, uint32_t selector) {
  const uint64_t data = uint64_t(high) << 32 | low;
  uint32_t result = 0;
  for (int n = 0; n < 4; ++n) {
    const uint32_t choice = selector >> 8 * n & 0xFF;
    uint32_t byte;
    if (choice >= 13)
      byte = 0xFF;
    else if (choice == 12)
      byte = 0;
    else if (choice >= 8)
      byte = data >> (16 * (choice - 8) + 15) & 1 ? 0xFF : 0;
    else
      byte = uint32_t(data >> 8 * choice) & 0xFF;
    result |= byte << 8 * n;
  }
  return result;
}

}  // namespace mxgemm::emulator::gfx1250
