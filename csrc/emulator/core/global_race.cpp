#include "core/global_race.h"

#include <sys/mman.h>

#include "core/fault.h"

namespace mxgemm::emulator {

GlobalRaces::GlobalRaces(const Memory& memory) {
  memory.each_region([&](uint64_t base, uint64_t size, bool writable) {
    if (!writable) return;
    void* data = mmap(nullptr, size * sizeof(Writer), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    shadows_.push_back(
        {base, size, static_cast<Writer*>(data), std::make_unique<std::atomic<bool>>(false)});
  });
}

GlobalRaces::~GlobalRaces() {
  for (const Shadow& shadow : shadows_) munmap(shadow.writers, shadow.size * sizeof(Writer));
}

void GlobalRaces::check(Writer own, Writer found, const Instruction& instruction, uint64_t address,
                        bool write) {
  if (found == 0 || found == own) return;
  Fault fault("race",
              format("%s of global memory that another workgroup, of cluster %u, has written",
                     write ? "write" : "read", found - 1u),
              format("global byte 0x%llx", (unsigned long long)address),
              "a launch of its own for the later access");
  fault.pc = instruction.pc;
  throw fault;
}

void GlobalRaces::access(uint32_t cluster, const Instruction& instruction, uint64_t address,
                         uint64_t bytes, bool write) {
  constexpr uint64_t kBytesAtOnce = sizeof(uint64_t) / sizeof(Writer);
  const auto own = Writer(cluster % 0xFFFF + 1);
  const uint64_t own_everywhere = 0x0001000100010001ull * own;
  for (Shadow& shadow : shadows_) {
    if (address - shadow.base >= shadow.size) continue;
    if (write)
      shadow.written->store(true, std::memory_order_relaxed);
    else if (!shadow.written->load(std::memory_order_relaxed))
      return;
    Writer* writers = shadow.writers + (address - shadow.base);
    const auto aligned = [&](uint64_t i) {
      return reinterpret_cast<uintptr_t>(writers + i) % sizeof(uint64_t) == 0;
    };
    for (uint64_t i = 0; i < bytes;) {
      if (bytes - i >= kBytesAtOnce && aligned(i)) {
        std::atomic_ref<uint64_t> several(*reinterpret_cast<uint64_t*>(writers + i));
        const uint64_t found = several.load(std::memory_order_relaxed);
        if (found == 0 || found == own_everywhere) {
          if (write) several.store(own_everywhere, std::memory_order_relaxed);
          i += kBytesAtOnce;
          continue;
        }
      }
      std::atomic_ref<Writer> one(writers[i]);
      check(own, one.load(std::memory_order_relaxed), instruction, address + i, write);
      if (write) one.store(own, std::memory_order_relaxed);
      ++i;
    }
    return;
  }
}

}  // namespace mxgemm::emulator
