// The epilogue of every GEMM kernel here, on rows of FP32 products in shared memory:
//
//   forward   z = alpha * product + bias;  aux_out = z;  D = act(z) + beta * C
//   backward  z = alpha * product;                       D = z * act'(aux_in) + beta * C
//
// in FP32, rounded once to D's dtype; column sums of the unrounded D for a bias gradient.
#pragma once
#include "ptx.cuh"

enum Dtype : int { kNoTensor = 0, kFloat32 = 1, kBfloat16 = 2, kFloat16 = 3 };
enum Activation : int { kNone = 0, kRelu = 1, kGelu = 2, kGeluTanh = 3 };

// Mirrored by launch.py, field by field.
struct Epilogue {
  void* d;             // [m, n]
  const void* c;       // [m, n], may be d
  void* aux;           // [m, n], written forward, read backward
  const void* bias;    // [n]
  float* column_sums;  // [groups of the kernel's rows, n], null without a bias gradient
  long long d_stride, c_stride, aux_stride;  // elements from row to row
  float alpha, beta;
  int d_dtype, c_dtype, aux_dtype, bias_dtype;
  int activation;
  int backward;  // activation's derivative at aux multiplies z
  int paired;    // two neighbouring columns of every tensor may be accessed as one vector
  int m, n;
};

DEVICE u32 pack_bfloat16(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

DEVICE u32 pack_float16(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

DEVICE float float16_to_float(u32 half) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(static_cast<u16>(half)));
  return f;
}

DEVICE F32x2 unpack_pair(u32 word, int dtype) {
  if (dtype == kBfloat16) return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u)};
  return {float16_to_float(word & 0xFFFF), float16_to_float(word >> 16)};
}

// Elements `index` and, when `count` is 2, `index` + 1.
DEVICE F32x2 load_pair(const void* base, int dtype, long long index, int count, bool paired) {
  if (dtype == kFloat32) {
    const float* p = static_cast<const float*>(base) + index;
    if (paired) return *reinterpret_cast<const F32x2*>(p);
    return {p[0], count == 2 ? p[1] : 0.f};
  }
  const u16* p = static_cast<const u16*>(base) + index;
  if (paired) return unpack_pair(*reinterpret_cast<const u32*>(p), dtype);
  return unpack_pair(p[0] | (count == 2 ? static_cast<u32>(p[1]) << 16 : 0u), dtype);
}

DEVICE void store_pair(void* base, int dtype, long long index, int count, bool paired, F32x2 v) {
  if (dtype == kFloat32) {
    float* p = static_cast<float*>(base) + index;
    if (paired) {
      *reinterpret_cast<F32x2*>(p) = v;
    } else {
      p[0] = v.x;
      if (count == 2) p[1] = v.y;
    }
    return;
  }
  const u32 word = dtype == kBfloat16 ? pack_bfloat16(v.x, v.y) : pack_float16(v.x, v.y);
  u16* p = static_cast<u16*>(base) + index;
  if (paired) {
    *reinterpret_cast<u32*>(p) = word;
  } else {
    p[0] = static_cast<u16>(word);
    if (count == 2) p[1] = static_cast<u16>(word >> 16);
  }
}

// What follows works on a thread's accumulators of a wgmma: values i .. i + 3 are those of two rows
// that are 8 apart, at two neighbouring columns each.

struct ColumnPowers {
  int x, y;
};

// From int32 in shared memory.
DEVICE ColumnPowers load_column_powers_i32(u32 address) {
  const U32x2 pair = load_shared_u32x2(address);
  return {static_cast<int>(pair.x), static_cast<int>(pair.y)};
}

// From int16 in shared memory.
DEVICE ColumnPowers load_column_powers_i16(u32 address) {
  const u32 pair = load_shared_u32(address);
  return {static_cast<i16>(pair), static_cast<i16>(pair >> 16)};
}

// total * 2^(row power + column power), where `columns(i)` gives the powers of the columns of
// values i .. i + 3. Easy powers multiply one after the other; others in halves of their sum.
template <int kCount, typename Columns>
DEVICE void scale_by_powers(float (&total)[kCount], int row0, int row1, Columns columns,
                            bool easy) {
  if (easy) {
    const float r0 = power_of_two(row0), r1 = power_of_two(row1);
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const ColumnPowers powers = columns(i);
      const float c0 = power_of_two(powers.x), c1 = power_of_two(powers.y);
      total[i] = total[i] * r0 * c0;
      total[i + 1] = total[i + 1] * r0 * c1;
      total[i + 2] = total[i + 2] * r1 * c0;
      total[i + 3] = total[i + 3] * r1 * c1;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const ColumnPowers powers = columns(i);
    total[i] = scale_by_power(total[i], row0 + powers.x);
    total[i + 1] = scale_by_power(total[i + 1], row0 + powers.y);
    total[i + 2] = scale_by_power(total[i + 2], row1 + powers.x);
    total[i + 3] = scale_by_power(total[i + 3], row1 + powers.y);
  }
}

// total += sum * 2^(row power + column power), the columns' powers as int32 in shared memory from
// that of value 0 on.
template <int kCount>
DEVICE void add_by_powers(float (&total)[kCount], const float (&sum)[kCount], int row0, int row1,
                          u32 columns) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const ColumnPowers powers = load_column_powers_i32(columns + 8 * i);
    total[i] += scale_by_power(sum[i], row0 + powers.x);
    total[i + 1] += scale_by_power(sum[i + 1], row0 + powers.y);
    total[i + 2] += scale_by_power(sum[i + 2], row1 + powers.x);
    total[i + 3] += scale_by_power(sum[i + 3], row1 + powers.y);
  }
}

