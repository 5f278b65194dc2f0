// The epilogue, from accumulators to D. Included inside an anonymous namespace by each unit, so
// that the compiler vectorizes it for that unit's instruction set.
//
// Everything but a plain product is computed in FP64 and rounded to FP32 once, then to a 16-bit
// output.

#include "float_formats.inl"

constexpr int kStrip = 64;  // columns worked on at once

inline int64_t element_bytes(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

inline const uint8_t* at(const Plane& plane, int64_t row, int64_t column) {
  return static_cast<const uint8_t*>(plane.data) +
         (row * plane.stride + column) * element_bytes(plane.dtype);
}

void load_strip(const void* source, DType dtype, int count, double* out) {
  if (dtype == DType::kFloat32) {
    const auto* x = static_cast<const float*>(source);
    for (int i = 0; i < count; ++i) out[i] = x[i];
  } else if (dtype == DType::kBFloat16) {
    const auto* x = static_cast<const uint16_t*>(source);
    for (int i = 0; i < count; ++i) out[i] = from_bf16(x[i]);
  } else {
    const auto* x = static_cast<const uint16_t*>(source);
    for (int i = 0; i < count; ++i) out[i] = from_f16(x[i]);
  }
}

template <class T, class Out, class Convert>
inline void convert_strip(const T* values, int count, Out* out, const Convert& convert) {
  for (int i = 0; i < count; ++i) out[i] = convert(static_cast<float>(values[i]));
}

#ifdef __AVX2__
// to_bf16 of a whole panel.
inline __m256i to_bf16_lanes(const float* values) {
  const __m256 x = _mm256_loadu_ps(values);
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i raised = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(_mm256_srli_epi32(raised, 16), _mm256_set1_epi32(0x7FC0), nan);
}
inline void bf16_panel(const float* values, uint16_t* out) {
  const __m256i packed = _mm256_packus_epi32(to_bf16_lanes(values), to_bf16_lanes(values + 8));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permute4x64_epi64(packed, 0xD8));
}
#else
inline void bf16_panel(const float* values, uint16_t* out) {
  convert_strip(values, kPanel, out, to_bf16);
}
#endif
// The usual case: whole panels of FP32 sums that become bfloat16.
inline int store_panels(const float* values, int count, uint16_t* out) {
  int i = 0;
  for (; i + kPanel <= count; i += kPanel) bf16_panel(values + i, out + i);
  return i;
}
inline int store_panels(const double*, int, uint16_t*) { return 0; }

template <class T>
void store_strip(const T* values, int count, DType dtype, const void* target) {
  void* out = const_cast<void*>(target);
  if (dtype == DType::kFloat32) {
    convert_strip(values, count, static_cast<float*>(out), [](float x) { return x; });
  } else if (dtype == DType::kBFloat16) {
    auto* halves = static_cast<uint16_t*>(out);
    const int done = store_panels(values, count, halves);
    convert_strip(values + done, count - done, halves + done, to_bf16);
  } else {
    convert_strip(values, count, static_cast<uint16_t*>(out), to_f16);
  }
}

// e^x for x <= 709; 0 below the normal range. Relative error below 1e-14.
inline double exponential(double x) {
  const double shifter = 0x1.8p52;
  const double shifted = x * 0x1.71547652b82fep0 + shifter;  // x / ln 2, rounded to an integer
  const double n = shifted - shifter;
  const double r = (x - n * 0x1.62e42fefa0000p-1) - n * 0x1.cf79abc9e3b3ap-40;
  double p = 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  int64_t bits, integer;
  __builtin_memcpy(&bits, &p, 8);
  __builtin_memcpy(&integer, &shifted, 8);
  bits += static_cast<int64_t>(static_cast<uint64_t>(integer) << 52);
  double result;
  __builtin_memcpy(&result, &bits, 8);
  return x < -708 ? 0.0 : result;
}

inline double magnitude(double x) { return __builtin_fabs(x); }

// The normal distribution function and its density. Phi(-t) = e^(-t^2/2) P(1 / (1 + 0.3 t)) for t
// >= 0, with P fitted by least squares to 4.2e-10 relative on t <= 40.
inline double normal_cdf(double x, double* density) {
  const double t = magnitude(x) < 40 ? magnitude(x) : 40;
  const double w = 1 / (1 + 0.3 * t);
  double p = 0.013570610368333291;
  p = p * w - 0.0848048862098949;
  p = p * w + 0.21377319074417755;
  p = p * w - 0.265000852794401;
  p = p * w + 0.1643275108495459;
  p = p * w - 0.08444035246685644;
  p = p * w + 0.05446662142034597;
  p = p * w + 0.05155128394756403;
  p = p * w + 0.08838010358975257;
  p = p * w + 0.10880455824934887;
  p = p * w + 0.11968979207393124;
  p = p * w + 0.11968241611493194;
  p = p * w + 4.3205531374823636e-09;
  const double e = exponential(-0.5 * t * t);
  *density = e * 0.3989422804014327;
  return x > 0 ? 1 - e * p : e * p;
}

