// Which cluster of a launch wrote which byte of global memory. Nothing orders the clusters of a
// launch, so one that reads or writes what another has written relies on luck.
//
// Reads are not kept, so a read that comes before the other cluster's write is not found; what one
// cluster's waves do to one another is not looked at either.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/instruction.h"
#include "core/memory.h"

namespace mxgemm::emulator {

class GlobalRaces {
 public:
  explicit GlobalRaces(const Memory& memory);
  ~GlobalRaces();
  GlobalRaces(const GlobalRaces&) = delete;

  // A Fault "race" if a cluster other than `cluster` wrote any of these bytes, which are inside one
  // region.
  void access(uint32_t cluster, const Instruction& instruction, uint64_t address, uint64_t bytes,
              bool write);

 private:
  struct Shadow {
    uint64_t base, size;
    uint32_t* writers;  // per byte, number of the cluster + 1; pages that nobody wrote cost nothing
    std::unique_ptr<std::atomic<bool>> written;
  };

  std::vector<Shadow> shadows_;
};

}  // namespace mxgemm::emulator
