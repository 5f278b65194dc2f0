// Memory instructions whose addresses may not be translated yet.
//
// Where a translation is not at hand, the hardware lets the wave go on and later executes the
// memory instruction again, reading its registers again. So whatever such an instruction reads,
// addresses, stored data, EXEC, must stay as it is until the translation is proven. Nothing else of
// the replay can be seen: this class keeps what may still be read, in every timing mode.
//
// What proves a translation:
//  * s_wait_xcnt. Vector memory is translated in order, so a wait that leaves n outstanding proves
//    all but the last n; scalar memory is not, so only a wait for zero proves anything.
//  * Completion of the data: of a scalar load by a wait for zero; of a vector load or store, which
//    proves every vector memory instruction before it too.
//  * The hardware itself waits for all translations between scalar and vector memory, at a
//    barrier's signal and wait, at a branch, and where MODE or another hardware register is set.
//
// A vector memory instruction may overwrite what an earlier one reads, being behind it in order; a
// scalar load may not, but for its own address. The LDS is not translated, and a tensor transfer
// keeps a copy of its descriptor. The hardware's other mode, without MODE bit 25, waits before
// every instruction that is no scalar or vector memory access.
//
// Sources: LLVM's SIInsertWaitcnts (X_CNT), its test wait-xcnt.mir and AMDGPULowerVGPREncoding;
// ROCm/rocm-systems, emulation/rocjitsu/docs/memory-wait-diagnostics.md; ROCm/rocm-libraries,
// shared/stinkytofu, Gfx1250HazardPass. docs/emulator.md says where they differ.
#pragma once

#include <bitset>
#include <cstdint>
#include <vector>

#include "core/instruction.h"
#include "core/wave.h"

namespace mxgemm::emulator::gfx1250 {

class PendingTranslations {
 public:
  bool empty() const { return pending_.empty(); }

  // The next memory instruction is a scalar load, or is not: the hardware separates the two kinds.
  void enter_group(bool scalar);
  // `sequence` numbers the wave's vector memory instructions; 0 for a scalar load.
  void add(const Instruction& instruction, uint64_t sequence);
  // A Fault if `instruction` writes what a pending one may read again.
  void check_overwrite(const Instruction& instruction) const;

  void wait(uint32_t outstanding);  // s_wait_xcnt
  void complete_scalar();
  void complete_vector(uint64_t sequence);
  void drain();

 private:
  struct Pending {
    const Instruction* instruction;
    uint64_t sequence;
  };

  void release(size_t count);
  void protect(const Instruction& instruction);
  [[noreturn]] void fail(Kind file, unsigned number) const;

  bool scalar_ = false;           // the kind of all that are pending
  std::vector<Pending> pending_;  // in program order
  std::bitset<kMaxVectorRegisters> vectors_;
  std::bitset<kScalarRegisters> scalars_;
};

}  // namespace mxgemm::emulator::gfx1250
