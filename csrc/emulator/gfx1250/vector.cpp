// Vector arithmetic. Most instructions are one lambda on one lane; those that cross lanes or are 64
// bits wide follow below.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/fault.h"
#include "gfx1250/convert.h"
#include "gfx1250/lanes.h"

namespace mxgemm::emulator::gfx1250 {

using u32 = uint32_t;
using u64 = uint64_t;
using i32 = int32_t;
using i64 = int64_t;

const u32* fetch(Wave& wave, const Operand& operand, u32* buffer) {
  const u32* source = buffer;
  if (operand.kind == Kind::kVector)
    source = wave.vector(operand.index);
  else
    std::fill(buffer, buffer + kLanes, u32(wave.source(operand, false)));
  if (operand.modifiers == 0) return source;
  for (int i = 0; i < kLanes; ++i) {
    u32 value = source[i];
    if (operand.modifiers & kAbsolute) value &= 0x7FFFFFFFu;
    if (operand.modifiers & kNegate) value ^= 0x80000000u;
    buffer[i] = value;
  }
  return buffer;
}

void commit(Wave& wave, const Operand& operand, const u32* values) {
  u32* destination = wave.vector(operand.index);
  const u32 exec = wave.scalars[kExec];
  wave.mark_vector_written(operand.index, 1, exec);
  if (exec == 0xFFFFFFFFu) {
    std::memcpy(destination, values, kLanes * sizeof(u32));
    return;
  }
  for (int i = 0; i < kLanes; ++i)
    if (exec >> i & 1) destination[i] = values[i];
}

namespace {

void compute(Wave& wave, const Instruction& i, u32* result) {
  u32 buffers[3][kLanes];
  const u32* sources[3] = {buffers[0], buffers[1], buffers[2]};
  for (int n = 1; n < i.num_operands && n <= 3; ++n)
    sources[n - 1] = fetch(wave, i.op(n), buffers[n - 1]);
  i.operation->lanes(result, sources[0], sources[1], sources[2], i);
}

}  // namespace

void execute_lanes(Wave& wave, const Instruction& i) {
  u32 first[kLanes], second[kLanes];
  compute(wave, i, first);
  if (i.second) {  // both halves read before either writes
    compute(wave, *i.second, second);
    commit(wave, i.second->op(0), second);
  }
  commit(wave, i.op(0), first);
}

namespace {

u32 shift(u32 amount) { return amount & 31; }
u32 u24(u32 value) { return value & 0xFFFFFF; }
i32 i24(u32 value) { return i32(value << 8) >> 8; }

void add_integer(OperationTable& t) {
  add_lanes(t, "v_mov_b32", [](u32 a) { return a; });
  add_lanes(t, "v_mov_b16", [](u32 a, u32 old) { return (old & 0xFFFF0000u) | (a & 0xFFFFu); });
  add_lanes(t, "v_not_b32", [](u32 a) { return ~a; });
  add_lanes(t, "v_add_nc_u32", [](u32 a, u32 b) { return a + b; });
  add_lanes(t, "v_sub_nc_u32", [](u32 a, u32 b) { return a - b; });
  add_lanes(t, "v_subrev_nc_u32", [](u32 a, u32 b) { return b - a; });
  add_lanes(t, "v_and_b32", [](u32 a, u32 b) { return a & b; });
  add_lanes(t, "v_or_b32", [](u32 a, u32 b) { return a | b; });
  add_lanes(t, "v_xor_b32", [](u32 a, u32 b) { return a ^ b; });
  add_lanes(t, "v_xnor_b32", [](u32 a, u32 b) { return ~(a ^ b); });
  add_lanes(t, "v_lshlrev_b32", [](u32 a, u32 b) { return b << shift(a); });
  add_lanes(t, "v_lshrrev_b32", [](u32 a, u32 b) { return b >> shift(a); });
  add_lanes(t, "v_ashrrev_i32", [](u32 a, i32 b) { return b >> shift(a); });
  add_lanes(t, "v_mul_lo_u32", [](u32 a, u32 b) { return a * b; });
  add_lanes(t, "v_mul_hi_u32", [](u32 a, u32 b) { return u32(u64(a) * b >> 32); });
  add_lanes(t, "v_mul_hi_i32", [](i32 a, i32 b) { return i32(i64(a) * b >> 32); });
  add_lanes(t, "v_mul_u32_u24", [](u32 a, u32 b) { return u24(a) * u24(b); });
  add_lanes(t, "v_mul_i32_i24", [](u32 a, u32 b) { return u32(i24(a)) * u32(i24(b)); });
  add_lanes(t, "v_max_u32", [](u32 a, u32 b) { return std::max(a, b); });
  add_lanes(t, "v_min_u32", [](u32 a, u32 b) { return std::min(a, b); });
  add_lanes(t, "v_max_i32", [](i32 a, i32 b) { return std::max(a, b); });
  add_lanes(t, "v_min_i32", [](i32 a, i32 b) { return std::min(a, b); });
  add_lanes(t, "v_med3_i32", [](i32 a, i32 b, i32 c) {
    return std::max(std::min(a, b), std::min(std::max(a, b), c));
  });
  add_lanes(t, "v_lshl_add_u32", [](u32 a, u32 b, u32 c) { return (a << shift(b)) + c; });
  add_lanes(t, "v_add_lshl_u32", [](u32 a, u32 b, u32 c) { return (a + b) << shift(c); });
  add_lanes(t, "v_lshl_or_b32", [](u32 a, u32 b, u32 c) { return a << shift(b) | c; });
  add_lanes(t, "v_and_or_b32", [](u32 a, u32 b, u32 c) { return (a & b) | c; });
  add_lanes(t, "v_or3_b32", [](u32 a, u32 b, u32 c) { return a | b | c; });
  add_lanes(t, "v_xor3_b32", [](u32 a, u32 b, u32 c) { return a ^ b ^ c; });
  add_lanes(t, "v_add3_u32", [](u32 a, u32 b, u32 c) { return a + b + c; });
  add_lanes(t, "v_xad_u32", [](u32 a, u32 b, u32 c) { return (a ^ b) + c; });
  add_lanes(t, "v_mad_u32", [](u32 a, u32 b, u32 c) { return a * b + c; });
  add_lanes(t, "v_mad_u32_u24", [](u32 a, u32 b, u32 c) { return u24(a) * u24(b) + c; });
  add_lanes(t, "v_mad_i32_i24", [](u32 a, u32 b, u32 c) { return u32(i24(a)) * u32(i24(b)) + c; });
  add_lanes(t, "v_bfi_b32", [](u32 a, u32 b, u32 c) { return (a & b) | (~a & c); });
  add_lanes(t, "v_bfe_u32",
            [](u32 a, u32 b, u32 c) { return a >> shift(b) & ((1u << shift(c)) - 1); });
  add_lanes(t, "v_bfe_i32", [](u32 a, u32 b, u32 c) {
    const u32 width = shift(c), field = a >> shift(b);
    return width ? u32(i32(field << (32 - width)) >> (32 - width)) : 0u;
  });
  add_lanes(t, "v_alignbit_b32",
            [](u32 a, u32 b, u32 c) { return u32((u64(a) << 32 | b) >> shift(c)); });
  add_lanes(t, "v_alignbyte_b32",
            [](u32 a, u32 b, u32 c) { return u32((u64(a) << 32 | b) >> 8 * (c & 3)); });
  add_lanes(t, "v_perm_b32", [](u32 a, u32 b, u32 c) { return permute_bytes(a, b, c); });
}

void add_floating(OperationTable& t) {
  add_lanes(t, "v_add_f32", [](float a, float b) { return a + b; }, kFloating);
  add_lanes(t, "v_sub_f32", [](float a, float b) { return a - b; }, kFloating);
  add_lanes(t, "v_subrev_f32", [](float a, float b) { return b - a; }, kFloating);
  add_lanes(t, "v_mul_f32", [](float a, float b) { return a * b; }, kFloating);
  add_lanes(t, "v_fma_f32", [](float a, float b, float c) { return std::fma(a, b, c); }, kFloating);
  add_lanes(
      t, "v_fmamk_f32", [](float a, float k, float c) { return std::fma(a, k, c); }, kFloating);
  add_lanes(
      t, "v_fmaak_f32", [](float a, float b, float k) { return std::fma(a, b, k); }, kFloating);
  add_lanes(
      t, "v_fmac_f32", [](float a, float b, float old) { return std::fma(a, b, old); }, kFloating);
  add_lanes(
      t, "v_max_num_f32",
      [](float a, float b) { return std::isnan(a)   ? b
                                    : std::isnan(b) ? a
                                                    : maximum(a, b); },
      kFloating);
  add_lanes(
      t, "v_min_num_f32",
      [](float a, float b) { return std::isnan(a)   ? b
                                    : std::isnan(b) ? a
                                                    : minimum(a, b); },
      kFloating);
  add_lanes(
      t, "v_maximum_f32",
      [](float a, float b) { return std::isnan(a)   ? a
                                    : std::isnan(b) ? b
                                                    : maximum(a, b); },
      kFloating);
  add_lanes(
      t, "v_minimum_f32",
      [](float a, float b) { return std::isnan(a)   ? a
                                    : std::isnan(b) ? b
                                                    : minimum(a, b); },
      kFloating);
  // The hardware's transcendental results are within one ulp; these are correctly rounded.
  add_lanes(t, "v_exp_f32", [](float a) { return float(std::exp2(double(a))); }, kTranscendental);
  add_lanes(t, "v_log_f32", [](float a) { return float(std::log2(double(a))); }, kTranscendental);
  add_lanes(t, "v_rcp_f32", [](float a) { return float(1.0 / double(a)); }, kTranscendental);
  add_lanes(t, "v_rcp_iflag_f32", [](float a) { return float(1.0 / double(a)); }, kTranscendental);
  add_lanes(
      t, "v_rsq_f32", [](float a) { return float(1.0 / std::sqrt(double(a))); }, kTranscendental);
  add_lanes(t, "v_sqrt_f32", [](float a) { return float(std::sqrt(double(a))); }, kTranscendental);
  add_lanes(t, "v_tanh_f32", [](float a) { return std::tanh(a); }, kTranscendental);
  add_lanes(t, "v_trunc_f32", [](float a) { return std::trunc(a); }, kFloating);
  add_lanes(t, "v_floor_f32", [](float a) { return std::floor(a); }, kFloating);
  add_lanes(t, "v_ceil_f32", [](float a) { return std::ceil(a); }, kFloating);
  add_lanes(t, "v_rndne_f32", [](float a) { return std::nearbyint(a); }, kFloating);
  add_lanes(
      t, "v_fract_f32", [](float a) { return std::fmin(a - std::floor(a), 0x1.fffffep-1f); },
      kFloating);
  add_lanes(t, "v_ldexp_f32", [](float a, i32 b) { return std::ldexp(a, b); }, kFloating);
}

void add_conversions(OperationTable& t) {
  add_lanes(
      t, "v_cvt_pk_bf16_f32",
      [](float a, float b) { return u32(bf16_bits(a)) | u32(bf16_bits(b)) << 16; }, kFloating);
  add_lanes(
      t, "v_cvt_pk_f16_f32",
      [](float a, float b) { return u32(f16_bits(a)) | u32(f16_bits(b)) << 16; }, kFloating);
  add_lanes(
      t, "v_cvt_f16_f32", [](float a, u32 old) { return (old & 0xFFFF0000u) | f16_bits(a); },
      kFloating);
  add_lanes(t, "v_cvt_f32_f16", [](u32 a) { return f16_value(uint16_t(a)); });
  add_lanes(t, "v_cvt_f32_bf16", [](u32 a) { return a << 16; });
  add_lanes(t, "v_cvt_f32_u32", [](u32 a) { return float(a); });
  add_lanes(t, "v_cvt_f32_i32", [](i32 a) { return float(a); });
  add_lanes(t, "v_cvt_f32_ubyte0", [](u32 a) { return float(a & 0xFF); });
  add_lanes(t, "v_cvt_u32_f32", [](float a) { return saturate<u32>(a); }, kFloating);
  add_lanes(t, "v_cvt_i32_f32", [](float a) { return saturate<i32>(a); }, kFloating);
}

// D = for every bit position the truth-table bit chosen by the three source bits.
void bitop3(u32* d, const u32* a, const u32* b, const u32* c, const Instruction& i) {
  const u32 table = u32(i.modifier[kTruthTable]);
  for (int lane = 0; lane < kLanes; ++lane) {
    u32 result = 0;
    for (u32 term = 0; term < 8; ++term)
      if (table >> term & 1)
        result |= (term & 4 ? a[lane] : ~a[lane]) & (term & 2 ? b[lane] : ~b[lane]) &
                  (term & 1 ? c[lane] : ~c[lane]);
    d[lane] = result;
  }
}

void bitop2(u32* d, const u32* a, const u32* b, const u32*, const Instruction& i) {
  static constexpr u32 kZero[kLanes] = {};
  bitop3(d, a, b, kZero, i);
}

// ------------------------------------------------------------------------------------------- with
// a lane mask

void select(u32* d, const u32* a, const u32* b, const u32* mask,
            const Instruction&) {  // D = mask bit ? S1 : S0
  for (int lane = 0; lane < kLanes; ++lane) d[lane] = mask[lane] >> lane & 1 ? b[lane] : a[lane];
}

void write_mask(Wave& wave, const Operand& operand, u32 mask) {
  wave.set_scalar(operand.index, mask & wave.scalars[kExec]);  // bits of inactive lanes are 0
}

// D, carry out = F(S0, S1, carry in), 64 bits of which the upper ones are the carry (or borrow).
template <class F, bool carry_in>
void with_carry(Wave& wave, const Instruction& i) {
  u32 buffers[2][kLanes], result[kLanes], carry = 0;
  const u32 *a = fetch(wave, i.op(2), buffers[0]), *b = fetch(wave, i.op(3), buffers[1]);
  const u32 in = carry_in ? u32(wave.source(i.op(4), false)) : 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const u64 wide = F{}(u64(a[lane]), u64(b[lane]), u64(in >> lane & 1));
    result[lane] = u32(wide);
    carry |= u32((wide >> 32) != 0) << lane;
  }
  write_mask(wave, i.op(1), carry);
  commit(wave, i.op(0), result);
}

void add_with_carry(OperationTable& t) {
  constexpr auto sum = [](u64 a, u64 b, u64 c) { return a + b + c; };
  constexpr auto difference = [](u64 a, u64 b, u64 c) { return a - b - c; };
  constexpr auto reverse = [](u64 a, u64 b, u64 c) { return b - a - c; };
  t.add({"v_add_co_u32", Unit::kVector, with_carry<decltype(sum), false>});
  t.add({"v_sub_co_u32", Unit::kVector, with_carry<decltype(difference), false>});
  t.add({"v_subrev_co_u32", Unit::kVector, with_carry<decltype(reverse), false>});
  t.add({"v_add_co_ci_u32", Unit::kVector, with_carry<decltype(sum), true>});
  t.add({"v_sub_co_ci_u32", Unit::kVector, with_carry<decltype(difference), true>});
  t.add({"v_subrev_co_ci_u32", Unit::kVector, with_carry<decltype(reverse), true>});
}

template <class Relation, class T, bool to_exec>
void compare(Wave& wave, const Instruction& i) {
  constexpr int first = to_exec ? 0 : 1;
  u32 buffers[2][kLanes], mask = 0;
  const u32 *a = fetch(wave, i.op(first), buffers[0]),
            *b = fetch(wave, i.op(first + 1), buffers[1]);
  for (int lane = 0; lane < kLanes; ++lane)
    mask |= u32(Relation{}(from_bits<T>(a[lane]), from_bits<T>(b[lane]))) << lane;
  if constexpr (to_exec)
    wave.set_scalar(kExec, mask & wave.scalars[kExec]);
  else
    write_mask(wave, i.op(0), mask);
}

template <class T, class Relation>
void add_comparison(OperationTable& t, const std::string& relation, const std::string& type,
                    Relation) {
  constexpr bool floating = std::is_same_v<T, float>;
  t.add({"v_cmp_" + relation + "_" + type, Unit::kVector, compare<Relation, T, false>, nullptr,
         floating});
  t.add({.name = "v_cmpx_" + relation + "_" + type,
         .unit = Unit::kVector,
         .execute = compare<Relation, T, true>,
         .floating = floating,
         .writes_exec = true});
}

template <class T>
void add_comparisons(OperationTable& t, const std::string& type) {
  constexpr bool floating = std::is_same_v<T, float>;
  add_comparison<T>(t, "lt", type, [](T a, T b) { return a < b; });
  add_comparison<T>(t, "eq", type, [](T a, T b) { return a == b; });
  add_comparison<T>(t, "le", type, [](T a, T b) { return a <= b; });
  add_comparison<T>(t, "gt", type, [](T a, T b) { return a > b; });
  add_comparison<T>(t, "ge", type, [](T a, T b) { return a >= b; });
  if constexpr (!floating) {
    add_comparison<T>(t, "ne", type, [](T a, T b) { return a != b; });
  } else {
    add_comparison<T>(t, "lg", type, [](T a, T b) { return a < b || a > b; });
    add_comparison<T>(t, "o", type, [](T a, T b) { return !std::isnan(a) && !std::isnan(b); });
    add_comparison<T>(t, "u", type, [](T a, T b) { return std::isnan(a) || std::isnan(b); });
    add_comparison<T>(t, "nge", type, [](T a, T b) { return !(a >= b); });
    add_comparison<T>(t, "nlg", type, [](T a, T b) { return !(a < b || a > b); });
    add_comparison<T>(t, "ngt", type, [](T a, T b) { return !(a > b); });
    add_comparison<T>(t, "nle", type, [](T a, T b) { return !(a <= b); });
    add_comparison<T>(t, "neq", type, [](T a, T b) { return !(a == b); });
    add_comparison<T>(t, "nlt", type, [](T a, T b) { return !(a < b); });
  }
}

// ------------------------------------------------------------------------------------------------
// 64-bit lanes

u64 wide_source(Wave& wave, const Operand& operand, int lane) {
  if (operand.kind != Kind::kVector) return wave.source(operand, true);
  return wave.vector(operand.index)[lane] | u64(wave.vector(operand.index + 1)[lane]) << 32;
}

u32 narrow_source(Wave& wave, const Operand& operand, int lane) {
  return operand.kind == Kind::kVector ? wave.vector(operand.index)[lane]
                                       : u32(wave.source(operand, false));
}

template <class T>
T lane_source(Wave& wave, const Operand& operand, int lane) {
  if constexpr (sizeof(T) == 8)
    return static_cast<T>(wide_source(wave, operand, lane));
  else
    return static_cast<T>(narrow_source(wave, operand, lane));
}

void commit64(Wave& wave, const Operand& operand, const u64* values) {
  u32 low[kLanes], high[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    low[lane] = u32(values[lane]);
    high[lane] = u32(values[lane] >> 32);
  }
  Operand upper = operand;
  ++upper.index;
  commit(wave, operand, low);
  commit(wave, upper, high);
}

void move64(Wave& wave, const Instruction& i) {
  u64 result[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) result[lane] = wide_source(wave, i.op(1), lane);
  commit64(wave, i.op(0), result);
}

template <class F, class R, class A, class B>
void wide_two(Wave& wave, const Instruction& i, R (*)(A, B)) {
  u64 result[kLanes];
  for (int lane = 0; lane < kLanes; ++lane)
    result[lane] =
        u64(F{}(lane_source<A>(wave, i.op(1), lane), lane_source<B>(wave, i.op(2), lane)));
  commit64(wave, i.op(0), result);
}
template <class F, class R, class A, class B, class C>
void wide_two(Wave& wave, const Instruction& i, R (*)(A, B, C)) {
  u64 result[kLanes];
  for (int lane = 0; lane < kLanes; ++lane)
    result[lane] = u64(F{}(lane_source<A>(wave, i.op(1), lane), lane_source<B>(wave, i.op(2), lane),
                           lane_source<C>(wave, i.op(3), lane)));
  commit64(wave, i.op(0), result);
}

template <class F>
void add_wide(OperationTable& t, const char* name, F) {
  t.add(
      {name, Unit::kVector, [](Wave& wave, const Instruction& i) { wide_two<F>(wave, i, +F{}); }});
}

void add_wide_integer(OperationTable& t) {
  t.add({"v_mov_b64", Unit::kVector, move64});
  add_wide(t, "v_lshlrev_b64", [](u32 a, u64 b) { return b << (a & 63); });
  add_wide(t, "v_lshrrev_b64", [](u32 a, u64 b) { return b >> (a & 63); });
  add_wide(t, "v_ashrrev_i64", [](u32 a, i64 b) { return b >> (a & 63); });
  add_wide(t, "v_add_nc_u64", [](u64 a, u64 b) { return a + b; });
  add_wide(t, "v_sub_nc_u64", [](u64 a, u64 b) { return a - b; });
  add_wide(t, "v_mul_u64", [](u64 a, u64 b) { return a * b; });
  add_wide(t, "v_mad_nc_u64_u32", [](u32 a, u32 b, u64 c) { return u64(a) * b + c; });
  add_wide(t, "v_mad_nc_i64_i32", [](i32 a, i32 b, i64 c) { return i64(a) * b + c; });
  add_wide(t, "v_lshl_add_u64", [](u64 a, u32 b, u64 c) { return (a << (b & 63)) + c; });
}

// --------------------------------------------------------------------------------------- packed
// pairs of FP32

// op_sel / op_sel_hi choose the half of each source pair for the low and the high result.
template <int sources, class F>
void packed_float(Wave& wave, const Instruction& i) {
  u64 result[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    u32 half[2];
    for (int h = 0; h < 2; ++h) {
      float value[3] = {};
      for (int s = 0; s < sources; ++s) {
        const Operand& operand = i.op(s + 1);
        const bool high = i.modifier[h ? kOpSelHi : kOpSel] >> s & 1;
        u32 bits = operand.kind == Kind::kConstant
                       ? u32(operand.value)
                       : u32(wide_source(wave, operand, lane) >> (high ? 32 : 0));
        if (i.modifier[h ? kNegHi : kNegLo] >> s & 1) bits ^= 0x80000000u;
        value[s] = std::bit_cast<float>(bits);
      }
      half[h] = to_bits(F{}(value[0], value[1], value[2]));
    }
    result[lane] = half[0] | u64(half[1]) << 32;
  }
  commit64(wave, i.op(0), result);
}

template <int sources, class F>
void add_packed(OperationTable& t, const char* name, F) {
  t.add({name, Unit::kVector, packed_float<sources, F>});
}

void add_packed(OperationTable& t) {
  add_packed<2>(t, "v_pk_add_f32", [](float a, float b, float) { return a + b; });
  add_packed<2>(t, "v_pk_mul_f32", [](float a, float b, float) { return a * b; });
  add_packed<3>(t, "v_pk_fma_f32", [](float a, float b, float c) { return std::fma(a, b, c); });
}

// ------------------------------------------------------------------------------------------------
// across lanes

void read_first_lane(Wave& wave, const Instruction& i) {
  const u32 exec = wave.scalars[kExec];
  wave.set_scalar(i.op(0).index, narrow_source(wave, i.op(1), exec ? __builtin_ctz(exec) : 0));
}

void read_lane(Wave& wave, const Instruction& i) {
  wave.set_scalar(i.op(0).index,
                  narrow_source(wave, i.op(1), int(wave.source(i.op(2), false) & (kLanes - 1))));
}

void write_lane(Wave& wave, const Instruction& i) {
  const int lane = int(wave.source(i.op(2), false) & (kLanes - 1));
  wave.vector(i.op(0).index)[lane] = u32(wave.source(i.op(1), false));
  wave.mark_vector_written(i.op(0).index, 1, u64(1) << lane);
}

template <bool high>
void count_mask_below(Wave& wave, const Instruction& i) {  // D = S1 + bits of S0 below this lane
  u32 buffers[2][kLanes], result[kLanes];
  const u32 *mask = fetch(wave, i.op(1), buffers[0]), *base = fetch(wave, i.op(2), buffers[1]);
  for (int lane = 0; lane < kLanes; ++lane)
    result[lane] =
        base[lane] + (high ? 0 : u32(__builtin_popcount(mask[lane] & ((1u << lane) - 1))));
  commit(wave, i.op(0), result);
}

void add_across_lanes(OperationTable& t) {
  t.add({"v_readfirstlane_b32", Unit::kVector, read_first_lane});
  t.add({"v_readlane_b32", Unit::kVector, read_lane});
  t.add({"v_writelane_b32", Unit::kVector, write_lane});
  t.add({"v_mbcnt_lo_u32_b32", Unit::kVector, count_mask_below<false>});
  t.add({"v_mbcnt_hi_u32_b32", Unit::kVector, count_mask_below<true>});
}

}  // namespace

void add_vector(OperationTable& table) {
  table.add({"v_nop", Unit::kVector, [](Wave&, const Instruction&) {}});
  add_integer(table);
  add_floating(table);
  add_conversions(table);
  table.add({"v_bitop3_b32", Unit::kVector, execute_lanes, bitop3});
  table.add({"v_bitop2_b32", Unit::kVector, execute_lanes, bitop2});
  table.add({"v_cndmask_b32", Unit::kVector, execute_lanes, select});
  add_with_carry(table);
  add_comparisons<u32>(table, "u32");
  add_comparisons<i32>(table, "i32");
  add_comparisons<float>(table, "f32");
  add_wide_integer(table);
  add_packed(table);
  add_across_lanes(table);
}

}  // namespace mxgemm::emulator::gfx1250
