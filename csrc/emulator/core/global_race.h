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
  // A byte's writer: 0 for none, else the cluster's number modulo 65535, plus 1. Two clusters of
  // one name are taken for one.
  using Writer = uint16_t;

  struct Shadow {
    uint64_t base, size;
    Writer* writers;  // per byte; pages that nobody wrote cost nothing
    std::unique_ptr<std::atomic<bool>> written;
  };

  static void check(Writer own, Writer found, const Instruction& instruction, uint64_t address,
                    bool write);

  std::vector<Shadow> shadows_;
};

}  // namespace mxgemm::emulator
