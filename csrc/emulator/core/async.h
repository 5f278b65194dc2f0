// An operation that outlives its instruction: a memory access or a transfer, counted until a wait
// proves it complete.
#pragma once

#include <cstdint>
#include <vector>

#include "core/instruction.h"
#include "core/race.h"

namespace mxgemm::emulator {

struct Segment {
  uint32_t first, bytes;
};

class AsyncOperation {
 public:
  virtual ~AsyncOperation() = default;

  // Moves the data. The timing mode decides when, between issue and the wait.
  virtual void perform(Wave& wave) = 0;
  // The LDS bytes that it touches, appended to `segments`.
  virtual void lds_segments(std::vector<Segment>& segments) const { (void)segments; }
  // Gives the object back to its pool.
  virtual void recycle() { delete this; }

  bool lds_conflict(const AsyncOperation& other) const;

  const Instruction* instruction = nullptr;
  Kind file = Kind::kNone;  // of the destination registers, if there are any
  uint16_t first = 0, count = 0;
  uint64_t active =
      ~uint64_t(0);  // lanes whose destination registers it writes; the others keep theirs
  bool performed = false;
  bool lds_reads = false, lds_writes = false;
  uint32_t lds_first = 0, lds_end = 0;  // bounds of the segments
  uint32_t issue_epoch = 0;
  uint64_t issue_tick = 0;
  uint64_t sequence = 0;  // by the architecture: which of the wave's memory instructions this is
  SharedClock known;      // at issue
};

}  // namespace mxgemm::emulator
