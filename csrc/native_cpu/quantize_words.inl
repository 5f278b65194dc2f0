// The quantizer on 16-bit lanes: what an element becomes and how scales are found. For closed scale
// rules, nearest-even and 1-D blocks; included inside an anonymous namespace by quantize_avx2.inl
// and quantize_avx512.inl.
//
// An element is taken as a *word*: its upper 16 FP32 bits, the last one set where a lower one was.
// Every comparison that a scale or a code depends on has the same outcome for the word.
//
// Divided by the scale, two codes meet at 1/4, 3/4, 5/4, ...: multiples of 32 in the bits of the
// magnitude. A word's *position* counts those multiples, a value that lies on one and must go to
// the even code below being counted down. Positions do not depend on the scale, whose exponent is
// subtracted from them: what is left, at most 20 steps between 1/4 and 8, selects the code.
//
// That holds for scale bytes of at least 3, where 1/4 of the scale is a normal number. Blocks of
// smaller bytes, or with NaN or Inf, are quantized once more the general way.

#include "quantize_strip.inl"

constexpr int kLeastFastByte = 3;
constexpr uint16_t kInfinityBits = 0x7F80;
constexpr int kLine = 64;
constexpr int kRunBlocks = 16;      // blocks along K whose scales are found together
constexpr int kChunkColumns = 256;  // columns of a pair that are read together
constexpr int kReadRows = 4;        // rows of them
constexpr int kPrefetchElements = 1024;

// What positions are subtracted from is kReferenceOfByteZero + 4 * byte: 127 then stands for the
// first step above 1/4, 108 for the last one below 8, and 128 and more for what rounds to zero.
constexpr int kReferenceOfByteZero = 119;
constexpr int kLastHalf = 123;  // 123 .. 127 are the code of 1/2 alike

// The codes of 108 .. kLastHalf by their lowest four bits. Bit 7 of the index makes a byte shuffle
// write 0.
inline __m128i code_table() {
  return _mm_setr_epi8(6, 5, 5, 4, 4, 3, 3, 2, 2, 2, 1, 1, 7, 7, 7, 6);
}

template <DType dtype>
constexpr int64_t kElementBytes = dtype == DType::kFloat32 ? 4 : 2;

// Asks for the cache lines that hold elements i .. i + 31 of x.
template <DType dtype>
inline void prefetch_block(const void* x, int64_t i) {
  const char* p = static_cast<const char*>(x) + i * kElementBytes<dtype>;
  _mm_prefetch(p, _MM_HINT_T1);
  if (dtype == DType::kFloat32) _mm_prefetch(p + kLine, _MM_HINT_T1);
}

// Scale bytes from 16 blocks' maxima, and what positions are subtracted from; lanes of `special`
// are set where a block must go the general way.
struct Scales16 {
  __m256i bytes, references, special;
};

inline Scales16 scales16(__m256i amax, int bias) {
  const __m256i raised = _mm256_add_epi16(amax, _mm256_set1_epi16(static_cast<short>(bias)));
  const __m256i exact = _mm256_sub_epi16(_mm256_srli_epi16(raised, 7), _mm256_set1_epi16(2));
  const __m256i zero = _mm256_cmpeq_epi16(amax, _mm256_setzero_si256());
  const __m256i small = _mm256_cmpgt_epi16(_mm256_set1_epi16(kLeastFastByte), exact);
  const __m256i infinite =
      _mm256_cmpgt_epi16(amax, _mm256_set1_epi16(static_cast<short>(kInfinityBits - 1)));
  const __m256i bytes = _mm256_blendv_epi8(exact, _mm256_set1_epi16(kScaleOne), zero);
  const __m256i references =
      _mm256_add_epi16(_mm256_slli_epi16(bytes, 2), _mm256_set1_epi16(kReferenceOfByteZero));
  return {bytes, references, _mm256_or_si256(infinite, _mm256_andnot_si256(zero, small))};
}

// One bit for each of 16 lanes.
inline unsigned lane_mask(__m256i lanes) {
  const __m256i bytes =
      _mm256_permute4x64_epi64(_mm256_packs_epi16(lanes, _mm256_setzero_si256()), 0xD8);
  return static_cast<unsigned>(_mm256_movemask_epi8(bytes));
}

// The scales of 32 blocks in memory, as their squares need them.
struct Scales32 {
  alignas(64) uint16_t references[kBlock];
  alignas(64) uint8_t bytes[kBlock];
  unsigned special;
};

inline void find_scales(__m256i amax0, __m256i amax1, int bias, Scales32* out) {
  const Scales16 low = scales16(amax0, bias), high = scales16(amax1, bias);
  _mm256_store_si256(reinterpret_cast<__m256i*>(out->references), low.references);
  _mm256_store_si256(reinterpret_cast<__m256i*>(out->references + 16), high.references);
  _mm256_store_si256(reinterpret_cast<__m256i*>(out->bytes),
                     _mm256_permute4x64_epi64(_mm256_packus_epi16(low.bytes, high.bytes), 0xD8));
  out->special = lane_mask(low.special) | lane_mask(high.special) << 16;
}

// Rows of a chunk that are read later, of 256 columns each.
struct Ahead {
  const char* first;
  int64_t stride;  // bytes
  int64_t size;    // bytes of an element

  // Asks for 32 columns of a row.
  void ask(int row, int column) const {
    const char* p = first + row * stride + column * size;
    _mm_prefetch(p, _MM_HINT_T1);
    if (size == 4) _mm_prefetch(p + kLine, _MM_HINT_T1);
  }
};
