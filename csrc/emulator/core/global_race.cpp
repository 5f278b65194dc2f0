#include "core/global_race.h"

#include <sys/mman.h>

#include "core/fault.h"

namespace mxgemm::emulator {

GlobalRaces::GlobalRaces(const Memory& memory) {
  memory.each_region([&](uint64_t base, uint64_t size, bool writable) {
    if (!writable) return;
    void* data = mmap(nullptr, size * sizeof(uint32_t), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    shadows_.push_back(
        {base, size, static_cast<uint32_t*>(data), std::make_unique<std::atomic<bool>>(false)});
  });
}

GlobalRaces::~GlobalRaces() {
  for (const Shadow& shadow : shadows_) munmap(shadow.writers, shadow.size * sizeof(uint32_t));
}

void GlobalRaces::access(uint32_t cluster, const Instruction& instruction, uint64_t address,
                         uint64_t bytes, bool write) {
  for (Shadow& shadow : shadows_) {
    if (address - shadow.base >= shadow.size) continue;
    if (write)
      shadow.written->store(true, std::memory_order_relaxed);
    else if (!shadow.written->load(std::memory_order_relaxed))
      return;
    uint32_t* writers = shadow.writers + (address - shadow.base);
    for (uint64_t i = 0; i < bytes; ++i) {
      std::atomic_ref<uint32_t> writer(writers[i]);
      const uint32_t other = writer.load(std::memory_order_relaxed);
      if (other != 0 && other != cluster + 1) {
        Fault fault("race",
                    format("%s of global memory that another workgroup, of cluster %u, has written",
                           write ? "write" : "read", other - 1),
                    format("global byte 0x%llx", (unsigned long long)(address + i)),
                    "a launch of its own for the later access");
        fault.pc = instruction.pc;
        throw fault;
      }
      if (write) writer.store(cluster + 1, std::memory_order_relaxed);
    }
    return;
  }
}

}  // namespace mxgemm::emulator
