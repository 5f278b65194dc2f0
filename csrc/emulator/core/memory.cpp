#include "core/memory.h"

#include <sys/mman.h>

#include <stdexcept>

#include "core/fault.h"

namespace mxgemm::emulator {

Memory::~Memory() {
  for (const auto& [base, region] : regions_) release(region);
}

void Memory::release(const Region& region) {
  if (region.owned) munmap(region.data, region.size);
}

void Memory::map(uint64_t base, uint64_t size, void* backing, bool writable) {
  if (size == 0 || base + size < base)
    throw std::invalid_argument(
        format("memory.map: size must be positive and fit 64 bits, got %llu bytes at 0x%llx",
               (unsigned long long)size, (unsigned long long)base));
  auto next = regions_.lower_bound(base);
  bool overlaps = next != regions_.end() && next->first < base + size;
  if (next != regions_.begin()) {
    const Region& before = std::prev(next)->second;
    overlaps |= before.base + before.size > base;
  }
  if (overlaps)
    throw std::invalid_argument(
        format("memory.map: regions must not overlap, got 0x%llx bytes at 0x%llx",
               (unsigned long long)size, (unsigned long long)base));
  Region region{base, size, static_cast<uint8_t*>(backing), backing == nullptr, writable};
  if (region.owned) {
    void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
      throw std::invalid_argument(
          format("memory.map: the system refused 0x%llx bytes", (unsigned long long)size));
    region.data = static_cast<uint8_t*>(data);
  }
  regions_.emplace(base, region);
}

void Memory::unmap(uint64_t base) {
  auto found = regions_.find(base);
  if (found == regions_.end())
    throw std::invalid_argument(
        format("memory.unmap: no region starts at 0x%llx", (unsigned long long)base));
  release(found->second);
  regions_.erase(found);
}

uint8_t* Memory::at(uint64_t address, uint64_t size, bool write) const {
  auto next = regions_.upper_bound(address);
  if (next != regions_.begin()) {
    const Region& region = std::prev(next)->second;
    uint64_t offset = address - region.base;
    if (offset < region.size && size <= region.size - offset) {
      if (write && !region.writable)
        throw Fault("access", format("write of %llu bytes to a read-only region at 0x%llx",
                                     (unsigned long long)size, (unsigned long long)address));
      return region.data + offset;
    }
  }
  throw Fault("access", format("%s of %llu bytes at 0x%llx is not inside a mapped region",
                               write ? "write" : "read", (unsigned long long)size,
                               (unsigned long long)address));
}

}  // namespace mxgemm::emulator
