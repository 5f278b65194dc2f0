// Interleaving rows of B into a column panel by 4x4 transposes of 32-bit pieces (SSE2). Included
// inside an anonymous namespace by each x86 unit, so that it is compiled for that unit's
// instruction set.

void interleave(const uint8_t* codes, int64_t stride, int count, int64_t blocks, uint8_t* panel) {
  for (int64_t b = 0; b < blocks; ++b) {
    uint8_t* out = panel + b * kPanelBlockBytes;
    for (int group = 0; group < kPanel; group += 4) {
      __m128i row[4];
      for (int i = 0; i < 4; ++i) {
        row[i] = group + i < count ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(
                                         codes + (group + i) * stride + b * kBlockBytes))
                                   : _mm_setzero_si128();
      }
      const __m128i lo01 = _mm_unpacklo_epi32(row[0], row[1]),
                    hi01 = _mm_unpackhi_epi32(row[0], row[1]);
      const __m128i lo23 = _mm_unpacklo_epi32(row[2], row[3]),
                    hi23 = _mm_unpackhi_epi32(row[2], row[3]);
      const __m128i piece[4] = {_mm_unpacklo_epi64(lo01, lo23), _mm_unpackhi_epi64(lo01, lo23),
                                _mm_unpacklo_epi64(hi01, hi23), _mm_unpackhi_epi64(hi01, hi23)};
      for (int d = 0; d < 4; ++d) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + (d * kPanel + group) * 4), piece[d]);
      }
    }
  }
}
