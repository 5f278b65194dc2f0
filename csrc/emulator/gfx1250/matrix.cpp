// Scaled matrix operations D = A * B + C: three lane maps and a block-scale rule.
//
// Operands   A is 16 (or 32 as two times 16) x 128, B is 128 x 16. A lane holds the K-contiguous
// codes of one row of A or
//            column of B: r = lane % 16; g = lane / 16 picks alternate chunks of K. A chunk is 4
//            registers (FP4: 32 codes, FP8: 16 codes) or 6 (FP6: 32 codes); chunk c of half g
//            starts at K = (2 c + g) * codes per chunk.
// Result     D[m][n], FP32: lane holds column n = lane % 16; register v holds row (v / 8) * 16 +
// (lane / 16) * 8 + v % 8. Scales     byte j of a lane's scale register(s) belongs to K block j (32
// or 16 elements) of row or column lane % 16;
//            lanes 0..15 or 16..31 are used (ROW0, ROW1), for a 32-row A all 32 lanes.
// Numerics   per block: FP32 multiply-adds in ascending K (products of two codes are exact); the
// two scales are applied as
//            one exponent, so that neither overflows alone; then the sum is added to the
//            accumulator. Round to nearest even, subnormals kept. The hardware's own order inside
//            an operation is not published.
// Source: CDNA5 ISA guide, sections on WMMA and on scaled matrix operations.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "core/fault.h"
#include "gfx1250/architecture.h"
#include "gfx1250/matrix_kernels.h"

