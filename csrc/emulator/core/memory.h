// Global memory: bounds-checked regions, backed lazily by the operating system, so that sparse ones
// cost nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace mxgemm::emulator {

class Memory {
 public:
  Memory() = default;
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // A fresh zero-filled region, or a window on memory that the caller keeps alive (`backing` not
  // null).
  void map(uint64_t base, uint64_t size, void* backing, bool writable);
  void unmap(uint64_t base);

  // The host address of `size` bytes at `address`; a Fault "access" if they are not inside one
  // region.
  uint8_t* at(uint64_t address, uint64_t size, bool write) const;

  template <class Visit>
  void each_region(Visit visit) const {  // base, size, writable
    for (const auto& [base, region] : regions_) visit(base, region.size, region.writable);
  }

 private:
  struct Region {
    uint64_t base, size;
    uint8_t* data;
    bool owned, writable;
  };
  void release(const Region& region);

  std::map<uint64_t, Region> regions_;
};

}  // namespace mxgemm::emulator
