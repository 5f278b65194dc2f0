// Scaled matrix operations D = A * B + C: three lane maps and a block-scale rule.
//
// Operands   A is 16 (or 32 as two times 16) x 128, B is 128 x 16. A lane holds the K-contiguous codes of one row of A or
//            column of B: r = lane % 16; g = lane / 16 picks alternate chunks of K. A chunk is 4 registers (FP4: 32 codes,
//            FP8: 16 codes) or 6 (FP6: 32 codes); chunk c of half g starts at K = (2 c + g) * codes per chunk.
// Result     D[m][n], FP32: lane holds column n = lane % 16; register v holds row (v / 8) * 16 + (lane / 16) * 8 + v % 8.
// Scales     byte j of a lane's scale register(s) belongs to K block j (32 or 16 elements) of row or column lane % 16;
//            lanes 0..15 or 16..31 are used (ROW0, ROW1), for a 32-row A all 32 lanes.
// Numerics   per block: FP32 multiply-adds in ascending K (products of two codes are exact); the two scales are applied as
//            one exponent, so that neither overflows alone; then the sum is added to the accumulator. Round to nearest even,
//            subnormals kept. The hardware's own order inside an operation is not published.
// Source: CDNA5 ISA guide, sections on WMMA and on scaled matrix operations.
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "core/fault.h"
#include "gfx1250/architecture.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MXGEMM_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MXGEMM_CLONES
#endif