namespace mxgemm::emulator::gfx1250 {
namespace {

using u8 = uint8_t;
using u32 = uint32_t;
using u64 = uint64_t;

constexpr int kHalves = 2;

// An element format of the matrix unit, by its code in the instruction.
struct Element {
  int bits, registers_per_chunk, codes_per_chunk;
  int exponent_bits, mantissa_bits, bias;
  int first_nan, infinity;  // magnitudes, or out of range
};
constexpr int kNever = 1 << 8;
constexpr Element kElements[] = {
    {8, 4, 16, 4, 3, 7, 0x7F, kNever},    // FP8 E4M3
    {8, 4, 16, 5, 2, 15, 0x7D, 0x7C},     // BF8 E5M2
    {6, 6, 32, 2, 3, 1, kNever, kNever},  // FP6 E2M3
    {6, 6, 32, 3, 2, 3, kNever, kNever},  // BF6 E3M2
    {4, 4, 32, 2, 1, 1, kNever, kNever},  // FP4 E2M1
};
constexpr int kFp4 = 4;

float decode(const Element& f, int code) {
  const int magnitude = code & ((1 << (f.bits - 1)) - 1);
  const float sign = code >> (f.bits - 1) ? -1.0f : 1.0f;
  if (magnitude >= f.first_nan) return std::numeric_limits<float>::quiet_NaN();
  if (magnitude == f.infinity) return sign * std::numeric_limits<float>::infinity();
  const int exponent = magnitude >> f.mantissa_bits,
            fraction = magnitude & ((1 << f.mantissa_bits) - 1);
  const int significand = exponent ? fraction | 1 << f.mantissa_bits : fraction;
  return sign *
         std::ldexp(float(significand), (exponent ? exponent : 1) - f.bias - f.mantissa_bits);
}

std::array<std::array<float, 256>, 5> make_values() {
  std::array<std::array<float, 256>, 5> values{};
  for (int f = 0; f < 5; ++f)
    for (int code = 0; code < 1 << kElements[f].bits; ++code)
      values[f][code] = decode(kElements[f], code);
  return values;
}
const std::array<std::array<float, 256>, 5> kValues = make_values();

// First register of a 16-row operand to its values.
void unpack(Wave& wave, int first, int format, Tile& tile) {
  const Element& f = kElements[format];
  if (format == kFp4) {
    for (int chunk = 0; chunk < 2; ++chunk)
      for (int g = 0; g < kHalves; ++g)
        unpack_fp4(wave.vector(first + chunk * f.registers_per_chunk) + g * kRows, kLanes,
                   tile.value + (chunk * kHalves + g) * f.codes_per_chunk);
    return;
  }
  const float* values = kValues[format].data();
  const int chunks = kDepth / (kHalves * f.codes_per_chunk);
  const u32 mask = (1u << f.bits) - 1;
  for (int chunk = 0; chunk < chunks; ++chunk)
    for (int p = 0; p < f.codes_per_chunk; ++p) {
      const int bit = p * f.bits, word = bit / 32, shift = bit % 32;
      const u32* low = wave.vector(first + chunk * f.registers_per_chunk + word);
      const bool split = shift + f.bits > 32;
      const u32* high = split ? low + kLanes : low;
      for (int g = 0; g < kHalves; ++g) {
        float* out = tile.value[(chunk * kHalves + g) * f.codes_per_chunk + p];
        for (int r = 0; r < kRows; ++r) {
          u32 code = low[g * kRows + r] >> shift;
          if (split) code |= high[g * kRows + r] << (32 - shift);
          out[r] = values[code & mask];
        }
      }
    }
}

enum ScaleFormat : int { kE8m0, kE5m3, kE4m3 };
constexpr int kScaleBias = 127;

// A scale as an exponent and a significand: value = significand * 2^exponent; the significand of
// E8M0 is 1 (or NaN).
struct Scale {
  int exponent;
  float significand;
};

Scale decode_scale(int format, int byte) {
  if (byte == 0xFF) return {0, std::numeric_limits<float>::quiet_NaN()};
  if (format == kE8m0) return {byte - kScaleBias, 1.0f};
  // Unsigned, 3 bits of mantissa.
  const int bias = format == kE5m3 ? 15 : 7, exponent = byte >> 3, fraction = byte & 7;
  if (format == kE4m3 && (byte & 0x7F) == 0x7F) return {0, std::numeric_limits<float>::quiet_NaN()};
  const int field = format == kE4m3 ? exponent & 15 : exponent;
  return {(field ? field : 1) - bias - 3, float(field ? fraction | 8 : fraction)};
}

struct Scales {
  int format = kE8m0;
  u8 byte[32][8];  // [row or column][block]
};

void read_scales(Wave& wave, const Operand& operand, int rows, int blocks, int row_select,
                 int format, Scales& out) {
  out.format = format;
  if (operand.kind == Kind::kConstant && operand.value != 0)
    throw Fault("unsupported", "a matrix scale that is a constant other than 0");
  for (int r = 0; r < rows; ++r)
    for (int j = 0; j < blocks; ++j) {
      if (operand.kind == Kind::kConstant)
        out.byte[r][j] = kScaleBias;  // inline 0 stands for 1.0
      else if (operand.kind == Kind::kScalar)
        out.byte[r][j] = u8(wave.scalars[operand.index]);
      else
        out.byte[r][j] =
            u8(wave.vector(operand.index + j / 4)[rows == 32 ? r : row_select * kRows + r] >>
               8 * (j % 4));
    }
}

// sum * sa * sb rounded once to FP32.
float apply_scales(float sum, const Scale& a, const Scale& b) {
  return float(std::ldexp(double(sum) * a.significand * b.significand, a.exponent + b.exponent));
}

// acc += sum with the scales of `block`; rows whose exponents are all normal FP32 powers take the
// short way.
void accumulate(const float (*sum)[kRows], const Scales& a, int first_row, const Scales& b,
                int block, float (*acc)[kRows]) {
  int32_t scale_b[kRows];
  int lowest = 255, highest = 0;
  for (int n = 0; n < kRows; ++n) {
    scale_b[n] = b.byte[n][block];
    lowest = std::min(lowest, int(scale_b[n]));
    highest = std::max(highest, int(scale_b[n]));
  }
  for (int m = 0; m < kRows; ++m) {
    const int byte = a.byte[first_row + m][block];
    const bool normal =
        byte + lowest - 2 * kScaleBias >= -126 && byte + highest - 2 * kScaleBias <= 127;
    if (a.format == kE8m0 && normal && byte != 0xFF && highest != 0xFF) {
      scale_row(acc[m], sum[m], byte, scale_b);
      continue;
    }
    const Scale scale_a = decode_scale(a.format, byte);
    for (int n = 0; n < kRows; ++n)
      acc[m][n] += apply_scales(sum[m][n], scale_a, decode_scale(b.format, b.byte[n][block]));
  }
}

// Row 8 g + v of a 16-row result is lanes 16 g .. 16 g + 15 of its register v.
void load_result(Wave& wave, const Instruction& i, int tile, float (*acc)[kRows]) {
  const Operand& c = i.op(3);
  for (int v = 0; v < 8; ++v)
    for (int g = 0; g < kHalves; ++g) {
      float* row = acc[8 * g + v];
      if (c.kind == Kind::kVector)
        std::memcpy(row, wave.vector(c.index + 8 * tile + v) + g * kRows, sizeof acc[0]);
      else
        std::fill(row, row + kRows, std::bit_cast<float>(u32(c.value)));
    }
  const bool negate = i.modifier[kNegLo] >> 2 & 1, absolute = i.modifier[kNegHi] >> 2 & 1;
  if (!negate && !absolute) return;
  for (int m = 0; m < kRows; ++m)
    for (int n = 0; n < kRows; ++n) {
      const float value = absolute ? std::fabs(acc[m][n]) : acc[m][n];
      acc[m][n] = negate ? -value : value;
    }
}

void store_result(Wave& wave, const Operand& d, int tile, const float (*acc)[kRows]) {
  for (int v = 0; v < 8; ++v)
    for (int g = 0; g < kHalves; ++g)
      std::memcpy(wave.vector(d.index + 8 * tile + v) + g * kRows, acc[8 * g + v], sizeof acc[0]);
}

template <int block>
void scaled_matrix(Wave& wave, const Instruction& i) {
  const bool tall = i.op(0).words == 16;
  const int tiles = tall ? 2 : 1, blocks = kDepth / block;
  const int format_a = tall ? kFp4 : int(i.modifier[kFormatA]),
            format_b = tall ? kFp4 : int(i.modifier[kFormatB]);
  static thread_local Tile a, b;
  static thread_local float acc[2][kRows][kRows];
  Scales scales_a, scales_b;
  read_scales(wave, i.op(4), tall ? 32 : kRows, blocks, int(i.modifier[kScaleRowA]),
              int(i.modifier[kScaleFormatA]), scales_a);
  read_scales(wave, i.op(5), kRows, blocks, int(i.modifier[kScaleRowB]),
              int(i.modifier[kScaleFormatB]), scales_b);
  unpack(wave, i.op(2).index, format_b, b);
  for (int tile = 0; tile < tiles; ++tile) {
    unpack(wave, i.op(1).index + 8 * tile, format_a, a);
    load_result(wave, i, tile, acc[tile]);
    for (int j = 0; j < blocks; ++j) {
      float sum[kRows][kRows];
      multiply(a, b, j * block, (j + 1) * block, sum);
      accumulate(sum, scales_a, tile * kRows, scales_b, j, acc[tile]);
    }
  }
  for (int tile = 0; tile < tiles; ++tile) store_result(wave, i.op(0), tile, acc[tile]);
  wave.mark_vector_written(i.op(0).index, i.op(0).words, wave.all_lanes());
}

}  // namespace

void add_matrix(OperationTable& table) {
  const auto add = [&](const char* name, Execute execute) {
    table.add({.name = name, .unit = Unit::kMatrix, .execute = execute, .all_lanes = true});
  };
  add("v_wmma_scale_f32_16x16x128_f8f6f4", scaled_matrix<32>);
  add("v_wmma_scale16_f32_16x16x128_f8f6f4", scaled_matrix<16>);
  add("v_wmma_scale_f32_32x16x128_f4", scaled_matrix<32>);
  add("v_wmma_scale16_f32_32x16x128_f4", scaled_matrix<16>);
}

}  // namespace mxgemm::emulator::gfx1250
