// One wave: registers, what is outstanding, what has been written, and its view of the other waves'
// progress.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/async.h"
#include "core/fault.h"
#include "core/instruction.h"

namespace mxgemm::emulator {

class Workgroup;
class Cluster;

constexpr int kMaxVectorRegisters = 1024;
constexpr int kScalarRegisters = 132;
constexpr int kMaxCounters = 8;
constexpr int kBarriers = 2;  // of the workgroup, of the cluster

// State that only one architecture has.
struct ArchitectureState {
  virtual ~ArchitectureState() = default;
};

enum class WaveStatus : uint8_t { kReady, kAtBarrier, kEnded };

class Wave {
 public:
  Wave(Workgroup& workgroup, int index, int index_in_cluster);

  // Registers.
  uint32_t* vector(int i) { return vectors_.data() + static_cast<size_t>(i) * lanes; }
  uint32_t scalar(int i) const { return scalars[i]; }
  uint64_t scalar64(int i) const {
    return scalars[i] | static_cast<uint64_t>(scalars[i + 1]) << 32;
  }
  void set_scalar(int i, uint32_t value);
  void set_scalar64(int i, uint64_t value);
  uint64_t exec() const;
  uint64_t all_lanes() const { return lanes == 64 ? ~0ull : (1ull << lanes) - 1; }
  // A scalar source: a register, a register pair or a constant.
  uint64_t source(const Operand& operand, bool wide) const;

  // The registers of `instruction` must hold defined values and must not be the target of an
  // outstanding load.
  void check_registers(const Instruction& instruction);
  void mark_vector_written(int first, int count, uint64_t mask);
  void mark_scalar_written(int first, int count);

  // Asynchronous operations.
  void issue(int counter, AsyncOperation* operation);
  void wait(int counter, uint32_t outstanding);
  void drain();
  size_t outstanding(int counter) const { return queues_[counter].size(); }
  void perform_some();  // random timing: a prefix of some queue
  template <class Visit>
  void each_outstanding(int counter, Visit visit) const {
    for (AsyncOperation* operation : queues_[counter]) visit(*operation);
  }

  // Barriers.
  void signal(int barrier);
  void wait_barrier(int barrier);

  Workgroup& workgroup;
  const int index;
  const int index_in_cluster;
  const int lanes;
  uint32_t pc = 0;       // of the next instruction
  uint32_t current = 0;  // of the one that is executing
  bool scc = false;
  WaveStatus status = WaveStatus::kReady;
  int waiting_for = -1;  // the barrier
  uint32_t epoch = 0;    // barrier arrivals so far
  SharedClock known;
  std::array<bool, kBarriers> barrier_done{};
  std::array<SharedClock, kBarriers> barrier_clock;
  std::array<uint32_t, kScalarRegisters> scalars{};
  std::unique_ptr<ArchitectureState> architecture;
  std::vector<uint8_t>
      scratch;  // private memory, [slot byte][lane] as dwords: see the architecture

 private:
  void retire(int counter);
  void record(const AsyncOperation& operation);
  void check_own_lds(int counter, const AsyncOperation& operation) const;
  void check_vector(const Instruction& instruction, RegisterRange range, bool reads);
  void check_scalar(const Instruction& instruction, RegisterRange range, bool reads);
  [[noreturn]] void fail_outstanding(Kind file, unsigned number, bool reads) const;

  std::vector<uint32_t> vectors_;
  std::array<std::vector<AsyncOperation*>, kMaxCounters> queues_;
  std::vector<uint64_t> vector_written_;  // lanes, per register
  std::bitset<kScalarRegisters> scalar_written_;
  std::bitset<kMaxVectorRegisters> vector_pending_;
  std::bitset<kScalarRegisters> scalar_pending_;
  int num_vector_pending_ = 0, num_scalar_pending_ = 0;

 public:
  ~Wave();
  Wave(const Wave&) = delete;
};

}  // namespace mxgemm::emulator
