// LDS loads and stores: per-lane addresses, counted by dscnt, executed in order within a wave.
// Source: CDNA5 ISA guide, section on local data share; 64 banks of 4 bytes. The lane maps of the
// transposing loads: docs/emulator.md, section "Transposing loads".
#include <algorithm>
#include <cstring>
#include <memory>

#include "core/fault.h"
#include "gfx1250/architecture.h"

namespace mxgemm::emulator::gfx1250 {
namespace {

using u32 = uint32_t;

constexpr int kMaxWords = 4;
constexpr u32 kBanks = 64, kBankBytes = 4, kPassBytes = kBanks * kBankBytes;

// How an instruction's bytes map to registers.
struct Shape {
  int bytes;             // per lane and address
  int addresses;         // 1 or 2
  int offset_unit;       // bytes that one step of offset0/1 means
  bool sign;             // of a value narrower than a register
  int element_bits = 0;  // of a transposing load, which all lanes make whatever EXEC says
  int alignment = 1;     // of the address
};

// A transposing load moves elements among lanes: the lane that reads what becomes element `element`
// of `lane`, and its place there.
struct Source {
  int lane, element;
};

Source transposed(int element_bits, int lane, int element) {
  switch (element_bits) {
    case 4:
      return {(element & 8) << 1 | (lane & 16) >> 1 | (element & 7), lane & 15};
    case 6:
      return {(element & 12) << 1 | (lane & 16) >> 2 | (element & 3), lane & 15};
    case 8:
      return {(lane & 16) | (element & 4) << 1 | (lane & 8) >> 1 | (element & 3), lane & 7};
    default:
      return {(lane & 24) | element, lane & 7};
  }
}

class LocalAccess : public AsyncOperation {
 public:
  static LocalAccess* take();
  void perform(Wave& wave) override;
  void lds_segments(std::vector<Segment>& segments) const override;
  void recycle() override;

  bool is_store = false;
  Shape shape{};
  u32 exec = 0;
  u32 address[2][kLanes];
  u32 data[2 * kMaxWords][kLanes];