namespace mxgemm::emulator::gfx1250 {
namespace {

using u8 = uint8_t;
using u32 = uint32_t;
using u64 = uint64_t;

constexpr int kRows = 16, kDepth = 128, kHalves = 2;

// An element format of the matrix unit, by its code in the instruction.
struct Element {
  int bits, registers_per_chunk, codes_per_chunk;
  int exponent_bits, mantissa_bits, bias;
  int first_nan, infinity;  // magnitudes, or out of range
};
constexpr int kNever = 1 << 8;
constexpr Element kElements[] = {
    {8, 4, 16, 4, 3, 7, 0x7F, kNever},     // FP8 E4M3
    {8, 4, 16, 5, 2, 15, 0x7D, 0x7C},      // BF8 E5M2
    {6, 6, 32, 2, 3, 1, kNever, kNever},   // FP6 E2M3
    {6, 6, 32, 3, 2, 3, kNever, kNever},   // BF6 E3M2
    {4, 4, 32, 2, 1, 1, kNever, kNever},   // FP4 E2M1
};
constexpr int kFp4 = 4;

float decode(const Element& f, int code) {
  const int magnitude = code & ((1 << (f.bits - 1)) - 1);
  const float sign = code >> (f.bits - 1) ? -1.0f : 1.0f;
  if (magnitude >= f.first_nan) return std::numeric_limits<float>::quiet_NaN();
  if (magnitude == f.infinity) return sign * std::numeric_limits<float>::infinity();
  const int exponent = magnitude >> f.mantissa_bits, fraction = magnitude & ((1 << f.mantissa_bits) - 1);
  const int significand = exponent ? fraction | 1 << f.mantissa_bits : fraction;
  return sign * std::ldexp(float(significand), (exponent ? exponent : 1) - f.bias - f.mantissa_bits);
}

std::array<std::array<float, 256>, 5> make_values() {
  std::array<std::array<float, 256>, 5> values{};
  for (int f = 0; f < 5; ++f)
    for (int code = 0; code < 1 << kElements[f].bits; ++code) values[f][code] = decode(kElements[f], code);
  return values;
}
const std::array<std::array<float, 256>, 5> kValues = make_values();

// [k][row or column]
struct alignas(64) Tile {
  float value[kDepth][kRows];
};

// First register of a 16-row operand to its values.
void unpack(Wave& wave, int first, int format, Tile& tile) {
  const Element& f = kElements[format];
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

using Row = float __attribute__((vector_size(32)));  // eight columns

// sum[m][n] over K in [first, last), ascending.
MXGEMM_CLONES void multiply(const Tile& a, const Tile& b, int first, int last, float (*sum)[kRows]) {
  constexpr int kStep = 4;
  for (int m = 0; m < kRows; m += kStep) {
    Row acc[kStep][2] = {};
    for (int k = first; k < last; ++k) {
      Row columns[2];
      std::memcpy(columns, b.value[k], sizeof columns);
      for (int s = 0; s < kStep; ++s) {
        const float row = a.value[k][m + s];
        acc[s][0] += row * columns[0];
        acc[s][1] += row * columns[1];
      }
    }
    std::memcpy(sum[m], acc, sizeof acc);
  }
}

enum ScaleFormat : int { kE8m0, kE5m3, kE4m3 };
constexpr int kScaleBias = 127;

// A scale as an exponent and a significand: value = significand * 2^exponent; the significand of E8M0 is 1 (or NaN).
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

void read_scales(Wave& wave, const Operand& operand, int rows, int blocks, int row_select, int format, Scales& out) {
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
        out.byte[r][j] = u8(wave.vector(operand.index + j / 4)[rows == 32 ? r : row_select * kRows + r] >> 8 * (j % 4));
    }
}

// sum * sa * sb rounded once to FP32.
float apply_scales(float sum, const Scale& a, const Scale& b) {
  return float(std::ldexp(double(sum) * a.significand * b.significand, a.exponent + b.exponent));
}

float power_of_two(int exponent) {  // -149 <= exponent <= 127
  const u32 bits = exponent >= -126 ? u32(exponent + 127) << 23 : 1u << (exponent + 149);
  return std::bit_cast<float>(bits);
}

MXGEMM_CLONES void accumulate_row(float* acc, const float* sum, const float* power) {
  for (int n = 0; n < kRows; ++n) acc[n] += sum[n] * power[n];
}

void accumulate(const float (*sum)[kRows], const Scales& a, int first_row, const Scales& b, int block,
                float (*acc)[kRows]) {
  for (int m = 0; m < kRows; ++m) {
    const int byte_a = a.byte[first_row + m][block];
    bool simple = a.format == kE8m0 && byte_a != 0xFF;
    float power[kRows];
    for (int n = 0; n < kRows && simple; ++n) {
      const int byte_b = b.byte[n][block], exponent = byte_a + byte_b - 2 * kScaleBias;
      simple = byte_b != 0xFF && exponent >= -149 && exponent <= 127;
      if (simple) power[n] = power_of_two(exponent);
    }
    if (simple) {
      accumulate_row(acc[m], sum[m], power);
      continue;
    }
    const Scale scale_a = decode_scale(a.format, byte_a);
    for (int n = 0; n < kRows; ++n) acc[m][n] += apply_scales(sum[m][n], scale_a, decode_scale(b.format, b.byte[n][block]));
  }
}

void load_result(Wave& wave, const Operand& c, int tile, int negate, int absolute, float (*acc)[kRows]) {
  for (int m = 0; m < kRows; ++m)
    for (int n = 0; n < kRows; ++n) {
      u32 bits = 0;
      if (c.kind == Kind::kVector)
        bits = wave.vector(c.index + tile * 8 + m % 8)[m / 8 * kRows + n];
      else
        bits = u32(c.value);
      if (absolute) bits &= 0x7FFFFFFF;
      if (negate) bits ^= 0x80000000;
      acc[m][n] = std::bit_cast<float>(bits);
    }
}

template <int block>
void scaled_matrix(Wave& wave, const Instruction& i) {
  const bool tall = i.op(0).words == 16;
  const int tiles = tall ? 2 : 1, blocks = kDepth / block;
  const int format_a = tall ? kFp4 : int(i.modifier[kFormatA]), format_b = tall ? kFp4 : int(i.modifier[kFormatB]);
  static thread_local Tile a, b;
  static thread_local float acc[2][kRows][kRows];
  Scales scales_a, scales_b;
  read_scales(wave, i.op(4), tall ? 32 : kRows, blocks, int(i.modifier[kScaleRowA]), int(i.modifier[kScaleFormatA]), scales_a);
  read_scales(wave, i.op(5), kRows, blocks, int(i.modifier[kScaleRowB]), int(i.modifier[kScaleFormatB]), scales_b);
  unpack(wave, i.op(2).index, format_b, b);
  const int negate = int(i.modifier[kNegLo] >> 2 & 1), absolute = int(i.modifier[kNegHi] >> 2 & 1);
  for (int tile = 0; tile < tiles; ++tile) {
    unpack(wave, i.op(1).index + 8 * tile, format_a, a);
    load_result(wave, i.op(3), tile, negate, absolute, acc[tile]);
    for (int j = 0; j < blocks; ++j) {
      float sum[kRows][kRows];
      multiply(a, b, j * block, (j + 1) * block, sum);
      accumulate(sum, scales_a, tile * kRows, scales_b, j, acc[tile]);
    }
  }
  for (int tile = 0; tile < tiles; ++tile)
    for (int v = 0; v < 8; ++v)
      for (int lane = 0; lane < kLanes; ++lane)
        wave.vector(i.op(0).index + tile * 8 + v)[lane] =
            std::bit_cast<u32>(acc[tile][lane / kRows * 8 + v][lane % kRows]);
  wave.mark_vector_written(i.op(0).index, i.op(0).words, wave.all_lanes());
}

}  // namespace

void add_matrix(OperationTable& table) {
  table.add({"v_wmma_scale_f32_16x16x128_f8f6f4", Unit::kMatrix, scaled_matrix<32>});
  table.add({"v_wmma_scale16_f32_16x16x128_f8f6f4", Unit::kMatrix, scaled_matrix<16>});
  table.add({"v_wmma_scale_f32_32x16x128_f4", Unit::kMatrix, scaled_matrix<32>});
  table.add({"v_wmma_scale16_f32_32x16x128_f4", Unit::kMatrix, scaled_matrix<16>});
}

}  // namespace mxgemm::emulator::gfx1250
