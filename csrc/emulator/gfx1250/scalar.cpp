// Scalar arithmetic: one lambda per instruction. Parameter types give the operand widths; `Scc&` is
// the condition code.
#include <type_traits>
#include <utility>

#include "gfx1250/architecture.h"

namespace mxgemm::emulator::gfx1250 {
namespace {

using u32 = uint32_t;
using u64 = uint64_t;
using i32 = int32_t;
using i64 = int64_t;

struct Scc {
  bool& value;
  bool get() const { return value; }
  template <class T>
  T nonzero(T result) const {  // SCC = result is not zero
    value = result != 0;
    return result;
  }
};

template <class T>
T read(const Wave& wave, const Operand& operand) {
  return static_cast<T>(wave.source(operand, sizeof(T) == 8));
}

template <class T>
void write(Wave& wave, const Operand& operand, T result) {
  if constexpr (sizeof(T) == 8)
    wave.set_scalar64(operand.index, static_cast<u64>(result));
  else
    wave.set_scalar(operand.index, static_cast<u32>(result));
}

// D = F(scc, sources); without a result (a comparison) the sources start at operand 0.
template <class F, class R, class... Sources, size_t... n>
void apply(Wave& wave, const Instruction& i, R (*)(Scc, Sources...), std::index_sequence<n...>) {
  const Scc scc{wave.scc};
  if constexpr (std::is_void_v<R>)
    F{}(scc, read<Sources>(wave, i.op(n))...);
  else
    write<R>(wave, i.op(0), F{}(scc, read<Sources>(wave, i.op(n + 1))...));
}
template <class F, class R, class... Sources>
void apply(Wave& wave, const Instruction& i, R (*function)(Scc, Sources...)) {
  apply<F>(wave, i, function, std::index_sequence_for<Sources...>{});
}

template <class F>
void execute(Wave& wave, const Instruction& i) {
  apply<F>(wave, i, +F{});
}

template <class T>
constexpr int kBits = sizeof(T) * 8;

template <class T>
T add_signed(Scc scc, T a, T b) {
  T result;
  scc.value = __builtin_add_overflow(a, b, &result);
  return result;
}

template <class T>
T subtract_signed(Scc scc, T a, T b) {
  T result;
  scc.value = __builtin_sub_overflow(a, b, &result);
  return result;
}

u32 shift_left_add(Scc scc, u32 a, int shift, u32 b) {
  const u64 sum = (u64(a) << shift) + b;
  scc.value = sum >> 32;
  return u32(sum);
}

template <class T>
T bit_field(Scc scc, T value, u32 where) {
  const u32 offset = where & (kBits<T> - 1), width = where >> 16 & 127;
  using U = std::make_unsigned_t<T>;
  if (width == 0) return scc.nonzero(T(0));
  U field = static_cast<U>(value >> offset);
  if (width < u32(kBits<T>)) {
    const int spare = kBits<T> - int(width);
    field = static_cast<U>(static_cast<T>(field << spare) >> spare);  // arithmetic for a signed T
  }
  return scc.nonzero(static_cast<T>(field));
}

template <class F>
void add(OperationTable& table, const std::string& name, F) {
  table.add({name, Unit::kScalar, execute<F>});
}

void add_arithmetic(OperationTable& t) {
  add(t, "s_add_co_u32", [](Scc c, u32 a, u32 b) {
    u32 r = a + b;
    c.value = r < a;
    return r;
  });
  add(t, "s_sub_co_u32", [](Scc c, u32 a, u32 b) {
    c.value = b > a;
    return a - b;
  });
  add(t, "s_add_co_i32", [](Scc c, i32 a, i32 b) { return add_signed(c, a, b); });
  add(t, "s_sub_co_i32", [](Scc c, i32 a, i32 b) { return subtract_signed(c, a, b); });
  add(t, "s_add_co_ci_u32", [](Scc c, u32 a, u32 b) {
    const u64 r = u64(a) + b + c.get();
    c.value = r >> 32;
    return u32(r);
  });
  add(t, "s_sub_co_ci_u32", [](Scc c, u32 a, u32 b) {
    const bool borrow = u64(b) + c.get() > a;
    const u32 r = a - b - c.get();
    c.value = borrow;
    return r;
  });
  add(t, "s_add_nc_u64", [](Scc, u64 a, u64 b) { return a + b; });
  add(t, "s_sub_nc_u64", [](Scc, u64 a, u64 b) { return a - b; });
  add(t, "s_mul_u64", [](Scc, u64 a, u64 b) { return a * b; });
  add(t, "s_mul_i32", [](Scc, u32 a, u32 b) { return a * b; });
  add(t, "s_mul_hi_u32", [](Scc, u32 a, u32 b) { return u32(u64(a) * b >> 32); });
  add(t, "s_mul_hi_i32", [](Scc, i32 a, i32 b) { return i32(i64(a) * b >> 32); });
  add(t, "s_max_i32", [](Scc c, i32 a, i32 b) {
    c.value = a >= b;
    return c.value ? a : b;
  });
  add(t, "s_max_u32", [](Scc c, u32 a, u32 b) {
    c.value = a >= b;
    return c.value ? a : b;
  });
  add(t, "s_min_i32", [](Scc c, i32 a, i32 b) {
    c.value = a < b;
    return c.value ? a : b;
  });
  add(t, "s_min_u32", [](Scc c, u32 a, u32 b) {
    c.value = a < b;
    return c.value ? a : b;
  });
  add(t, "s_abs_i32", [](Scc c, i32 a) { return c.nonzero(a < 0 ? i32(-u32(a)) : a); });
  add(t, "s_mulk_i32", [](Scc, i32 k, u32 old) { return old * u32(k); });
  add(t, "s_addk_co_i32", [](Scc c, i32 k, i32 old) { return add_signed(c, old, k); });
  add(t, "s_lshl1_add_u32", [](Scc c, u32 a, u32 b) { return shift_left_add(c, a, 1, b); });
  add(t, "s_lshl2_add_u32", [](Scc c, u32 a, u32 b) { return shift_left_add(c, a, 2, b); });
  add(t, "s_lshl3_add_u32", [](Scc c, u32 a, u32 b) { return shift_left_add(c, a, 3, b); });
  add(t, "s_lshl4_add_u32", [](Scc c, u32 a, u32 b) { return shift_left_add(c, a, 4, b); });
}

void add_moves(OperationTable& t) {
  add(t, "s_mov_b32", [](Scc, u32 a) { return a; });
  add(t, "s_mov_b64", [](Scc, u64 a) { return a; });
  add(t, "s_movk_i32", [](Scc, i32 k) { return k; });
  add(t, "s_cselect_b32", [](Scc c, u32 a, u32 b) { return c.get() ? a : b; });
  add(t, "s_cselect_b64", [](Scc c, u64 a, u64 b) { return c.get() ? a : b; });
  add(t, "s_sext_i32_i8", [](Scc, i32 a) { return i32(int8_t(a)); });
  add(t, "s_sext_i32_i16", [](Scc, i32 a) { return i32(int16_t(a)); });
  add(t, "s_pack_ll_b32_b16", [](Scc, u32 a, u32 b) { return (a & 0xFFFF) | b << 16; });
  add(t, "s_pack_lh_b32_b16", [](Scc, u32 a, u32 b) { return (a & 0xFFFF) | (b & 0xFFFF0000); });
  add(t, "s_pack_hh_b32_b16", [](Scc, u32 a, u32 b) { return a >> 16 | (b & 0xFFFF0000); });
}

void add_bits(OperationTable& t) {
  add(t, "s_not_b32", [](Scc c, u32 a) { return c.nonzero(~a); });
  add(t, "s_not_b64", [](Scc c, u64 a) { return c.nonzero(~a); });
  add(t, "s_and_b32", [](Scc c, u32 a, u32 b) { return c.nonzero(a & b); });
  add(t, "s_and_b64", [](Scc c, u64 a, u64 b) { return c.nonzero(a & b); });
  add(t, "s_or_b32", [](Scc c, u32 a, u32 b) { return c.nonzero(a | b); });
  add(t, "s_or_b64", [](Scc c, u64 a, u64 b) { return c.nonzero(a | b); });
  add(t, "s_xor_b32", [](Scc c, u32 a, u32 b) { return c.nonzero(a ^ b); });
  add(t, "s_xor_b64", [](Scc c, u64 a, u64 b) { return c.nonzero(a ^ b); });
  add(t, "s_and_not1_b32", [](Scc c, u32 a, u32 b) { return c.nonzero(a & ~b); });
  add(t, "s_and_not1_b64", [](Scc c, u64 a, u64 b) { return c.nonzero(a & ~b); });
  add(t, "s_or_not1_b32", [](Scc c, u32 a, u32 b) { return c.nonzero(a | ~b); });
  add(t, "s_xnor_b32", [](Scc c, u32 a, u32 b) { return c.nonzero(~(a ^ b)); });
  add(t, "s_lshl_b32", [](Scc c, u32 a, u32 b) { return c.nonzero(a << (b & 31)); });
  add(t, "s_lshl_b64", [](Scc c, u64 a, u32 b) { return c.nonzero(a << (b & 63)); });
  add(t, "s_lshr_b32", [](Scc c, u32 a, u32 b) { return c.nonzero(a >> (b & 31)); });
  add(t, "s_lshr_b64", [](Scc c, u64 a, u32 b) { return c.nonzero(a >> (b & 63)); });
  add(t, "s_ashr_i32", [](Scc c, i32 a, u32 b) { return c.nonzero(a >> (b & 31)); });
  add(t, "s_ashr_i64", [](Scc c, i64 a, u32 b) { return c.nonzero(a >> (b & 63)); });
  add(t, "s_bfe_u32", [](Scc c, u32 a, u32 b) { return bit_field<u32>(c, a, b); });
  add(t, "s_bfe_i32", [](Scc c, i32 a, u32 b) { return bit_field<i32>(c, a, b); });
  add(t, "s_bfe_u64", [](Scc c, u64 a, u32 b) { return bit_field<u64>(c, a, b); });
  add(t, "s_bfe_i64", [](Scc c, i64 a, u32 b) { return bit_field<i64>(c, a, b); });
  add(t, "s_bfm_b32", [](Scc, u32 a, u32 b) { return ((1u << (a & 31)) - 1) << (b & 31); });
  add(t, "s_brev_b32", [](Scc, u32 a) {
    u32 reversed = 0;
    for (int bit = 0; bit < 32; ++bit) reversed |= (a >> bit & 1) << (31 - bit);
    return reversed;
  });
  add(t, "s_ctz_i32_b32", [](Scc, u32 a) { return a ? u32(__builtin_ctz(a)) : ~0u; });
  add(t, "s_clz_i32_u32", [](Scc, u32 a) { return a ? u32(__builtin_clz(a)) : ~0u; });
  add(t, "s_bcnt1_i32_b32", [](Scc c, u32 a) { return c.nonzero(u32(__builtin_popcount(a))); });
  add(t, "s_bitset1_b32", [](Scc, u32 bit, u32 old) { return old | 1u << (bit & 31); });
  add(t, "s_bitset0_b32", [](Scc, u32 bit, u32 old) { return old & ~(1u << (bit & 31)); });
}

template <class Relation>
void compare(OperationTable& t, const std::string& relation, Relation) {
  add(t, "s_cmp_" + relation + "_i32", [](Scc c, i32 a, i32 b) { c.value = Relation{}(a, b); });
  add(t, "s_cmp_" + relation + "_u32", [](Scc c, u32 a, u32 b) { c.value = Relation{}(a, b); });
}

void add_comparisons(OperationTable& t) {
  compare(t, "eq", [](auto a, auto b) { return a == b; });
  compare(t, "lg", [](auto a, auto b) { return a != b; });
  compare(t, "gt", [](auto a, auto b) { return a > b; });
  compare(t, "ge", [](auto a, auto b) { return a >= b; });
  compare(t, "lt", [](auto a, auto b) { return a < b; });
  compare(t, "le", [](auto a, auto b) { return a <= b; });
  add(t, "s_cmp_eq_u64", [](Scc c, u64 a, u64 b) { c.value = a == b; });
  add(t, "s_cmp_lg_u64", [](Scc c, u64 a, u64 b) { c.value = a != b; });
  add(t, "s_bitcmp0_b32", [](Scc c, u32 a, u32 b) { c.value = !(a >> (b & 31) & 1); });
  add(t, "s_bitcmp1_b32", [](Scc c, u32 a, u32 b) { c.value = a >> (b & 31) & 1; });
}

template <class Combine>
void save_exec(Wave& wave, const Instruction& i, Combine combine) {
  const u32 old = wave.scalars[kExec], source = u32(wave.source(i.op(1), false));
  wave.set_scalar(i.op(0).index, old);
  wave.set_scalar(kExec, combine(source, old));
  wave.scc = wave.scalars[kExec] != 0;
}

}  // namespace

void add_scalar(OperationTable& table) {
  add_arithmetic(table);
  add_moves(table);
  add_bits(table);
  add_comparisons(table);
  const auto add_save_exec = [&](const char* name, Execute execute) {
    table.add({.name = name, .unit = Unit::kScalar, .execute = execute, .writes_exec = true});
  };
  add_save_exec("s_and_saveexec_b32", [](Wave& wave, const Instruction& i) {
    save_exec(wave, i, [](u32 a, u32 exec) { return a & exec; });
  });
  add_save_exec("s_or_saveexec_b32", [](Wave& wave, const Instruction& i) {
    save_exec(wave, i, [](u32 a, u32 exec) { return a | exec; });
  });
  add_save_exec("s_and_not1_saveexec_b32", [](Wave& wave, const Instruction& i) {
    save_exec(wave, i, [](u32 a, u32 exec) { return a & ~exec; });
  });
}

}  // namespace mxgemm::emulator::gfx1250
