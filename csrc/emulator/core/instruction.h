// One decoded instruction, as the executor sees it: what to run and on which operands, nothing of
// how it was encoded.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mxgemm::emulator {

class Wave;
struct Instruction;

enum class Kind : uint8_t { kNone, kVector, kScalar, kConstant };

enum Role : uint8_t { kIgnored = 0, kRead = 1, kWrite = 2 };

enum SourceModifier : uint8_t { kNegate = 1, kAbsolute = 2 };

// `words` consecutive 32-bit registers from `index`, or a constant (`value`, up to 64 bits).
struct Operand {
  Kind kind = Kind::kNone;
  uint8_t role = kIgnored;
  uint8_t words = 1;
  uint8_t modifiers = 0;
  uint16_t index = 0;
  uint64_t value = 0;
};

struct RegisterRange {
  uint16_t first;
  uint16_t count;
};

// Which unit an instruction keeps busy; the counters and the hazard rules ask for nothing else.
enum class Unit : uint8_t {
  kControl,
  kScalar,
  kVector,
  kMatrix,
  kLocal,
  kGlobal,
  kScalarMemory,
  kTensor
};

using Execute = void (*)(Wave&, const Instruction&);
// out, a, b, c: one 32-bit value per lane.
using LaneFunction = void (*)(uint32_t*, const uint32_t*, const uint32_t*, const uint32_t*,
                              const Instruction&);

struct Operation {
  std::string name;
  Unit unit;
  Execute execute;
  LaneFunction lanes =
      nullptr;            // of an element-by-element operation, so that it can be half of a pair
  bool floating = false;  // sources may be negated or made absolute
  bool transcendental =
      false;  // runs in a pipe of its own, out of order with the other vector instructions
  bool all_lanes = false;    // reads every lane, whatever EXEC says
  bool writes_exec = false;  // besides its operands
};

constexpr int kMaxOperands = 8;
constexpr int kMaxModifiers = 20;

struct Instruction {
  const Operation* operation = nullptr;
  uint32_t pc = 0;      // index in the program
  uint32_t target = 0;  // of a branch
  int num_operands = 0;
  Operand operand[kMaxOperands];
  int64_t modifier[kMaxModifiers] = {};  // by the architecture's own enumeration
  std::string text;
  std::string static_hazard;            // a rule that the instruction breaks whatever the state is
  std::unique_ptr<Instruction> second;  // the other half of a dual-issue pair

  // Of both halves, for the register checks.
  std::vector<RegisterRange> vector_reads, vector_writes, scalar_reads, scalar_writes;

  const Operand& op(int i) const { return operand[i]; }
  void collect_ranges();
};

}  // namespace mxgemm::emulator
