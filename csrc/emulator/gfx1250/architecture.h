// gfx1250 (CDNA5, wave32): register numbers, counters, modifiers, and the state that only this
// architecture has. Source: AMD CDNA5 ISA reference guide, July 2026.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/architecture.h"
#include "core/wave.h"
#include "core/workgroup.h"
#include "gfx1250/translation.h"

namespace mxgemm::emulator::gfx1250 {

constexpr int kLanes = 32;
constexpr int kVcc = 106, kTtmp = 108, kNull = 124, kM0 = 125, kExec = 126;

enum Counter : int {
  kLoadCount,
  kStoreCount,
  kLocalCount,
  kScalarMemoryCount,
  kTensorCount,
  kAsyncCount
};

// Slots of Instruction::modifier; the names are those of architecture().modifiers, in this order.
enum Modifier : int {
  kOffset0,
  kOffset1,
  kTruthTable,
  kOpSel,
  kOpSelHi,
  kNegLo,
  kNegHi,
  kClamp,
  kOutputMultiply,
  kFormatA,
  kFormatB,
  kScaleRowA,
  kScaleRowB,
  kScaleFormatA,
  kScaleFormatB,
  kScaleOffset,
  kMsb,
};

enum HardwareRegister : int { kMode = 1, kSchedulingMode = 26, kClusterStatus = 28 };

constexpr uint32_t kReplayGroups = 1u << 25;  // of MODE: how address translations are replayed

// A scaled or plain matrix operation whose registers are still in use, counted in vector
// instructions.
struct RecentMatrix {
  RegisterRange d, a, b;
  uint64_t issued;  // the count of vector instructions then
  int to_matrix;    // vector instructions that must lie between it and a matrix operation reading D
                    // as A or B
  int to_vector;    // ... and a vector instruction that reads D or writes D, A or B
  uint32_t pc;
};

struct State : ArchitectureState {
  uint32_t msb = 0;
  std::array<uint32_t, 64> hardware_registers{};
  uint64_t vector_issued = 0;
  std::vector<RecentMatrix> recent;

  // Expert scheduling: which results are written and which sources read for certain. Each pipe is
  // in order, the pipes are not in order with one another; so after a wait that leaves n
  // outstanding, all but the last n of a pipe are proven.
  enum VectorPipe : uint8_t { kMainPipe, kTranscendentalPipe, kMatrixPipe, kVectorPipes };
  enum MemoryPipe : uint8_t { kLocalPipe, kGlobalPipe, kMemoryPipes };
  struct Progress {
    uint64_t issued = 0, proven = 0;
    void prove(uint64_t outstanding) {
      if (issued > outstanding && issued - outstanding > proven) proven = issued - outstanding;
    }
  };
  struct Stamp {
    uint64_t sequence = 0;
    uint8_t pipe = 0;
  };
  std::array<Progress, kVectorPipes> vector_results;
  std::array<Progress, kMemoryPipes> memory_reads;
  std::array<Stamp, kMaxVectorRegisters> last_vector_write{}, last_vector_read{},
      last_memory_read{};

  PendingTranslations translations;

  bool expert() const { return hardware_registers[kSchedulingMode] & 2; }
};

inline State& state(Wave& wave) { return static_cast<State&>(*wave.architecture); }

const Architecture& architecture();

void before(Wave& wave, const Instruction& instruction);
void retired(Wave& wave, int counter, const AsyncOperation& operation);
std::string static_check(const Instruction& instruction);

void add_control(OperationTable& table);
void add_scalar(OperationTable& table);
void add_vector(OperationTable& table);
void add_local(OperationTable& table);
void add_memory(OperationTable& table);
void add_tensor(OperationTable& table);
void add_matrix(OperationTable& table);

}  // namespace mxgemm::emulator::gfx1250
