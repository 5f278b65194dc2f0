// Rows in high precision times packed B, 16 columns to a vector, for units with AVX-512 and VBMI.
// Included inside an anonymous namespace. A `Step` says what one multiplication does:
//   Value, kSteps      what one row contributes to one step, and the steps of a block
//   decode(block, s)   the panel's values of step s, 16 columns
//   add(b, a, sum)     sum + b * a, a being the address of one row's Value

constexpr int kPlainTile = 8;  // rows that share a decoded value in a register

inline __m512 block_scales(const uint8_t* scales) {
  // 2^(byte - 127); byte 0 is 2^-127, whose bits are a subnormal's.
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
  const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23);
  return _mm512_castsi512_ps(_mm512_max_epi32(bits, _mm512_set1_epi32(1 << 22)));
}

// `rows` rows of one block, x [rows][kSteps], times what `source` gives for each step. Few rows
// take several sums each, so that additions do not wait for one another.
template <class Step, int rows, class Source>
inline void add_plain_rows(const typename Step::Value* x, const Source& source, __m512 scale,
                           float* acc, int64_t stride) {
  constexpr int chains = rows == 1 ? 4 : rows < kPlainTile ? 2 : 1;
  __m512 sum[rows][chains];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < chains; ++i) sum[r][i] = _mm512_setzero_ps();
  }
#pragma GCC unroll 32
  for (int s = 0; s < Step::kSteps; ++s) {
    const auto b = source(s);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
      sum[r][s % chains] = Step::add(b, x + r * Step::kSteps + s, sum[r][s % chains]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    __m512 total = sum[r][0];
    for (int i = 1; i < chains; ++i) total = _mm512_add_ps(total, sum[r][i]);
    float* target = acc + r * stride;
    _mm512_storeu_ps(target, _mm512_fmadd_ps(total, scale, _mm512_loadu_ps(target)));
  }
}

template <class Step, class Source, int rows = kPlainTile>
inline void add_some_plain_rows(int count, const typename Step::Value* x, const Source& source,
                                __m512 scale, float* acc, int64_t stride) {
  if (count == rows) return add_plain_rows<Step, rows>(x, source, scale, acc, stride);
  if constexpr (rows > 1) {
    add_some_plain_rows<Step, Source, rows - 1>(count, x, source, scale, acc, stride);
  }
}

template <class Step>
void multiply_plain(const void* form, int rows, const ColumnPanel& panel, int64_t blocks,
                    float* acc, int64_t stride) {
  const auto* x = static_cast<const typename Step::Value*>(form);
  for (int r = 0; r < rows; ++r) _mm512_storeu_ps(acc + r * stride, _mm512_setzero_ps());
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* codes = panel.codes + b * kPanelBlockBytes;
    for (int d = 0; d < 4; ++d) {
      ask_ahead(codes + d * 64);
    }
    const __m512 scale = block_scales(panel.scales + b * kPanel);
    const auto* block_x = x + b * rows * Step::kSteps;
    if (rows <= kPlainTile) {
      add_some_plain_rows<Step>(
          rows, block_x, [&](int s) { return Step::decode(codes, s); }, scale, acc, stride);
      continue;
    }
    decltype(Step::decode(codes, 0)) decoded[Step::kSteps];
    for (int s = 0; s < Step::kSteps; ++s) decoded[s] = Step::decode(codes, s);
    const auto source = [&](int s) { return decoded[s]; };
    int r = 0;
    for (; r + kPlainTile <= rows; r += kPlainTile) {
      add_plain_rows<Step, kPlainTile>(block_x + r * Step::kSteps, source, scale, acc + r * stride,
                                       stride);
    }
    if (r < rows) {
      add_some_plain_rows<Step>(rows - r, block_x + r * Step::kSteps, source, scale,
                                acc + r * stride, stride);
    }
  }
}