 private:
  void perform_transposed(Wave& wave);
};

std::vector<std::unique_ptr<LocalAccess>>& pool() {
  static thread_local std::vector<std::unique_ptr<LocalAccess>> free_list;
  return free_list;
}

LocalAccess* LocalAccess::take() {
  auto& free_list = pool();
  if (free_list.empty()) return new LocalAccess;
  LocalAccess* access = free_list.back().release();
  free_list.pop_back();
  return access;
}

void LocalAccess::recycle() {
  known.reset();
  pool().emplace_back(this);
}

void LocalAccess::lds_segments(std::vector<Segment>& segments) const {
  for (int a = 0; a < shape.addresses; ++a)
    for (u32 rest = exec; rest; rest &= rest - 1) {
      const u32 first = address[a][__builtin_ctz(rest)];
      if (!segments.empty() && segments.back().first + segments.back().bytes == first)
        segments.back().bytes += u32(shape.bytes);
      else
        segments.push_back({first, u32(shape.bytes)});
    }
}

void LocalAccess::perform_transposed(Wave& wave) {
  constexpr size_t kRowBytes =
      kMaxWords * sizeof(u32) + sizeof(uint64_t);  // any element in 64 bits
  const int bits = shape.element_bits, elements = 8 * shape.bytes / bits;
  uint8_t read[kLanes][kRowBytes] = {};
  for (int lane = 0; lane < kLanes; ++lane)
    std::memcpy(read[lane], wave.workgroup.lds.data() + address[0][lane], size_t(shape.bytes));
  for (int lane = 0; lane < kLanes; ++lane) {
    uint8_t row[kRowBytes] = {};
    for (int element = 0; element < elements; ++element) {
      const Source source = transposed(bits, lane, element);
      const int from = source.element * bits, to = element * bits;
      uint64_t value, around;
      std::memcpy(&value, read[source.lane] + from / 8, sizeof value);
      std::memcpy(&around, row + to / 8, sizeof around);
      around |= (value >> from % 8 & ((1u << bits) - 1)) << to % 8;
      std::memcpy(row + to / 8, &around, sizeof around);
    }
    for (int w = 0; w < count; ++w)
      std::memcpy(wave.vector(first + w) + lane, row + w * sizeof(u32), sizeof(u32));
  }
  wave.mark_vector_written(first, count, exec);
}

void LocalAccess::perform(Wave& wave) {
  if (shape.element_bits) return perform_transposed(wave);
  uint8_t* lds = wave.workgroup.lds.data();
  const int words = (shape.bytes + 3) / 4;
  for (int a = 0; a < shape.addresses; ++a)
    for (u32 rest = exec; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      u32 value[kMaxWords] = {};
      if (is_store) {
        for (int w = 0; w < words; ++w) value[w] = data[a * words + w][lane];
        std::memcpy(lds + address[a][lane], value, size_t(shape.bytes));
        continue;
      }
      std::memcpy(value, lds + address[a][lane], size_t(shape.bytes));
      if (shape.sign)
        value[0] = u32(int32_t(value[0] << (32 - 8 * shape.bytes)) >> (32 - 8 * shape.bytes));
      for (int w = 0; w < words; ++w) wave.vector(first + a * words + w)[lane] = value[w];
    }
  if (!is_store) wave.mark_vector_written(first, count, exec);
}

// Passes of the LDS pipe: in each, the lanes that fill 256 bytes; every further dword in one bank
// costs one more.
struct Conflicts {
  u32 pattern[kLanes];
  u32 exec = 0;
  int bytes = 0;
  u32 cycles = 0, extra = 0;
};

void measure(Conflicts& c) {
  const u32 words = u32(c.bytes + 3) / 4,
            lanes_per_pass = std::max<u32>(1, std::min<u32>(kLanes, kBanks / words));
  c.cycles = c.extra = 0;
  for (u32 first = 0; first < kLanes; first += lanes_per_pass) {
    u32 seen[kBanks][kLanes], depth[kBanks] = {}, deepest = 0;
    for (u32 lane = first; lane < first + lanes_per_pass; ++lane) {
      if (!(c.exec >> lane & 1)) continue;
      for (u32 w = 0; w < words; ++w) {
        const u32 dword = c.pattern[lane] / kBankBytes + w, bank = dword % kBanks;
        if (std::find(seen[bank], seen[bank] + depth[bank], dword) != seen[bank] + depth[bank])
          continue;
        seen[bank][depth[bank]++] = dword;
        deepest = std::max(deepest, depth[bank]);
      }
    }
    if (deepest == 0) continue;
    c.cycles += deepest;
    c.extra += deepest - 1;
  }
}

// The pattern of one instruction seldom changes but for a multiple of 256 bytes, so its cost is
// remembered.
void count(Wave& wave, const Instruction& i, const LocalAccess& access) {
  Counters& counters = wave.workgroup.cluster.counters;
  const uint64_t bytes =
      uint64_t(access.shape.bytes) * access.shape.addresses * __builtin_popcount(access.exec);
  (access.is_store ? counters.lds_written_bytes : counters.lds_read_bytes) += bytes;
  if (!wave.workgroup.cluster.settings.count_conflicts || !access.exec) return;
  static thread_local std::vector<Conflicts> memory(4096);
  Conflicts& remembered = memory[i.pc % memory.size()];
  for (int a = 0; a < access.shape.addresses; ++a) {
    const u32 base = access.address[a][__builtin_ctz(access.exec)] & ~(kPassBytes - 1);
    u32 pattern[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
      pattern[lane] = access.exec >> lane & 1 ? access.address[a][lane] - base : 0;
    if (remembered.exec != access.exec || remembered.bytes != access.shape.bytes ||
        std::memcmp(remembered.pattern, pattern, sizeof pattern) != 0) {
      std::memcpy(remembered.pattern, pattern, sizeof pattern);
      remembered.exec = access.exec;
      remembered.bytes = access.shape.bytes;
      measure(remembered);
    }
    counters.lds_cycles += remembered.cycles;
    counters.lds_conflict_cycles += remembered.extra;
  }
}

void issue(Wave& wave, const Instruction& i, const Shape& shape, const Operand& address,
           const Operand* destination, const Operand* const* sources) {
  LocalAccess* access = LocalAccess::take();
  access->instruction = &i;
  access->shape = shape;
  access->is_store = sources != nullptr;
  access->active = access->exec = shape.element_bits ? u32(wave.all_lanes()) : wave.scalars[kExec];
  access->lds_reads = destination != nullptr && access->exec;
  access->lds_writes = sources != nullptr && access->exec;
  access->file = destination ? Kind::kVector : Kind::kNone;
  access->first = destination ? destination->index : 0;
  access->count = destination ? destination->words : 0;
  access->sequence = state(wave).memory_reads[State::kLocalPipe].issued;
  const u32* lane_address = wave.vector(address.index);
  u32 lowest = ~0u, highest = 0;
  for (int a = 0; a < shape.addresses; ++a) {
    const u32 offset = u32(i.modifier[a ? kOffset1 : kOffset0]) * u32(shape.offset_unit);
    for (u32 rest = access->exec; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      const uint64_t at = uint64_t(lane_address[lane]) + offset;
      if (at + u32(shape.bytes) > wave.workgroup.lds.size()) {
        access->recycle();
        throw Fault("access",
                    format("LDS access of %d bytes at 0x%llx by lane %d, the workgroup has 0x%zx",
                           shape.bytes, (unsigned long long)at, lane, wave.workgroup.lds.size()));
      }
      if (at % u32(shape.alignment)) {
        access->recycle();
        throw Fault("access", format("LDS address 0x%llx of lane %d must be a multiple of %d",
                                     (unsigned long long)at, lane, shape.alignment));
      }
      access->address[a][lane] = u32(at);
      lowest = std::min(lowest, u32(at));
      highest = std::max(highest, u32(at) + u32(shape.bytes));
    }
  }
  access->lds_first = access->exec ? lowest : 0;
  access->lds_end = highest;
  if (sources) {
    const int words = (shape.bytes + 3) / 4;
    for (int a = 0; a < shape.addresses; ++a)
      for (int w = 0; w < words; ++w)
        std::memcpy(access->data[a * words + w], wave.vector(sources[a]->index + w),
                    sizeof access->data[0]);
  }
  count(wave, i, *access);
  wave.issue(kLocalCount, access);
}

template <int bytes, int addresses, int offset_unit, bool sign>
void load(Wave& wave, const Instruction& i) {
  issue(wave, i, {bytes, addresses, offset_unit, sign}, i.op(1), &i.op(0), nullptr);
}

// ds_load_tr16_b128 at an address that is not a multiple of 16 silently does not transpose.
template <int bytes, int element_bits>
void load_transposed(Wave& wave, const Instruction& i) {
  constexpr int kAlignment = bytes == 16 ? 16 : 4;
  issue(wave, i, {bytes, 1, 1, false, element_bits, kAlignment}, i.op(1), &i.op(0), nullptr);
}

template <int bytes, int addresses, int offset_unit>
void store(Wave& wave, const Instruction& i) {
  const Operand* sources[2] = {&i.op(1), addresses == 2 ? &i.op(2) : nullptr};
  issue(wave, i, {bytes, addresses, offset_unit, false}, i.op(0), nullptr, sources);
}

}  // namespace

void add_local(OperationTable& table) {
  const auto add = [&](const char* name, Execute execute) {
    table.add({name, Unit::kLocal, execute});
  };
  add("ds_load_u8", load<1, 1, 1, false>);
  add("ds_load_i8", load<1, 1, 1, true>);
  add("ds_load_u16", load<2, 1, 1, false>);
  add("ds_load_i16", load<2, 1, 1, true>);
  add("ds_load_b32", load<4, 1, 1, false>);
  add("ds_load_b64", load<8, 1, 1, false>);
  add("ds_load_b96", load<12, 1, 1, false>);
  add("ds_load_b128", load<16, 1, 1, false>);
  add("ds_load_2addr_b32", load<4, 2, 4, false>);
  add("ds_load_2addr_b64", load<8, 2, 8, false>);
  add("ds_load_2addr_stride64_b32", load<4, 2, 256, false>);
  add("ds_load_2addr_stride64_b64", load<8, 2, 512, false>);
  const auto add_transposed = [&](const char* name, Execute execute) {
    table.add({.name = name, .unit = Unit::kLocal, .execute = execute, .all_lanes = true});
  };
  add_transposed("ds_load_tr4_b64", load_transposed<8, 4>);
  add_transposed("ds_load_tr6_b96", load_transposed<12, 6>);
  add_transposed("ds_load_tr8_b64", load_transposed<8, 8>);
  add_transposed("ds_load_tr16_b128", load_transposed<16, 16>);
  add("ds_store_b8", store<1, 1, 1>);
  add("ds_store_b16", store<2, 1, 1>);
  add("ds_store_b32", store<4, 1, 1>);
  add("ds_store_b64", store<8, 1, 1>);
  add("ds_store_b96", store<12, 1, 1>);
  add("ds_store_b128", store<16, 1, 1>);
  add("ds_store_2addr_b32", store<4, 2, 4>);
  add("ds_store_2addr_b64", store<8, 2, 8>);
  add("ds_store_2addr_stride64_b32", store<4, 2, 256>);
  add("ds_store_2addr_stride64_b64", store<8, 2, 512>);
}

}  // namespace mxgemm::emulator::gfx1250
