#include "core/workgroup.h"

#include <algorithm>
#include <cstring>

namespace mxgemm::emulator {
namespace {

constexpr int kWorkgroupBarrier = 0;
constexpr uint32_t kLongestTurn = 40;  // instructions of one wave before another may be picked
constexpr uint8_t kUnwritten = 0xFF;

uint32_t product(const std::array<uint32_t, 3>& extent) {
  return extent[0] * extent[1] * extent[2];
}

uint64_t mix(uint64_t x) {  // splitmix64's finalizer
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace

void Counters::add(const Counters& other) {
  if (executed.size() < other.executed.size()) executed.resize(other.executed.size());
  for (size_t i = 0; i < other.executed.size(); ++i) executed[i] += other.executed[i];
  instructions += other.instructions;
  lds_read_bytes += other.lds_read_bytes;
  lds_written_bytes += other.lds_written_bytes;
  lds_cycles += other.lds_cycles;
  lds_conflict_cycles += other.lds_conflict_cycles;
  tensor_load_bytes += other.tensor_load_bytes;
  tensor_store_bytes += other.tensor_store_bytes;
  global_read_bytes += other.global_read_bytes;
  global_written_bytes += other.global_written_bytes;
  lds_high_water = std::max(lds_high_water, other.lds_high_water);
  barriers += other.barriers;
}

Workgroup::Workgroup(Cluster& cluster, std::array<uint32_t, 3> id, uint32_t first_wave)
    : cluster(cluster), id(id), first_wave(first_wave) {
  const LaunchSettings& settings = cluster.settings;
  lds.assign(settings.lds_bytes, kUnwritten);
  if (settings.detect_races) races = std::make_unique<RaceDetector>(settings.lds_bytes, first_wave);
  const uint32_t lanes = cluster.program.architecture->lanes;
  const uint32_t num_waves = (product(settings.block) + lanes - 1) / lanes;
  for (uint32_t i = 0; i < num_waves; ++i)
    waves.push_back(std::make_unique<Wave>(*this, int(i), int(first_wave + i)));
}

uint8_t* Workgroup::lds_at(uint32_t address, uint32_t bytes) {
  if (address > lds.size() || bytes > lds.size() - address)
    throw Fault("access",
                format("LDS access of %u bytes at 0x%x, the workgroup has 0x%zx", bytes, address,
                       lds.size()),
                format("LDS bytes [0x%x, 0x%x)", address, address + bytes));
  return lds.data() + address;
}

void Workgroup::poison_lds(uint32_t address, uint32_t bytes) {
  std::memset(lds.data() + address, kUnwritten, bytes);
}

Cluster::Cluster(const Program& program, Memory& memory, const LaunchSettings& settings,
                 const Hooks* hooks, std::array<uint32_t, 3> id, uint32_t number,
                 GlobalRaces* races)
    : program(program),
      memory(memory),
      settings(settings),
      hooks(hooks),
      id(id),
      number_(number),
      races_(races),
      random_state_(
          mix(settings.seed ^ mix(id[0] ^ uint64_t{id[1]} << 21 ^ uint64_t{id[2]} << 42))) {
  counters.executed.resize(program.code.size());
  const uint32_t lanes = program.architecture->lanes;
  const uint32_t waves_each = (product(settings.block) + lanes - 1) / lanes;
  for (uint32_t z = 0; z < settings.cluster[2]; ++z)
    for (uint32_t y = 0; y < settings.cluster[1]; ++y)
      for (uint32_t x = 0; x < settings.cluster[0]; ++x) {
        const std::array<uint32_t, 3> workgroup_id = {id[0] * settings.cluster[0] + x,
                                                      id[1] * settings.cluster[1] + y,
                                                      id[2] * settings.cluster[2] + z};
        workgroups.push_back(std::make_unique<Workgroup>(*this, workgroup_id,
                                                         uint32_t(workgroups.size()) * waves_each));
      }
  for (auto& workgroup : workgroups)
    for (auto& wave : workgroup->waves) waves_.push_back(wave.get());
  arrived_.assign(workgroups.size(), std::vector<bool>(waves_each, false));
  arrived_.emplace_back(workgroups.size(), false);
  arriving_.assign(arrived_.size(), Clock(waves_.size(), 0));
  for (Wave* wave : waves_) {
    wave->known = std::make_shared<Clock>(waves_.size(), 0);
    program.architecture->start_wave(*wave);
  }
}

uint32_t Cluster::random(uint32_t bound) {
  random_state_ = random_state_ * 6364136223846793005ull + 1442695040888963407ull;
  return uint32_t((uint64_t(uint32_t(random_state_ >> 32)) * bound) >> 32);
}

std::vector<Wave*> Cluster::members(int barrier, Workgroup* workgroup) {
  if (barrier != kWorkgroupBarrier) return waves_;
  std::vector<Wave*> result;
  for (auto& wave : workgroup->waves) result.push_back(wave.get());
  return result;
}

void Cluster::arrive(Wave& wave, int barrier) {
  const bool own = barrier == kWorkgroupBarrier;
  const size_t workgroup = wave.workgroup.first_wave / wave.workgroup.waves.size();
  const size_t slot = own ? workgroup : workgroups.size();
  const size_t member = own ? size_t(wave.index) : workgroup;
  if (arrived_[slot][member])
    throw Fault("barrier",
                own ? "a wave signalled the barrier twice before it completed"
                    : "a workgroup signalled the cluster barrier twice before it completed",
                "", "s_barrier_wait");
  arrived_[slot][member] = true;
  for (size_t i = 0; i < arriving_[slot].size(); ++i)
    arriving_[slot][i] = std::max(arriving_[slot][i], (*wave.known)[i]);
  if (settings.trace)
    events.push_back(
        {tick, tick, 0, uint32_t(wave.index_in_cluster), wave.pc, uint32_t(EventKind::kSignal)});
  complete_if_all_arrived(barrier, &wave.workgroup);
}

void Cluster::complete_if_all_arrived(int barrier, Workgroup* workgroup) {
  const bool own = barrier == kWorkgroupBarrier;
  const size_t slot = own ? workgroup->first_wave / workgroup->waves.size() : workgroups.size();
  for (size_t i = 0; i < arrived_[slot].size(); ++i) {
    bool gone =
        own ? workgroup->waves[i]->status == WaveStatus::kEnded
            : std::all_of(workgroups[i]->waves.begin(), workgroups[i]->waves.end(),
                          [](const auto& wave) { return wave->status == WaveStatus::kEnded; });
    if (!gone && !arrived_[slot][i]) return;
  }
  if (std::none_of(arrived_[slot].begin(), arrived_[slot].end(), [](bool one) { return one; }))
    return;
  std::fill(arrived_[slot].begin(), arrived_[slot].end(), false);
  auto clock = std::make_shared<Clock>(arriving_[slot]);
  std::fill(arriving_[slot].begin(), arriving_[slot].end(), 0);
  ++counters.barriers;
  for (Wave* wave : members(barrier, workgroup)) {
    wave->barrier_done[barrier] = true;
    wave->barrier_clock[barrier] = clock;
    if (wave->status == WaveStatus::kAtBarrier && wave->waiting_for == barrier)
      wave->status = WaveStatus::kReady;
  }
}

void Cluster::end_wave(Wave& wave) {
  wave.drain();
  wave.status = WaveStatus::kEnded;
  if (settings.trace)
    events.push_back(
        {tick, tick, 0, uint32_t(wave.index_in_cluster), wave.pc, uint32_t(EventKind::kEnd)});
  if (hooks && hooks->end) hooks->end(wave);
  for (int barrier = 0; barrier < kBarriers; ++barrier)
    complete_if_all_arrived(barrier, &wave.workgroup);
}

void Cluster::step(Wave& wave) {
  wave.current = wave.pc;
  if (wave.pc >= program.code.size())
    throw Fault("control", "execution ran past the last instruction");
  const Instruction& instruction = *program.code[wave.pc];
  if (hooks && hooks->instruction) hooks->instruction(wave, instruction);
  if (settings.check_registers) {
    if (!instruction.static_hazard.empty()) throw Fault("encoding", instruction.static_hazard);
    wave.check_registers(instruction);
    program.architecture->before(wave, instruction);
  }
  ++counters.executed[wave.pc];
  if (settings.trace)
    events.push_back(
        {tick, tick, 0, uint32_t(wave.index_in_cluster), wave.pc, uint32_t(EventKind::kIssue)});
  ++tick;
  const uint32_t pc = wave.pc++;
  instruction.operation->execute(wave, instruction);
  if (wave.status == WaveStatus::kAtBarrier) {
    wave.pc = pc;  // the wait is executed again when the barrier has completed
    --counters.executed[pc];
    --tick;
    if (settings.trace) events.pop_back();
  } else if (wave.status == WaveStatus::kEnded) {
    wave.pc = pc;
    end_wave(wave);
  }
}

void Cluster::run(const std::atomic<bool>& stop) {
  if (hooks && hooks->start)
    for (Wave* wave : waves_) hooks->start(*wave);
  std::vector<Wave*> ready;
  for (;;) {
    ready.clear();
    bool live = false;
    for (Wave* wave : waves_) {
      if (wave->status == WaveStatus::kReady) ready.push_back(wave);
      live |= wave->status != WaveStatus::kEnded;
    }
    if (!live) break;
    if (stop.load(std::memory_order_relaxed)) return;
    if (ready.empty()) deadlock(waves_);
    Wave& wave = *ready[random(uint32_t(ready.size()))];
    const uint32_t turn = 1 + random(kLongestTurn);
    try {
      if (settings.timing == Timing::kRandom) wave.perform_some();
      for (uint32_t i = 0; i < turn && wave.status == WaveStatus::kReady; ++i) {
        if (tick >= settings.max_instructions)
          throw Fault("limit", format("%llu instructions executed and the kernel has not ended",
                                      (unsigned long long)tick));
        step(wave);
      }
    } catch (Fault& fault) {
      if (fault.pc < 0) fault.pc = std::min<uint64_t>(wave.current, program.code.size() - 1);
      fault.wave = wave.index;
      for (int i = 0; i < 3; ++i) fault.workgroup[i] = wave.workgroup.id[i];
      throw;
    }
  }
  counters.instructions = tick;
}

void Cluster::deadlock(const std::vector<Wave*>& waves) {
  std::string where;
  const Wave* first = nullptr;
  for (const Wave* wave : waves)
    if (wave->status == WaveStatus::kAtBarrier) {
      if (!first) first = wave;
      if (where.size() < 300) where += format(" %d at pc %u,", wave->index_in_cluster, wave->pc);
    }
  where.pop_back();
  Fault fault("deadlock", "every live wave waits at a barrier that cannot complete: wave" + where,
              "", "s_barrier_signal by another wave");
  fault.pc = first->pc;
  fault.wave = first->index;
  for (int i = 0; i < 3; ++i) fault.workgroup[i] = first->workgroup.id[i];
  throw fault;
}

}  // namespace mxgemm::emulator
