// Element-by-element vector instructions from one lambda on one lane's values.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "gfx1250/architecture.h"

namespace mxgemm::emulator::gfx1250 {

// One lane's sources as pointers for operand `i`: the register itself, or `buffer` filled with the
// broadcast value.
const uint32_t* fetch(Wave& wave, const Operand& operand, uint32_t* buffer);

// Writes `values` to the lanes that EXEC enables.
void commit(Wave& wave, const Operand& operand, const uint32_t* values);

void execute_lanes(Wave& wave, const Instruction& instruction);

template <class T>
T from_bits(uint32_t bits) {
  if constexpr (std::is_same_v<T, float>)
    return std::bit_cast<float>(bits);
  else
    return static_cast<T>(bits);
}

inline uint32_t to_bits(float value) { return std::bit_cast<uint32_t>(value); }
inline uint32_t to_bits(uint32_t value) { return value; }
inline uint32_t to_bits(int32_t value) { return static_cast<uint32_t>(value); }

template <class F, class R, class A>
void each_lane(uint32_t* d, const uint32_t* a, const uint32_t*, const uint32_t*, R (*)(A)) {
  for (int i = 0; i < kLanes; ++i) d[i] = to_bits(F{}(from_bits<A>(a[i])));
}
template <class F, class R, class A, class B>
void each_lane(uint32_t* d, const uint32_t* a, const uint32_t* b, const uint32_t*, R (*)(A, B)) {
  for (int i = 0; i < kLanes; ++i) d[i] = to_bits(F{}(from_bits<A>(a[i]), from_bits<B>(b[i])));
}
template <class F, class R, class A, class B, class C>
void each_lane(uint32_t* d, const uint32_t* a, const uint32_t* b, const uint32_t* c,
               R (*)(A, B, C)) {
  for (int i = 0; i < kLanes; ++i)
    d[i] = to_bits(F{}(from_bits<A>(a[i]), from_bits<B>(b[i]), from_bits<C>(c[i])));
}

template <class F>
void lanes_of(uint32_t* d, const uint32_t* a, const uint32_t* b, const uint32_t* c,
              const Instruction&) {
  each_lane<F>(d, a, b, c, +F{});
}

enum LaneKind {
  kInteger,
  kFloating,
  kTranscendental
};  // the latter two allow source negation and absolute value

template <class F>
void add_lanes(OperationTable& table, const char* name, F, LaneKind kind = kInteger) {
  table.add(
      {name, Unit::kVector, execute_lanes, lanes_of<F>, kind != kInteger, kind == kTranscendental});
}

}  // namespace mxgemm::emulator::gfx1250
