// Rows in high precision on their way into a weight-only kernel. Included inside an anonymous
// namespace by each unit.

// No block's sum of values in this range, each times at most 6, overflows; and as multiples of
// 2^-123 / 2 or more (24 bits of the least one, times 1/2) none falls below FP32's normal numbers.
constexpr uint32_t kLeastOrdinary = (127u - 99) << 23;
constexpr uint32_t kBeyondOrdinary = (127u + 100) << 23;

inline void load_values(const void* x, DType dtype, int64_t first, int count, float* out) {
  if (dtype == DType::kFloat32) {
    __builtin_memcpy(out, static_cast<const float*>(x) + first,
                     static_cast<size_t>(count) * sizeof(float));
  } else if (dtype == DType::kBFloat16) {
    const auto* values = static_cast<const uint16_t*>(x) + first;
    for (int i = 0; i < count; ++i) out[i] = from_bf16(values[i]);
  } else {
    const auto* values = static_cast<const uint16_t*>(x) + first;
    for (int i = 0; i < count; ++i) out[i] = from_f16(values[i]);
  }
}

// Hands each block of a row, FP32 [kBlock] padded with zeros, to `place`; returns whether all
// values are ordinary.
template <class Place>
bool for_each_block(const void* x, DType dtype, int64_t k, int64_t blocks, Place&& place) {
  uint32_t high = 0, low = UINT32_MAX;  // of magnitudes, low of those less 1, so that 0 is high
  for (int64_t b = 0; b < blocks; ++b) {
    float values[kBlock] = {};
    const int64_t left = k - b * kBlock;
    if (left >= kBlock) {
      load_values(x, dtype, b * kBlock, kBlock, values);
    } else if (left > 0) {
      load_values(x, dtype, b * kBlock, static_cast<int>(left), values);
    }
    for (int i = 0; i < kBlock; ++i) {
      const uint32_t magnitude = bits_of(values[i]) & 0x7FFFFFFFu;
      high = magnitude > high ? magnitude : high;
      low = magnitude - 1 < low ? magnitude - 1 : low;
    }
    place(b, values);
  }
  return high < kBeyondOrdinary && low >= kLeastOrdinary - 1;
}
