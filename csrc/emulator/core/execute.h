// Runs a launch: its clusters over threads, one result.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "core/fault.h"
#include "core/workgroup.h"

namespace mxgemm::emulator {

struct LaunchResult {
  Counters counters;
  std::vector<Event> events;
  std::optional<Fault> fault;  // the first in cluster order among those that happened
};

// `clusters`: the ids to run. Hooks run only with one thread.
LaunchResult execute(const Program& program, Memory& memory, const LaunchSettings& settings,
                     const Hooks* hooks, const std::vector<std::array<uint32_t, 3>>& clusters,
                     int threads);

}  // namespace mxgemm::emulator