constexpr double kTanhScale = 0.7978845608028654;  // sqrt(2 / pi)
constexpr double kTanhCubic = 0.044715;

inline double hyperbolic_tangent(double u) {
  const double bounded = u < -20 ? -20 : (u > 20 ? 20 : u);
  const double t = 1 - 2 / (exponential(2 * bounded) + 1);
  return magnitude(u) < 1e-4 ? u - u * u * u / 3 : t;
}

void activate(Activation activation, double* z, int count) {
  if (activation == Activation::kRelu) {
    for (int i = 0; i < count; ++i) z[i] = z[i] <= 0 ? 0 : z[i];  // keeps NaN
  } else if (activation == Activation::kGelu) {
    for (int i = 0; i < count; ++i) {
      double density;
      z[i] *= normal_cdf(z[i], &density);
    }
  } else if (activation == Activation::kGeluTanh) {
    for (int i = 0; i < count; ++i) {
      const double x = z[i];
      z[i] = 0.5 * x * (1 + hyperbolic_tangent(kTanhScale * (x + kTanhCubic * x * x * x)));
    }
  }
}

// z *= act'(x)
void multiply_by_slope(Activation activation, const double* x, double* z, int count) {
  if (activation == Activation::kRelu) {
    for (int i = 0; i < count; ++i) z[i] *= x[i] != x[i] ? x[i] : (x[i] > 0 ? 1.0 : 0.0);
  } else if (activation == Activation::kGelu) {
    for (int i = 0; i < count; ++i) {
      double density;
      const double cdf = normal_cdf(x[i], &density);
      z[i] *= cdf + x[i] * density;
    }
  } else if (activation == Activation::kGeluTanh) {
    for (int i = 0; i < count; ++i) {
      const double v = x[i];
      const double t = hyperbolic_tangent(kTanhScale * (v + kTanhCubic * v * v * v));
      const double slope = kTanhScale * (1 + 3 * kTanhCubic * v * v);
      z[i] *= 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * slope;
    }
  }
}

template <class Accumulator>
void finish_strip(const Epilogue& e, const Piece& piece, int r, int c, int count,
                  const Accumulator* acc) {
  const int64_t row = piece.row + r, column = piece.column + c;
  double z[kStrip], other[kStrip];
  for (int i = 0; i < count; ++i) z[i] = acc[i];
  if (e.alpha != 1) {
    for (int i = 0; i < count; ++i) z[i] *= e.alpha;
  }
  if (e.bias.data) {
    load_strip(at(e.bias, 0, column), e.bias.dtype, count, other);
    for (int i = 0; i < count; ++i) z[i] += other[i];
  }
  if (e.aux_in.data) {
    load_strip(at(e.aux_in, row, column), e.aux_in.dtype, count, other);
    multiply_by_slope(e.dact, other, z, count);
  } else {
    if (e.aux_out.data) store_strip(z, count, e.aux_out.dtype, at(e.aux_out, row, column));
    activate(e.activation, z, count);
  }
  if (e.c.data) {
    load_strip(at(e.c, row, column), e.c.dtype, count, other);
    for (int i = 0; i < count; ++i) z[i] += e.beta * other[i];
  }
  if (piece.bias_grad) {
    for (int i = 0; i < count; ++i) piece.bias_grad[column + i] += z[i];
  }
  store_strip(z, count, e.out.dtype, at(e.out, row, column));
}

template <class Accumulator>
void finish_piece(const Epilogue& e, const Piece& piece, const Accumulator* acc) {
  const bool plain = e.alpha == 1 && !e.bias.data && !e.aux_in.data && !e.aux_out.data &&
                     !e.c.data && !piece.bias_grad && e.activation == Activation::kNone;
  for (int r = 0; r < piece.rows; ++r) {
    const Accumulator* values = acc + r * piece.stride;
    if (plain) {
      store_strip(values, piece.columns, e.out.dtype, at(e.out, piece.row + r, piece.column));
      continue;
    }
    for (int c = 0; c < piece.columns; c += kStrip) {
      const int count = piece.columns - c < kStrip ? piece.columns - c : kStrip;
      finish_strip(e, piece, r, c, count, values + c);
    }
  }
}

void finish(const Epilogue& e, const Piece& piece, const float* acc) {
  finish_piece(e, piece, acc);
}
void finish_wide(const Epilogue& e, const Piece& piece, const double* acc) {
  finish_piece(e, piece, acc);
}
