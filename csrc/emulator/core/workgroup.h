// Workgroups, the cluster they are in, its scheduler and barriers, and what a launch counts.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/architecture.h"
#include "core/global_race.h"
#include "core/instruction.h"
#include "core/memory.h"
#include "core/race.h"
#include "core/wave.h"

namespace mxgemm::emulator {

enum class Timing : uint8_t { kEarly, kLate, kRandom };

struct Program {
  Program() = default;
  Program(const Program&) = delete;

  const Architecture* architecture;
  std::vector<std::unique_ptr<Instruction>> code;
};

struct Counters {
  std::vector<uint64_t> executed;  // per pc
  uint64_t instructions = 0;
  uint64_t lds_read_bytes = 0, lds_written_bytes = 0;
  uint64_t lds_cycles = 0,
           lds_conflict_cycles = 0;  // of the LDS pipe; the second is what conflicts added
  uint64_t tensor_load_bytes = 0, tensor_store_bytes = 0;  // moved, without what was out of range
  uint64_t global_read_bytes = 0, global_written_bytes = 0;
  uint64_t lds_high_water = 0;  // one past the highest LDS byte touched
  uint64_t barriers = 0;

  void add(const Counters& other);
};

enum class EventKind : uint8_t { kIssue, kRetire, kSignal, kBarrier, kEnd };

struct Event {
  uint64_t tick;        // instructions issued so far in this cluster
  uint64_t issue_tick;  // of a retired operation
  uint32_t workgroup;   // linear
  uint32_t wave;
  uint32_t pc;
  uint32_t kind;
};

struct LaunchSettings {
  std::array<uint32_t, 3> block, cluster;
  uint64_t kernarg = 0;
  uint32_t lds_bytes = 0;
  uint32_t scratch_bytes = 0;  // per lane
  uint32_t vector_registers = 0;
  uint32_t workitem_id_dimensions = 1;
  Timing timing = Timing::kLate;
  uint64_t seed = 0;
  uint64_t max_instructions = 0;  // per cluster
  bool detect_races = true;
  bool check_registers = true;
  bool trace = false;
  bool count_conflicts = true;
};

// Called single-threaded with the wave as it is; see Machine.hook.
struct Hooks {
  std::function<void(Wave&, const Instruction&)> instruction, barrier, transfer;
  std::function<void(Wave&)> start, end;
};

class Cluster;

class Workgroup {
 public:
  Workgroup(Cluster& cluster, std::array<uint32_t, 3> id, uint32_t first_wave);

  uint8_t* lds_at(uint32_t address, uint32_t bytes);  // a Fault "access" outside
  void poison_lds(uint32_t address, uint32_t bytes);

  Cluster& cluster;
  const std::array<uint32_t, 3> id;
  const uint32_t first_wave;
  std::vector<uint8_t> lds;
  std::unique_ptr<RaceDetector> races;
  std::vector<std::unique_ptr<Wave>> waves;
};

// The workgroups that are resident together; one, unless the launch asks for clusters.
class Cluster {
 public:
  // `number`: among the clusters of the launch, whose races are looked for if `races` is given.
  Cluster(const Program& program, Memory& memory, const LaunchSettings& settings,
          const Hooks* hooks, std::array<uint32_t, 3> id, uint32_t number, GlobalRaces* races);

  void run(const std::atomic<bool>& stop);
  void arrive(Wave& wave, int barrier);
  uint32_t random(uint32_t bound);
  // The host address of global memory that `instruction` reads or writes.
  uint8_t* global_at(const Instruction& instruction, uint64_t address, uint64_t bytes, bool write) {
    uint8_t* data = memory.at(address, bytes, write);
    if (races_) races_->access(number_, instruction, address, bytes, write);
    return data;
  }

  const Program& program;
  Memory& memory;
  const LaunchSettings& settings;
  const Hooks* hooks;
  const std::array<uint32_t, 3> id;
  std::vector<std::unique_ptr<Workgroup>> workgroups;
  Counters counters;
  std::vector<Event> events;
  uint64_t tick = 0;

 private:
  void step(Wave& wave);
  void end_wave(Wave& wave);
  void complete_if_all_arrived(int barrier, Workgroup* workgroup);
  std::vector<Wave*> members(int barrier, Workgroup* workgroup);
  [[noreturn]] void deadlock(const std::vector<Wave*>& waves);

  const uint32_t number_;
  GlobalRaces* const races_;
  std::vector<Wave*> waves_;
  std::vector<std::vector<bool>>
      arrived_;  // [workgroup] by wave, then [last] the cluster by workgroup
  std::vector<Clock> arriving_;
  uint64_t random_state_;
};

}  // namespace mxgemm::emulator