// 16 columns of 16-bit D from column 8 j on, as the four matrices of an stmatrix.
template <int kDtype, int kCount>
DEVICE void pack_columns(const float (&total)[kCount], int j, u32 (&words)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* v = &total[(j + i / 2) * 4 + i % 2 * 2];
    words[i] = kDtype == kBfloat16 ? pack_bfloat16(v[0], v[1]) : pack_float16(v[0], v[1]);
  }
}

constexpr float kSqrtHalf = 0.70710678118654752f;
constexpr float kInverseSqrtTwoPi = 0.39894228040143268f;
constexpr float kGeluTanhScale = 0.79788456080286536f;  // sqrt(2 / pi)
constexpr float kGeluTanhCubic = 0.044715f;

DEVICE float activate(float z, int activation) {
  if (activation == kRelu) return z < 0.f ? 0.f : z;  // keeps NaN
  if (activation == kGelu) return 0.5f * z * (1.f + erff(z * kSqrtHalf));
  if (activation == kGeluTanh) {
    return 0.5f * z * (1.f + tanhf(kGeluTanhScale * (z + kGeluTanhCubic * z * z * z)));
  }
  return z;
}

DEVICE float derivative(float z, int activation) {
  if (activation == kRelu) return z > 0.f ? 1.f : (z != z ? z : 0.f);
  if (activation == kGelu) {
    return 0.5f * (1.f + erff(z * kSqrtHalf)) + z * kInverseSqrtTwoPi * expf(-0.5f * z * z);
  }
  const float t = tanhf(kGeluTanhScale * (z + kGeluTanhCubic * z * z * z));
  const float slope = kGeluTanhScale * (1.f + 3.f * kGeluTanhCubic * z * z);
  return 0.5f * (1.f + t) + 0.5f * z * (1.f - t * t) * slope;
}

// D of one row at two neighbouring columns, before rounding; reads and writes what the epilogue
// names.
DEVICE F32x2 finish_pair(const Epilogue& e, F32x2 product, F32x2 bias, int row, int column,
                         int count) {
  const bool paired = e.paired && count == 2;
  F32x2 z = {__fadd_rn(__fmul_rn(product.x, e.alpha), bias.x),
             __fadd_rn(__fmul_rn(product.y, e.alpha), bias.y)};
  F32x2 d;
  if (e.backward) {
    const F32x2 aux = load_pair(e.aux, e.aux_dtype, row * e.aux_stride + column, count, paired);
    d = {z.x * derivative(aux.x, e.activation), z.y * derivative(aux.y, e.activation)};
  } else {
    if (e.aux_dtype) {
      store_pair(e.aux, e.aux_dtype, row * e.aux_stride + column, count, paired, z);
    }
    d = {activate(z.x, e.activation), activate(z.y, e.activation)};
  }
  if (e.c_dtype) {
    const F32x2 c = load_pair(e.c, e.c_dtype, row * e.c_stride + column, count, paired);
    d = {__fadd_rn(d.x, __fmul_rn(e.beta, c.x)), __fadd_rn(d.y, __fmul_rn(e.beta, c.y))};
  }
  store_pair(e.d, e.d_dtype, row * e.d_stride + column, count, paired, d);
  return d;
}

// Finishes rows [0, kRows) x 64 columns that start at (row0, column0) of D, with the kThreads
// threads of one named barrier; `product(row, pair)` gives the products of columns 2 pair and 2
// pair + 1, from shared memory that all threads see. With column sums, kThreads * 8 bytes at
// `scratch` are overwritten after the last product was read.
template <int kRows, int kThreads, typename Product>
DEVICE void finish_rows(const Epilogue& e, Product product, int row0, int column0, u32 scratch,
                        int barrier) {
  constexpr int kWarps = kThreads / kWarp;
  const int thread = threadIdx.x % kThreads, warp = thread / kWarp, lane = thread % kWarp;
  const int column = column0 + 2 * lane;
  const int count = min(2, e.n - column);
  F32x2 bias = {0.f, 0.f}, sums = {0.f, 0.f};
  if (e.bias_dtype && count > 0) {
    bias = load_pair(e.bias, e.bias_dtype, column, count, e.paired && count == 2);
  }
#pragma unroll 2
  for (int row = warp; row < kRows; row += kWarps) {
    if (count > 0 && row0 + row < e.m) {
      const F32x2 d = finish_pair(e, product(row, lane), bias, row0 + row, column, count);
      sums = {sums.x + d.x, sums.y + d.y};
    }
  }
  if (!e.column_sums) return;
  named_barrier(barrier, kThreads);
  store_shared_f32x2(scratch + thread * 8, sums.x, sums.y);
  named_barrier(barrier, kThreads);
  if (thread < 64 && column0 + thread < e.n && row0 < e.m) {
    float total = 0.f;
    for (int i = 0; i < kWarps; ++i) {
      total += __uint_as_float(load_shared_u32(scratch + (i * 64 + thread) * 4));
    }
    e.column_sums[static_cast<long long>(row0 / kRows) * e.n + column0 + thread] = total;
  }
}
