// Conversions between FP32 and the 16-bit formats. Included inside an anonymous namespace by each
// unit.

inline uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}
inline float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}

inline float from_bf16(uint16_t x) { return float_of(static_cast<uint32_t>(x) << 16); }

// Round to nearest even; any NaN becomes the quiet one.
inline uint16_t to_bf16(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>(x != x ? 0x7FC0 : rounded);
}

#ifdef __F16C__
inline float from_f16(uint16_t x) { return _cvtsh_ss(x); }
inline uint16_t to_f16(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
#else
inline float from_f16(uint16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x8000) << 16;
  const uint32_t exponent = (x >> 10) & 31, fraction = x & 1023;
  if (exponent == 31) return float_of(sign | 0x7F800000 | fraction << 13);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}
inline uint16_t to_f16(float x) {
  const uint32_t bits = bits_of(x);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return sign | 0x7E00;
  if (magnitude >= 0x477FF000) return sign | 0x7C00;  // rounds to 2^16 or beyond
  if (magnitude < 0x38800000) {
    // Subnormal: adding 1/2 rounds to a multiple of 2^-24, which then stands in the low bits.
    return sign | static_cast<uint16_t>(bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f));
  }
  const uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
  return sign | static_cast<uint16_t>((rounded - (112u << 23)) >> 13);
}
#endif

// Element i of an array of that dtype.
inline float widen_one(const void* x, DType dtype, int64_t i) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(x)[i];
  const uint16_t half = static_cast<const uint16_t*>(x)[i];
  return dtype == DType::kBFloat16 ? from_bf16(half) : from_f16(half);
}
