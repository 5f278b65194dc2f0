// What the hardware does not check for the program: register distances after a matrix operation,
// the two interlocks that expert scheduling turns off, EXEC at a matrix operation, alignment.
// Sources: CDNA5 ISA guide, sections on WMMA dependencies and on the DEPCTR counters.
#include "core/fault.h"
#include "gfx1250/architecture.h"

namespace mxgemm::emulator::gfx1250 {
namespace {

constexpr int kFormatF4 = 4;
constexpr int kFastToMatrix = 2, kFastToVector = 1;  // both operands FP4, 16x16x128
constexpr int kSlowToMatrix = 4, kSlowToVector = 3;  // every other scaled operation
constexpr unsigned kScaleRegisters = 256;
constexpr uint64_t kLongestDistance = 16;

bool overlap(RegisterRange a, RegisterRange b) {
  return a.first < b.first + b.count && b.first < a.first + a.count;
}

RegisterRange range(const Operand& operand) { return {operand.index, operand.words}; }

[[noreturn]] void too_close(const RecentMatrix& recent, RegisterRange registers, const char* use,
                            uint64_t have, int need) {
  throw Fault("matrix_distance",
              format("%s %llu vector instructions after the matrix operation at pc %u", use,
                     (unsigned long long)have, recent.pc),
              register_name('v', registers.first, registers.count),
              format("%d v_nop", int(need - have)));
}

void check_distance(State& s, const Instruction& instruction) {
  const bool matrix = instruction.operation->unit == Unit::kMatrix;
  for (const RecentMatrix& recent : s.recent) {
    const uint64_t between = s.vector_issued - recent.issued - 1;
    if (matrix) {
      if (between >= uint64_t(recent.to_matrix)) continue;
      for (int i : {1, 2, 4, 5}) {  // A, B and the scales
        if (i >= instruction.num_operands || instruction.op(i).kind != Kind::kVector) continue;
        if (overlap(recent.d, range(instruction.op(i))))
          too_close(recent, range(instruction.op(i)), "matrix source is an unfinished result,",
                    between, recent.to_matrix);
      }
      continue;
    }
    if (between >= uint64_t(recent.to_vector)) continue;
    for (RegisterRange read : instruction.vector_reads)
      if (overlap(recent.d, read))
        too_close(recent, read, "read of an unfinished result,", between, recent.to_vector);
    for (RegisterRange write : instruction.vector_writes)
      if (overlap(recent.d, write) || overlap(recent.a, write) || overlap(recent.b, write))
        too_close(recent, write, "overwrite of a register that is in use,", between,
                  recent.to_vector);
  }
}

void remember_matrix(State& s, const Instruction& instruction) {
  const bool fast = instruction.modifier[kFormatA] == kFormatF4 &&
                    instruction.modifier[kFormatB] == kFormatF4 && instruction.op(0).words == 8;
  s.recent.push_back({range(instruction.op(0)), range(instruction.op(1)), range(instruction.op(2)),
                      s.vector_issued, fast ? kFastToMatrix : kSlowToMatrix,
                      fast ? kFastToVector : kSlowToVector, instruction.pc});
}

State::VectorPipe vector_pipe(const Instruction& instruction) {
  if (instruction.operation->unit == Unit::kMatrix) return State::kMatrixPipe;
  return instruction.operation->transcendental ? State::kTranscendentalPipe : State::kMainPipe;
}

State::MemoryPipe memory_pipe(const Instruction& instruction) {
  return instruction.operation->unit == Unit::kLocal ? State::kLocalPipe : State::kGlobalPipe;
}

template <class Visit>
void each_register(const std::vector<RegisterRange>& ranges, Visit visit) {
  for (RegisterRange r : ranges)
    for (unsigned i = r.first; i < unsigned(r.first + r.count); ++i) visit(i);
}

// Some instruction's memory operation may not have read register i yet.
void check_memory_has_read(const State& s, unsigned i) {
  const State::Stamp read = s.last_memory_read[i];
  const State::Progress& progress = s.memory_reads[read.pipe];
  if (read.sequence > progress.proven)
    throw Fault("expert_wait",
                "overwrite of a register that a memory instruction may not have read yet",
                register_name('v', i, 1),
                format("s_wait_alu depctr_vm_vsrc(%llu)",
                       (unsigned long long)(progress.issued - read.sequence)));
}

void check_vector_is_done(const State& s, State::Stamp stamp, unsigned i, const char* what) {
  const State::Progress& progress = s.vector_results[stamp.pipe];
  if (stamp.sequence > progress.proven)
    throw Fault("expert_wait", what, register_name('v', i, 1),
                format("s_wait_alu depctr_va_vdst(%llu)",
                       (unsigned long long)(progress.issued - stamp.sequence)));
}

void expert_vector(const State& s, const Instruction& instruction) {
  each_register(instruction.vector_writes, [&](unsigned i) { check_memory_has_read(s, i); });
}

void expert_memory(const State& s, const Instruction& instruction) {
  constexpr const char* kUse =
      "a memory instruction uses a register whose vector result may not be written yet";
  constexpr const char* kOverwrite =
      "a load overwrites a register that a vector instruction may still use";
  each_register(instruction.vector_reads,
                [&](unsigned i) { check_vector_is_done(s, s.last_vector_write[i], i, kUse); });
  each_register(instruction.vector_writes, [&](unsigned i) {
    check_vector_is_done(s, s.last_vector_write[i], i, kOverwrite);
    check_vector_is_done(s, s.last_vector_read[i], i, kOverwrite);
    check_memory_has_read(s, i);
  });
}

void vector_issued(State& s, const Instruction& instruction) {
  const State::VectorPipe pipe = vector_pipe(instruction);
  // A scaled matrix operation is two instructions to the counter, the scales' and the product's.
  const uint64_t sequence = s.vector_results[pipe].issued += pipe == State::kMatrixPipe ? 2 : 1;
  each_register(instruction.vector_writes,
                [&](unsigned i) { s.last_vector_write[i] = {sequence, pipe}; });
  each_register(instruction.vector_reads,
                [&](unsigned i) { s.last_vector_read[i] = {sequence, pipe}; });
}

void memory_issued(State& s, const Instruction& instruction) {
  const State::MemoryPipe pipe = memory_pipe(instruction);
  const uint64_t sequence = ++s.memory_reads[pipe].issued;
  each_register(instruction.vector_reads,
                [&](unsigned i) { s.last_memory_read[i] = {sequence, pipe}; });
}

void track_translations(State& s, const Instruction& instruction) {
  const Unit unit = instruction.operation->unit;
  const bool scalar = unit == Unit::kScalarMemory, vector = unit == Unit::kGlobal;
  PendingTranslations& translations = s.translations;
  if (scalar || vector)
    translations.enter_group(scalar);
  else if (!(s.hardware_registers[kMode] & kReplayGroups))
    translations.drain();
  if (!vector) translations.check_overwrite(instruction);
  if (scalar) translations.add(instruction, 0);
  if (vector) translations.add(instruction, s.memory_reads[State::kGlobalPipe].issued + 1);
}

}  // namespace

void before(Wave& wave, const Instruction& instruction) {
  State& s = state(wave);
  const Unit unit = instruction.operation->unit;
  const bool vector = unit == Unit::kVector || unit == Unit::kMatrix;
  const bool memory = unit == Unit::kLocal || unit == Unit::kGlobal;
  track_translations(s, instruction);
  if (!vector && !memory) return;
  if (uint32_t(instruction.modifier[kMsb]) != s.msb)
    throw Fault("register_bank",
                format("the upper VGPR number bits are 0x%x here, the code before this instruction "
                       "in program order sets 0x%x",
                       s.msb, unsigned(instruction.modifier[kMsb])),
                "", "s_set_vgpr_msb on every path");
  if (unit == Unit::kMatrix && wave.scalars[kExec] != 0xFFFFFFFFu)
    throw Fault(
        "exec",
        format("EXEC must be all ones at a matrix operation, got 0x%08x", wave.scalars[kExec]),
        "exec_lo", "s_mov_b32 exec_lo, -1");
  if (unit == Unit::kLocal && instruction.operation->all_lanes && wave.scalars[kExec] == 0)
    throw Fault("exec", "a transposing load with EXEC zero is not known to run or to be skipped",
                "exec_lo", "a set bit of EXEC");
  if (vector) {
    ++s.vector_issued;
    if (!s.recent.empty()) {
      if (s.vector_issued - s.recent.front().issued > kLongestDistance)
        s.recent.erase(s.recent.begin());
      check_distance(s, instruction);
    }
    if (unit == Unit::kMatrix) remember_matrix(s, instruction);
    if (s.expert()) expert_vector(s, instruction);
    vector_issued(s, instruction);
  } else {
    if (s.expert()) expert_memory(s, instruction);
    memory_issued(s, instruction);
  }
}

// An operation that is complete has read its sources, and its address is translated.
void retired(Wave& wave, int counter, const AsyncOperation& operation) {
  State& s = state(wave);
  if (counter == kScalarMemoryCount) s.translations.complete_scalar();
  if (counter == kTensorCount || counter == kScalarMemoryCount) return;
  if (counter != kLocalCount) s.translations.complete_vector(operation.sequence);
  State::Progress& progress =
      s.memory_reads[counter == kLocalCount ? State::kLocalPipe : State::kGlobalPipe];
  if (operation.sequence > progress.proven) progress.proven = operation.sequence;
}

std::string static_check(const Instruction& instruction) {
  for (const Instruction* half = &instruction; half; half = half->second.get()) {
    if (half->modifier[kClamp] || half->modifier[kOutputMultiply])
      return "clamp and output multiply are not emulated";
    for (int i = 0; i < half->num_operands; ++i)
      if (half->operand[i].modifiers && !half->operation->floating)
        return "source negation and absolute value are not emulated for this instruction";
  }
  if (instruction.operation->unit != Unit::kMatrix) return "";
  for (int i = 0; i < instruction.num_operands; ++i) {
    const Operand& operand = instruction.op(i);
    if (operand.kind != Kind::kVector) continue;
    if (operand.words > 1 && operand.index % 2)
      return "matrix operands must start at an even register";
    if (i >= 4 && operand.index + operand.words > int(kScaleRegisters))
      return "scales must be in v0..v255";
  }
  return "";
}

}  // namespace mxgemm::emulator::gfx1250
