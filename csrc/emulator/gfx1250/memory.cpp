// Scalar loads, global and scratch accesses of the vector memory path.
#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#include "core/fault.h"
#include "gfx1250/architecture.h"

namespace mxgemm::emulator::gfx1250 {
namespace {

using u32 = uint32_t;
using u64 = uint64_t;

constexpr int kMaxWords = 4;

// ------------------------------------------------------------------------------------------------
// scalar loads

class ScalarLoad : public AsyncOperation {
 public:
  void perform(Wave& wave) override {
    const uint8_t* source = wave.workgroup.cluster.global_at(*instruction, address, bytes, false);
    wave.workgroup.cluster.counters.global_read_bytes += bytes;
    for (u32 at = 0; at < bytes; at += 4) {
      u32 value = 0;
      std::memcpy(&value, source + at, std::min<u32>(4, bytes - at));
      if (sign) value = u32(int32_t(value << (32 - 8 * bytes)) >> (32 - 8 * bytes));
      wave.set_scalar(first + at / 4, value);
    }
  }
  u64 address = 0;
  u32 bytes = 0;
  bool sign = false;
};

// A load of several registers that is not aligned to its size may come in parts. Where one part
// must be loaded again, its address must be there still.
void check_own_address(const Wave& wave, const Instruction& i, const ScalarLoad& load) {
  const u64 aligned = std::bit_ceil(load.bytes);
  if (load.count == 1 || load.address % aligned == 0) return;
  if (!wave.workgroup.cluster.settings.check_registers) return;
  for (const Operand* source : {&i.op(1), &i.op(2)})
    if (source->kind == Kind::kScalar && source->index < load.first + load.count &&
        load.first < source->index + source->words)
      throw Fault("encoding",
                  format("a scalar load into its own address must be aligned to %llu bytes, is at "
                         "0x%llx",
                         (unsigned long long)aligned, (unsigned long long)load.address));
}

template <int bytes, bool sign>
void scalar_load(Wave& wave,
                 const Instruction& i) {  // D, base pair, offset register or constant, plus offset
  auto load = std::make_unique<ScalarLoad>();
  load->instruction = &i;
  load->file = Kind::kScalar;
  load->first = i.op(0).index;
  load->count = (bytes + 3) / 4;
  load->bytes = bytes;
  load->sign = sign;
  load->address =
      wave.scalar64(i.op(1).index) + wave.source(i.op(2), false) + u64(i.modifier[kOffset0]);
  check_own_address(wave, i, *load);
  wave.issue(kScalarMemoryCount, load.release());
}

// ------------------------------------------------------------------------------------------------
// global memory

class GlobalAccess : public AsyncOperation {
 public:
  void perform(Wave& wave) override {
    Cluster& cluster = wave.workgroup.cluster;
    const int words = (bytes + 3) / 4;
    for (u32 rest = exec; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      uint8_t* memory = cluster.global_at(*instruction, address[lane], u64(bytes), is_store);
      u32 value[kMaxWords] = {};
      if (is_store) {
        for (int w = 0; w < words; ++w) value[w] = data[w][lane];
        std::memcpy(memory, value, size_t(bytes));
        continue;
      }
      std::memcpy(value, memory, size_t(bytes));
      if (sign) value[0] = u32(int32_t(value[0] << (32 - 8 * bytes)) >> (32 - 8 * bytes));
      for (int w = 0; w < words; ++w) wave.vector(first + w)[lane] = value[w];
    }
    const u64 moved = u64(bytes) * __builtin_popcount(exec);
    (is_store ? cluster.counters.global_written_bytes : cluster.counters.global_read_bytes) +=
        moved;
    if (!is_store) wave.mark_vector_written(first, count, exec);
  }
  bool is_store = false, sign = false;
  int bytes = 0;
  u32 exec = 0;
  u64 address[kLanes];
  u32 data[kMaxWords][kLanes];
};

// vaddr: a 64-bit address pair, or a 32-bit offset when a scalar base is given.
void global_addresses(Wave& wave, const Instruction& i, const Operand& vaddr, const Operand& saddr,
                      int bytes, u64* address) {
  const u32* low = wave.vector(vaddr.index);
  const int64_t offset = i.modifier[kOffset0];
  const bool based = saddr.kind == Kind::kScalar;
  const u64 base = based ? wave.scalar64(saddr.index) : 0;
  const int64_t step = i.modifier[kScaleOffset] ? bytes : 1;
  for (int lane = 0; lane < kLanes; ++lane)
    address[lane] = based
                        ? base + u64(int64_t(int32_t(low[lane])) * step + offset)
                        : (low[lane] | u64(wave.vector(vaddr.index + 1)[lane]) << 32) + u64(offset);
}

template <int bytes, bool sign>
void global_load(Wave& wave, const Instruction& i) {
  auto* access = new GlobalAccess;
  access->instruction = &i;
  access->file = Kind::kVector;
  access->first = i.op(0).index;
  access->count = i.op(0).words;
  access->bytes = bytes;
  access->sign = sign;
  access->active = access->exec = wave.scalars[kExec];
  access->sequence = state(wave).memory_reads[State::kGlobalPipe].issued;
  global_addresses(wave, i, i.op(1), i.op(2), bytes, access->address);
  wave.issue(kLoadCount, access);
}

template <int bytes>
void global_store(Wave& wave, const Instruction& i) {
  auto* access = new GlobalAccess;
  access->instruction = &i;
  access->is_store = true;
  access->bytes = bytes;
  access->active = access->exec = wave.scalars[kExec];
  access->sequence = state(wave).memory_reads[State::kGlobalPipe].issued;
  global_addresses(wave, i, i.op(0), i.op(2), bytes, access->address);
  for (int w = 0; w < (bytes + 3) / 4; ++w)
    std::memcpy(access->data[w], wave.vector(i.op(1).index + w), sizeof access->data[0]);
  wave.issue(kStoreCount, access);
}

// ------------------------------------------------------------------------------------------------
// scratch (spills)

// Nobody but its wave sees scratch, and the memory path takes a wave's accesses in order: a load
// finds what the stores before it wrote, without a wait between. So memory is read and written at
// issue; what comes late is the loaded registers.
class ScratchAccess : public AsyncOperation {
 public:
  void exchange(Wave& wave) {
    for (u32 rest = exec; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      for (int w = 0; w < words; ++w) {
        uint8_t* slot = wave.scratch.data() + (size_t(lane) * lane_bytes + offset + 4 * w);
        if (is_store)
          std::memcpy(slot, &data[w][lane], 4);
        else
          std::memcpy(&data[w][lane], slot, 4);
      }
    }
  }
  void perform(Wave& wave) override {
    if (is_store) return;
    for (u32 rest = exec; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      for (int w = 0; w < words; ++w) wave.vector(first + w)[lane] = data[w][lane];
    }
    wave.mark_vector_written(first, count, exec);
  }
  bool is_store = false;
  int words = 0;
  u32 exec = 0, offset = 0, lane_bytes = 0;
  u32 data[kMaxWords][kLanes];
};

ScratchAccess* scratch_access(Wave& wave, const Instruction& i, const Operand& vaddr,
                              const Operand& saddr, int words) {
  if (vaddr.kind == Kind::kVector)
    throw Fault("unsupported", "scratch access with a vector address");
  auto* access = new ScratchAccess;
  access->instruction = &i;
  access->words = words;
  access->active = access->exec = wave.scalars[kExec];
  access->sequence = state(wave).memory_reads[State::kGlobalPipe].issued;
  access->lane_bytes = wave.workgroup.cluster.settings.scratch_bytes;
  const int64_t offset =
      i.modifier[kOffset0] + (saddr.kind == Kind::kScalar ? wave.scalars[saddr.index] : 0);
  if (offset < 0 || offset + 4 * words > access->lane_bytes) {
    delete access;
    throw Fault("access", format("scratch access of %d bytes at %lld, a lane has %u", 4 * words,
                                 (long long)offset, wave.workgroup.cluster.settings.scratch_bytes));
  }
  access->offset = u32(offset);
  return access;
}

template <int words>
void scratch_load(Wave& wave, const Instruction& i) {
  ScratchAccess* access = scratch_access(wave, i, i.op(1), i.op(2), words);
  access->file = Kind::kVector;
  access->first = i.op(0).index;
  access->count = words;
  access->exchange(wave);
  wave.issue(kLoadCount, access);
}

template <int words>
void scratch_store(Wave& wave, const Instruction& i) {
  ScratchAccess* access = scratch_access(wave, i, i.op(0), i.op(2), words);
  access->is_store = true;
  for (int w = 0; w < words; ++w)
    std::memcpy(access->data[w], wave.vector(i.op(1).index + w), sizeof access->data[0]);
  access->exchange(wave);
  wave.issue(kStoreCount, access);
}

void nothing(Wave&, const Instruction&) {}

}  // namespace

void add_memory(OperationTable& table) {
  const auto scalar = [&](const char* name, Execute execute) {
    table.add({name, Unit::kScalarMemory, execute});
  };
  scalar("s_load_b32", scalar_load<4, false>);
  scalar("s_load_b64", scalar_load<8, false>);
  scalar("s_load_b96", scalar_load<12, false>);
  scalar("s_load_b128", scalar_load<16, false>);
  scalar("s_load_b256", scalar_load<32, false>);
  scalar("s_load_b512", scalar_load<64, false>);
  scalar("s_load_u8", scalar_load<1, false>);
  scalar("s_load_i8", scalar_load<1, true>);
  scalar("s_load_u16", scalar_load<2, false>);
  scalar("s_load_i16", scalar_load<2, true>);
  const auto global = [&](const char* name, Execute execute) {
    table.add({name, Unit::kGlobal, execute});
  };
  global("global_load_u8", global_load<1, false>);
  global("global_load_i8", global_load<1, true>);
  global("global_load_u16", global_load<2, false>);
  global("global_load_i16", global_load<2, true>);
  global("global_load_b32", global_load<4, false>);
  global("global_load_b64", global_load<8, false>);
  global("global_load_b96", global_load<12, false>);
  global("global_load_b128", global_load<16, false>);
  global("global_store_b8", global_store<1>);
  global("global_store_b16", global_store<2>);
  global("global_store_b32", global_store<4>);
  global("global_store_b64", global_store<8>);
  global("global_store_b96", global_store<12>);
  global("global_store_b128", global_store<16>);
  global("scratch_load_b32", scratch_load<1>);
  global("scratch_load_b64", scratch_load<2>);
  global("scratch_load_b96", scratch_load<3>);
  global("scratch_load_b128", scratch_load<4>);
  global("scratch_store_b32", scratch_store<1>);
  global("scratch_store_b64", scratch_store<2>);
  global("scratch_store_b96", scratch_store<3>);
  global("scratch_store_b128", scratch_store<4>);
  table.add({"global_prefetch_b8", Unit::kControl, nothing});
}

}  // namespace mxgemm::emulator::gfx1250
