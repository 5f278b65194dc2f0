// Interleaving rows of B into a column panel by 4x4 transposes of 32-bit pieces (SSE2). Included
// inside an anonymous namespace by each x86 unit, so that it is compiled for that unit's
// instruction set.

constexpr int kLineBlocks = 4;  // blocks of a row that share a cache line
constexpr int kInterleavePrefetch = 256;

// Writes four rows of one block to their columns of the panel's block.
inline void interleave_four(const __m128i* row, uint8_t* out) {
  const __m128i lo01 = _mm_unpacklo_epi32(row[0], row[1]);
  const __m128i hi01 = _mm_unpackhi_epi32(row[0], row[1]);
  const __m128i lo23 = _mm_unpacklo_epi32(row[2], row[3]);
  const __m128i hi23 = _mm_unpackhi_epi32(row[2], row[3]);
  const __m128i piece[4] = {_mm_unpacklo_epi64(lo01, lo23), _mm_unpackhi_epi64(lo01, lo23),
                            _mm_unpacklo_epi64(hi01, hi23), _mm_unpackhi_epi64(hi01, hi23)};
  for (int d = 0; d < 4; ++d) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + d * kPanel * 4), piece[d]);
  }
}

void interleave(const uint8_t* codes, int64_t stride, int count, int64_t blocks, uint8_t* panel) {
  // A cache line of each row at a time: rows a power of two apart fall into few sets of the cache,
  // where a line would not survive until its next block is wanted.
  for (int64_t first = 0; first < blocks; first += kLineBlocks) {
    const int64_t last = first + kLineBlocks < blocks ? first + kLineBlocks : blocks;
    for (int group = 0; group < kPanel; group += 4) {
      for (int i = group; i < group + 4 && i < count; ++i) {
        _mm_prefetch(reinterpret_cast<const char*>(codes + i * stride + first * kBlockBytes +
                                                   kInterleavePrefetch),
                     _MM_HINT_T0);
      }
      for (int64_t b = first; b < last; ++b) {
        __m128i row[4];
        for (int i = 0; i < 4; ++i) {
          const uint8_t* source = codes + (group + i) * stride + b * kBlockBytes;
          row[i] = group + i < count ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(source))
                                     : _mm_setzero_si128();
        }
        interleave_four(row, panel + b * kPanelBlockBytes + group * 4);
      }
    }
  }
}
