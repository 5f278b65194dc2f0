// Reads memory in order and does nothing else, with or without asking for lines ahead: which is
// faster depends on the processor. Included inside an anonymous namespace by units with AVX2.

template <bool asks>
uint64_t read_lines(const void* data, size_t bytes) {
  const auto* p = static_cast<const __m256i*>(data);
  __m256i sum[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                    _mm256_setzero_si256()};
  for (size_t i = 0; i + 8 <= bytes / 32; i += 8) {
    for (int j = 0; j < 8; ++j) {
      if (asks && j % 2 == 0)
        _mm_prefetch(reinterpret_cast<const char*>(p + i + j) + 2048, _MM_HINT_T0);
      sum[j % 4] = _mm256_xor_si256(sum[j % 4], _mm256_loadu_si256(p + i + j));
    }
  }
  const __m256i all =
      _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
  return static_cast<uint64_t>(_mm256_extract_epi64(all, 0) ^ _mm256_extract_epi64(all, 3));
}

uint64_t read_loop(const void* data, size_t bytes, bool asks_ahead) {
  return asks_ahead ? read_lines<true>(data, bytes) : read_lines<false>(data, bytes);
}
