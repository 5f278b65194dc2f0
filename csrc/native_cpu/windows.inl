// Which of a group's blocks are in line: their scale bytes lie within `spread` above a common base.
// Included inside an anonymous namespace by the units with AVX2.

struct Window {
  int low;           // the base
  uint32_t outside;  // places that are not in line, as bits
};

// The window of one row's `count` <= 32 scale bytes (readable up to 32) that holds most of them.
inline Window best_window(const uint8_t* scales, int count, int spread) {
  int low = scales[0], high = scales[0];
  for (int i = 1; i < count; ++i) {
    low = scales[i] < low ? scales[i] : low;
    high = scales[i] > high ? scales[i] : high;
  }
  if (high - low <= spread) return {low, 0};
  const uint32_t all = count < 32 ? (1u << count) - 1 : ~0u;
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales));
  const __m256i most = _mm256_set1_epi8(static_cast<char>(spread));
  Window best{low, all};
  for (int at = low; at <= high - spread; ++at) {
    const __m256i distance = _mm256_sub_epi8(bytes, _mm256_set1_epi8(static_cast<char>(at)));
    const __m256i inside = _mm256_cmpeq_epi8(_mm256_min_epu8(distance, most), distance);
    const uint32_t outside = all & ~static_cast<uint32_t>(_mm256_movemask_epi8(inside));
    if (__builtin_popcount(outside) < __builtin_popcount(best.outside)) best = {at, outside};
  }
  return best;
}

// -1 for each column whose byte lies within `spread` above its base.
inline __m128i in_line(__m128i scales, __m128i low, int spread) {
  const __m128i distance = _mm_sub_epi8(scales, low);
  return _mm_cmpeq_epi8(_mm_min_epu8(distance, _mm_set1_epi8(static_cast<char>(spread))), distance);
}

// The base of each of 16 columns over `count` blocks: the least of its scale bytes if all are in
// line then, else the best of the bases around their mean, never below the least.
inline __m128i best_windows(const __m128i* scales, int count, int spread) {
  __m128i low = scales[0], high = scales[0];
  for (int i = 1; i < count; ++i) {
    low = _mm_min_epu8(low, scales[i]);
    high = _mm_max_epu8(high, scales[i]);
  }
  if (_mm_movemask_epi8(in_line(high, low, spread)) == 0xFFFF) return low;
  __m256i sum = _mm256_setzero_si256();
  for (int i = 0; i < count; ++i) sum = _mm256_add_epi16(sum, _mm256_cvtepu8_epi16(scales[i]));
  // sum / count to within 1, by 16-bit multiplication: sum < 2^13.
  const __m256i mean = _mm256_mulhi_epu16(
      _mm256_slli_epi16(sum, 3), _mm256_set1_epi16(static_cast<int16_t>((1 << 13) / count)));
  const __m128i near =
      _mm_packus_epi16(_mm256_castsi256_si128(mean), _mm256_extracti128_si256(mean, 1));
  __m128i at = _mm_max_epu8(_mm_subs_epu8(near, _mm_set1_epi8(static_cast<char>(spread + 1))), low);
  __m128i best = at, most = _mm_setzero_si128();
  for (int step = 0; step <= spread + 2; ++step) {
    __m128i number = _mm_setzero_si128();
    for (int i = 0; i < count; ++i) number = _mm_sub_epi8(number, in_line(scales[i], at, spread));
    best = _mm_blendv_epi8(best, at, _mm_cmpgt_epi8(number, most));
    most = _mm_max_epi8(most, number);
    at = _mm_adds_epu8(at, _mm_set1_epi8(1));
  }
  return best;
}
