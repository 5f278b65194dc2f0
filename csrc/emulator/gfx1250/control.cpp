// Program flow, waits, barriers, and instructions that only hint.
#include "core/fault.h"
#include "gfx1250/architecture.h"

namespace mxgemm::emulator::gfx1250 {
namespace {

constexpr int kWorkgroupBarrier = -1, kClusterBarrier = -3;

void nothing(Wave&, const Instruction&) {}

template <int counter>
void wait_counter(Wave& wave, const Instruction& i) {
  wave.wait(counter, uint32_t(i.op(0).value));
}

template <int first, int second>
void wait_two_counters(Wave& wave,
                       const Instruction& i) {  // loads or stores in [13:8], LDS in [5:0]
  wave.wait(first, uint32_t(i.op(0).value >> 8) & 63);
  wave.wait(second, uint32_t(i.op(0).value) & 63);
}

template <bool (*taken)(const Wave&)>
void branch(Wave& wave, const Instruction& i) {
  state(wave).translations.drain();
  if (taken(wave)) wave.pc = i.target;
}

bool always(const Wave&) { return true; }
bool scc0(const Wave& wave) { return !wave.scc; }
bool scc1(const Wave& wave) { return wave.scc; }
bool vccz(const Wave& wave) { return wave.scalars[kVcc] == 0; }
bool vccnz(const Wave& wave) { return wave.scalars[kVcc] != 0; }
bool execz(const Wave& wave) { return wave.scalars[kExec] == 0; }
bool execnz(const Wave& wave) { return wave.scalars[kExec] != 0; }

int barrier_slot(const Instruction& i) {
  const int id = int16_t(i.op(0).value);
  if (i.op(0).kind == Kind::kConstant && id == kWorkgroupBarrier) return 0;
  if (i.op(0).kind == Kind::kConstant && id == kClusterBarrier) return 1;
  throw Fault(
      "unsupported",
      format("barrier %d: only the workgroup's (-1) and the cluster's (-3) are emulated", id));
}

void call_barrier_hook(Wave& wave, const Instruction& i) {
  const Hooks* hooks = wave.workgroup.cluster.hooks;
  if (hooks && hooks->barrier) hooks->barrier(wave, i);
}

void barrier_signal(Wave& wave, const Instruction& i) {
  call_barrier_hook(wave, i);
  state(wave).translations.drain();
  wave.signal(barrier_slot(i));
}

void barrier_wait(Wave& wave, const Instruction& i) {
  state(wave).translations.drain();
  wave.wait_barrier(barrier_slot(i));
  if (wave.status == WaveStatus::kReady) call_barrier_hook(wave, i);
}

void end_program(Wave& wave, const Instruction&) { wave.status = WaveStatus::kEnded; }

struct Field {
  int id, offset, size;
  uint32_t mask() const { return size == 32 ? ~0u : ((1u << size) - 1); }
};

Field field(uint64_t immediate) {
  return {int(immediate & 63), int(immediate >> 6 & 31), int(immediate >> 11 & 31) + 1};
}

void write_field(Wave& wave, Field f, uint32_t value) {
  if (f.id == kMode && (f.mask() << f.offset & ~kReplayGroups))
    throw Fault("unsupported",
                format("s_setreg of MODE bits [%d:%d]", f.offset + f.size - 1, f.offset));
  state(wave).translations.drain();
  uint32_t& target = state(wave).hardware_registers[f.id];
  target = (target & ~(f.mask() << f.offset)) | (value & f.mask()) << f.offset;
}

void set_register_immediate(Wave& wave, const Instruction& i) {
  write_field(wave, field(i.op(0).value), uint32_t(i.op(1).value));
}

void set_register(Wave& wave, const Instruction& i) {
  write_field(wave, field(i.op(0).value), uint32_t(wave.source(i.op(1), false)));
}

void get_register(Wave& wave, const Instruction& i) {
  const Field f = field(i.op(1).value);
  if (f.id != kMode && f.id != kSchedulingMode && f.id != kClusterStatus)
    throw Fault("unsupported", format("s_getreg of hardware register %d", f.id));
  wave.set_scalar(i.op(0).index, state(wave).hardware_registers[f.id] >> f.offset & f.mask());
}

void set_msb(Wave& wave, const Instruction& i) {
  state(wave).translations.drain();
  state(wave).msb = uint32_t(i.op(0).value) & 0xFF;
}

void wait_translation(Wave& wave, const Instruction& i) {
  state(wave).translations.wait(uint32_t(i.op(0).value));
}

void wait_alu(Wave& wave, const Instruction& i) {
  constexpr uint64_t kNoResultWait = 15, kNoReadWait = 7;
  State& s = state(wave);
  const uint64_t results = i.op(0).value >> 12 & 15, reads = i.op(0).value >> 2 & 7;
  if (results != kNoResultWait)
    for (State::Progress& progress : s.vector_results) progress.prove(results);
  if (reads != kNoReadWait)
    for (State::Progress& progress : s.memory_reads) progress.prove(reads);
}

}  // namespace

void add_control(OperationTable& table) {
  const auto add = [&](const char* name, Execute execute) {
    table.add({name, Unit::kControl, execute});
  };
  for (const char* hint : {"s_nop", "s_delay_alu", "s_clause", "s_sleep", "s_setprio"})
    add(hint, nothing);
  add("s_wait_loadcnt", wait_counter<kLoadCount>);
  add("s_wait_storecnt", wait_counter<kStoreCount>);
  add("s_wait_dscnt", wait_counter<kLocalCount>);
  add("s_wait_kmcnt", wait_counter<kScalarMemoryCount>);
  add("s_wait_tensorcnt", wait_counter<kTensorCount>);
  add("s_wait_asynccnt", wait_counter<kAsyncCount>);
  add("s_wait_loadcnt_dscnt", wait_two_counters<kLoadCount, kLocalCount>);
  add("s_wait_storecnt_dscnt", wait_two_counters<kStoreCount, kLocalCount>);
  add("s_wait_alu", wait_alu);
  add("s_wait_xcnt", wait_translation);
  add("s_branch", branch<always>);
  add("s_cbranch_scc0", branch<scc0>);
  add("s_cbranch_scc1", branch<scc1>);
  add("s_cbranch_vccz", branch<vccz>);
  add("s_cbranch_vccnz", branch<vccnz>);
  add("s_cbranch_execz", branch<execz>);
  add("s_cbranch_execnz", branch<execnz>);
  add("s_barrier_signal", barrier_signal);
  add("s_barrier_wait", barrier_wait);
  add("s_endpgm", end_program);
  add("s_setreg_imm32_b32", set_register_immediate);
  add("s_setreg_b32", set_register);
  add("s_getreg_b32", get_register);
  add("s_set_vgpr_msb", set_msb);
}

}  // namespace mxgemm::emulator::gfx1250
